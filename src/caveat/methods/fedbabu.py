"""FedBABU: silos train a shared body under one fixed random head, and fine-tune it after the last round.

Oh et al., FedBABU: Toward Enhanced Representation for Federated Image Classification, ICLR 2022, Algorithm 1.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

from pydantic import Field
from torch import Tensor, nn

from ..core import Decision, Payload, Replies, Round, SiloContext, State, Update, Weights
from ..core.settings import MAX_COUNT, frozen_settings
from ..training.fit import Loss, Training
from ..training.modules import load, names_at_silo, names_below, path_of_part, snapshot, split
from .fedavg import FedAvg


@frozen_settings
class FedBABU(FedAvg):
    """FedAvg of the body under a fixed random head, with fine-tuning at the end (Oh et al., 2022)."""

    models: ClassVar[tuple[Decision, ...]] = (Decision.GLOBAL, Decision.LOCAL)

    stays: Literal["head", "last"] = "head"
    """The part that is fixed in training: head (everything after the encoder), or last (the last linear layer only)."""
    fine_tune: Literal["all", "head"] = "all"
    """The part that a silo fine-tunes after the last round: the whole model, or the head only."""
    fine_tune_epochs: Annotated[int, Field(gt=0, le=MAX_COUNT)] = 5
    """Epochs of fine-tuning, at the final learning rate of training."""

    def private(self, module: nn.Module) -> frozenset[str]:
        """Return the names of the head's tensors, which are not trained before fine-tuning, so no silo sends them."""
        return names_at_silo(module, self.stays, self.name)

    def init_server(self, context: SiloContext) -> State:
        self.private(context.module)  # raises if a custom module lacks a part
        # The head is included, so every silo gets the server's head, whenever it joins.
        return {"model": snapshot(context.module)}

    def init_silo(self, context: SiloContext) -> State:
        return {}

    def schedule(self) -> Iterable[Round]:
        yield from super().schedule()
        yield Round(
            self.broadcast, self.personalise, everyone=True, trains=False, linear="examples", name="personalise"
        )

    @property
    def linear(self) -> Weights | None:
        return "examples" if type(self).aggregate is FedBABU.aggregate else None

    def train(self, down: Payload, state: State, context: SiloContext) -> tuple[Update, State]:
        module = load(context.module, down["model"])
        head = self.private(module)
        self.training.fit(context, self.objective(module, down), frozen=head)
        body, _ = split(snapshot(module), head)
        return Update({"model": body}, context.examples), state

    def aggregate(self, server: State, replies: Replies, context: SiloContext) -> State:
        return server | {"model": server["model"] | replies.mean("model")}

    def personalise(self, down: Payload, state: State, context: SiloContext) -> tuple[Update, State]:
        """Fine-tune a copy of the global model, and keep it."""
        module = load(context.module, down["model"])
        training = replace(self.training, local_epochs=self.fine_tune_epochs, local_steps=None)
        loss = self.objective(module, down)
        if self.fine_tune == "head":
            fit_alone(training, context, loss, path_of_part(module, self.stays, self.name))
        else:
            training.fit(context, loss)
        return Update({}, context.examples), state | {"own": snapshot(module)}


def fit_alone(training: Training, context: SiloContext, loss: Loss, path: str) -> None:
    """Train one part of the silo's module.

    All other parts stay bit-identical, including BatchNorm statistics. They run in evaluation mode, so the part is
    trained on the same features as in prediction.
    """
    module = context.module
    rest = frozenset(name for name, _ in module.named_parameters()) - names_below(module, path)

    def behind_the_rest(x: Tensor, y: Tensor) -> Tensor:
        module.eval()
        module.get_submodule(path).train()
        return loss(x, y)

    training.fit(context, behind_the_rest, frozen=rest)
