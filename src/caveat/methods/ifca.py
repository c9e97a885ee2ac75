"""IFCA: one model per cluster of silos; every silo trains the model with the lowest loss on its data.

Ghosh et al., An Efficient Framework for Clustered Federated Learning, NeurIPS 2020, Algorithm 1 with averaging of
models (option II). In a round a silo receives all models, selects the one with the lowest loss on its training data,
trains it, and sends it with its choice; every model becomes the mean of the copies trained from it. A cluster that no
silo selects keeps its model. Models are initialized at random, independently.

Where the paper and the released code differ or are silent: the training loss decides, also after training (paper; the
code tests with the model of lowest test loss). This loss is computed in evaluation mode, without dropout. Our choices:
means are weighted by n_k (both: uniform); after the last training round every silo selects once more among the final
models; and a silo that has not selected a model yet predicts with the one that most silos selected last. If none of the
model's initial weights is random, all clusters are equal, and the method is FedAvg.
"""

from collections.abc import Iterable, Iterator
from copy import deepcopy
from dataclasses import replace
from typing import Annotated, ClassVar, cast

import torch
from pydantic import Field
from torch import nn

from ..core import Decision, Payload, Replies, Round, SiloContext, State, Tensors, Update, Weights, seeded
from ..core.settings import frozen_settings
from ..training.modules import in_batches, load, reset, snapshot
from .fedavg import FedAvg


@frozen_settings
class IFCA(FedAvg):
    """One model per cluster of silos; silos find their cluster by training loss (Ghosh et al., 2020)."""

    models: ClassVar[tuple[Decision, ...]] = (Decision.LOCAL,)

    clusters: Annotated[int, Field(gt=0, le=100)] = 2
    """k, the number of models; 1 is FedAvg. Every silo receives all of them and sends one."""

    def __post_init__(self) -> None:
        self.training.leave("ifca", "a silo may train a different model in every round", "optimizer_state")

    def init_server(self, context: SiloContext) -> State:
        """Return the models, the first one as built, and how many silos selected each."""
        models = {0: snapshot(context.module)}
        module = deepcopy(context.module)
        for cluster in range(1, self.clusters):
            reset(module)
            models[cluster] = snapshot(module)
        named = {f"{cluster}.{name}": tensor for cluster, model in models.items() for name, tensor in model.items()}
        return {"model": named, "clusters": {"silos": torch.zeros(self.clusters)}}

    def init_silo(self, context: SiloContext) -> State:
        return {}

    def schedule(self) -> Iterable[Round]:
        yield from (replace(step, origin=picked_model) for step in super().schedule())
        yield Round(self.broadcast, self.settle, everyone=True, trains=False, linear="examples", name="settle")

    @property
    def linear(self) -> Weights | None:
        return None

    def broadcast(self, server: State) -> Payload:
        return {"model": server["model"], "clusters": server["clusters"]}

    def train(self, down: Payload, state: State, context: SiloContext) -> tuple[Update, State]:
        cluster = self.nearest(down, context)
        load(context.module, model_of(down, cluster))
        self.training.fit(context, self.objective(context.module, down))
        picked = torch.eye(self.clusters, device=context.device)[cluster]
        payload = {"model": snapshot(context.module), "clusters": {"picked": picked}}
        return Update(payload, context.examples), state | chosen(cluster)

    def nearest(self, down: Payload, context: SiloContext) -> int:
        """Return the (first) cluster whose model has the lowest mean loss on the silo's training data."""
        losses = []
        for cluster in range(self.clusters):
            module = load(context.module, model_of(down, cluster)).eval()
            losses.append(float(self.training.cross_entropy(in_batches(module, context.train.x), context.train.y)))
        return losses.index(min(losses))

    def aggregate(self, server: State, replies: Replies, context: SiloContext) -> State:
        model, picked = dict(server["model"]), replies.stack("clusters", "picked")
        n = torch.tensor([update.examples for update in replies.updates.values()])
        for cluster in range(self.clusters):
            weights = n * picked[:, cluster]
            if weights.any():
                mean = replies.mean("model", cast(list[float], weights.tolist()))
                model |= {f"{cluster}.{name}": tensor for name, tensor in mean.items()}
        return server | {"model": model, "clusters": {"silos": picked.sum(0)}}

    def settle(self, down: Payload, state: State, context: SiloContext) -> tuple[Update, State]:
        """Select the final model."""
        return Update({}, context.examples), state | chosen(self.nearest(down, context))

    def loaded(self, down: Payload, state: State, context: SiloContext) -> Iterator[tuple[Decision, nn.Module]]:
        silos = down["clusters"]["silos"]
        cluster = int(state["cluster"]["picked"]) if "cluster" in state else int(silos.argmax())
        yield Decision.LOCAL, load(context.module, model_of(down, cluster))

    def remark(self, module: nn.Module) -> str:
        copy = deepcopy(module)
        with seeded("remark"):
            reset(copy)
        before, after = snapshot(module), snapshot(copy)
        drawn = any(not torch.equal(tensor, after[name]) for name, tensor in before.items())
        same = "no weight of this model is random, so all clusters are equal; it equals fedavg"
        return "" if drawn else f"{self.name}: {same}"


def model_of(down: Payload, cluster: int) -> Tensors:
    """Return the tensors of a cluster's model, by their names in the module."""
    prefix = f"{cluster}."
    return {name.removeprefix(prefix): t for name, t in down["model"].items() if name.startswith(prefix)}


def picked_model(sent: Payload, reply: Payload) -> Payload:
    """Return the origin of a reply: the model of the cluster that the silo reports (`Round.origin`)."""
    return {"model": model_of(sent, int(reply["clusters"]["picked"].argmax()))} if "clusters" in reply else {}


def chosen(cluster: int) -> State:
    """Return the state that records a silo's choice."""
    return {"cluster": {"picked": torch.tensor(cluster)}}
