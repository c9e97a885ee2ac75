"""Run pfl-research's CIFAR-10 benchmark setting on pfl or on caveat, in one process or two.

python benchmarks/pfl_job.py pfl|bare|caveat WORKERS ROUNDS OUT.json      (run by against_pfl.py)

1,000 users have 50 images each (random numbers of CIFAR-10's shape); 50 users per round, batches of 10, one local epoch
of SGD at 0.1, the two-layer CNN of 3x3 convolutions, no evaluation. Writes the times of the start and of the end of
rounds.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import nn
from torch.nn.functional import cross_entropy

USERS, EXAMPLES, COHORT, BATCH, RATE = 1000, 50, 50, 10, 0.1
SIDE, WORKERS, ROUNDS, OUT = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]


class CNN(nn.Sequential):
    """pfl's `simple_cnn`, with the loss and the metrics that pfl asks of a model."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(64 * 14 * 14, 128), nn.ReLU(), nn.Linear(128, 10),
        )  # fmt: skip

    def loss(self, x: torch.Tensor, y: torch.Tensor, eval: bool = False) -> torch.Tensor:
        self.eval() if eval else self.train()
        return cross_entropy(self(x), y)

    def metrics(self, *batch: torch.Tensor, eval: bool = True) -> dict[str, float]:
        return {}


def device() -> torch.device:
    """Where to train; pfl takes a GPU by itself where there is one."""
    from caveat.core.devices import find_device

    return find_device(os.environ.get("CAVEAT_BENCH_DEVICE", "cpu"), start=WORKERS == 1)


def users() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(USERS, EXAMPLES, 3, 32, 32), torch.randint(10, (USERS, EXAMPLES))


def pfl() -> list[float]:
    import numpy as np
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel

    x, y = users()
    data = FederatedDataset(lambda user: Dataset((x[user], y[user])), get_user_sampler("random", range(USERS)))
    module = CNN()
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    ends = [time.time()]

    class Clock(TrainingProcessCallback):  # type: ignore[misc]
        def after_central_iteration(self, metrics: Metrics, model: PyTorchModel, *, central_iteration: int) -> tuple:  # type: ignore[type-arg]
            ends.append(time.time())
            return False, Metrics()

    np.random.seed(0)
    FederatedAveraging().run(
        NNAlgorithmParams(ROUNDS, evaluation_frequency=10**6, train_cohort_size=COHORT, val_cohort_size=0),
        SimulatedBackend(training_data=data, val_data=data),
        model,
        NNTrainHyperParams(local_batch_size=BATCH, local_num_epochs=1, local_learning_rate=RATE),
        callbacks=[Clock()],
        send_metrics_to_platform=False,
    )
    return ends


def clocked(round: Callable[[int], None]) -> list[float]:
    ends = [time.time()]
    for t in range(ROUNDS):
        round(t)
        ends.append(time.time())
    return ends


def bare() -> list[float]:
    where = device()
    x, y = (tensor.to(where) for tensor in users())
    module = CNN().to(where)
    weights = {name: tensor.clone() for name, tensor in module.state_dict().items()}

    def round(t: int) -> None:
        sums = {name: torch.zeros_like(tensor) for name, tensor in weights.items()}
        for user in torch.randperm(USERS)[:COHORT].tolist():
            module.load_state_dict(weights)
            optimizer = torch.optim.SGD(module.parameters(), RATE)
            for batch in torch.randperm(EXAMPLES).to(where).split(BATCH):
                optimizer.zero_grad()
                module.loss(x[user][batch], y[user][batch]).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            for name, tensor in module.state_dict().items():
                sums[name].add_(tensor, alpha=1 / COHORT)
        weights.update(sums)

    return clocked(round)


def caveat() -> list[float]:
    from caveat.core import Data, Silo
    from caveat.engines.executor import Executor, channels_last
    from caveat.engines.rounds import Participation
    from caveat.engines.single_machine import SingleMachineEngine
    from caveat.files import SiloStore
    from caveat.methods import FedAvg
    from caveat.training.fit import Training
    from caveat.wrappers.evaluation import Evaluated

    x, y = users()
    none = Data(torch.zeros(0, 3, 32, 32), torch.zeros(0, dtype=torch.long))
    silos = {f"{k:04d}": Silo(f"{k:04d}", "", Data(x[k], y[k]), none, none, none) for k in range(USERS)}
    method = FedAvg(rounds=ROUNDS, training=Training(batch_size=BATCH, optimizer="sgd", lr=RATE))
    with TemporaryDirectory() as folder:
        place = Executor(Evaluated(method), channels_last(CNN()), silos, SiloStore(Path(folder)), 0, device=device())
        context = place.context("0000")
        server = method.init_server(context)
        steps = place.schedule
        with SingleMachineEngine(place, WORKERS) as engine:

            def round(t: int) -> None:
                nonlocal server
                cohort = Participation(0, COHORT / USERS).cohort(t, steps[t], engine.silos)
                replies = engine.exchange(t, steps[t].address, steps[t].broadcast(server), cohort, steps[t].linear)
                server = steps[t].aggregate(server, replies, context)

            return clocked(round)


if __name__ == "__main__":
    torch.set_num_threads(1)
    ends = {"pfl": pfl, "bare": bare, "caveat": caveat}[SIDE]()
    with open(OUT, "w") as file:
        json.dump(ends, file)
