"""Run a job on Flower's own simulation: its FedAvg, its Ray back end, and the bare step function at each client.

python benchmarks/flower_job.py SILOS EXAMPLES PARAMETERS|lenet5 ROUNDS OUT.json      (run by against_flower.py)

Writes the times at which rounds ended. With EXAMPLES = 0, clients return the parameters that they receive.
"""

import json
import os
import sys
import time

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch.nn.functional import cross_entropy

SILOS, EXAMPLES, ROUNDS, OUT = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[4]), sys.argv[5]
MODEL = sys.argv[3]

DEVICE = torch.device(os.environ.get("CAVEAT_BENCH_DEVICE", "cpu"))

client = ClientApp()
KEPT: dict = {}
ENDS: list[float] = []


def model() -> torch.nn.Module:
    if MODEL != "lenet5":
        return torch.nn.Linear(1000, int(MODEL) // 1001)
    from caveat.engines.executor import channels_last
    from caveat.nn.models import ModelSettings, build_model

    return channels_last(build_model(ModelSettings(name="lenet5"), (1, 28, 28), 10, 0))


@client.train()
def train(message: Message, context: Context) -> Message:
    """What a careful user would write: model and data are kept by the actor's process."""
    if "module" not in KEPT:
        torch.set_num_threads(1)
        KEPT["module"] = model().to(DEVICE)
        x, y = torch.randn(max(EXAMPLES, 1), 1, 28, 28), torch.randint(10, (max(EXAMPLES, 1),))
        KEPT["x"], KEPT["y"] = x.to(DEVICE), y.to(DEVICE)
    module, x, y = KEPT["module"], KEPT["x"], KEPT["y"]
    module.load_state_dict(message.content["arrays"].to_torch_state_dict())
    if EXAMPLES:
        module.train()
        optimizer = torch.optim.SGD(module.parameters(), 0.01, fused=True)
        for batch in torch.randperm(EXAMPLES).to(DEVICE).split(64):
            optimizer.zero_grad()
            cross_entropy(module(x[batch]), y[batch]).backward()
            optimizer.step()
    metrics = MetricRecord({"num-examples": max(EXAMPLES, 1)})
    weights = {name: tensor.cpu() for name, tensor in module.state_dict().items()}
    return Message(RecordDict({"arrays": ArrayRecord(weights), "metrics": metrics}), reply_to=message)


class Timed(FedAvg):
    """FedAvg that notes when each round's replies have been summed."""

    def aggregate_train(self, server_round, replies):  # type: ignore[no-untyped-def]
        result = super().aggregate_train(server_round, replies)
        ENDS.append(time.time())
        return result


server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    strategy = Timed(fraction_train=1.0, fraction_evaluate=0.0, min_train_nodes=SILOS, min_available_nodes=SILOS)
    strategy.start(grid=grid, initial_arrays=ArrayRecord(model().state_dict()), num_rounds=ROUNDS)
    with open(OUT, "w") as file:
        json.dump(ENDS, file)


if __name__ == "__main__":
    init = {"num_cpus": 2, "include_dashboard": False, "log_to_driver": False, "logging_level": "error"}
    resources = {"num_cpus": 1, "num_gpus": 0.0 if DEVICE.type == "cpu" else 0.5}
    run_simulation(server, client, SILOS, backend_config={"client_resources": resources, "init_args": init})
