"""FML: every silo trains a local model, of any architecture, in mutual learning with a copy of the global model.

Shen et al., Federated Mutual Learning, arXiv 2006.16765, 2020; Algorithm 1 and eq. 1 and 2 as in FMLU (`fmlu.py`).
The copy that a silo trains and sends is called its meme. The two models interact through predictions only: each
is the other's teacher, and gets no gradient as a teacher.

Where the paper and the released code differ or are silent: both models take a step per batch, from the same two forward
passes (code); BatchNorm statistics are averaged like weights (code: added to the server's old ones); the optimizer of
the local model is reset every round, like the optimizer of the meme (code: kept, which matters with momentum only).
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from ..core import Decision, Payload, Replies, SiloContext, State, Update, Weights
from ..core.settings import frozen_settings
from ..training.fit import LABELS
from ..training.modules import expect, load, reset, snapshot
from .fedavg import FedAvg


@frozen_settings
class FML(FedAvg):
    """Mutual learning of the global model and local models of any architecture (Shen et al., 2020)."""

    models: ClassVar[tuple[Decision, ...]] = (Decision.GLOBAL, Decision.LOCAL)
    counts_classes: ClassVar[bool] = True
    personal: ClassVar[bool] = True

    alpha: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Weight of the labels in the loss of the local model; the rest is imitation of the meme."""
    beta: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Weight of the labels in the loss of the meme; the rest is imitation of the local model."""
    weights: Literal["uniform", "examples"] = "uniform"
    """Weights of memes in the mean. uniform: equal (paper); examples: numbers of training examples."""

    def __post_init__(self) -> None:
        if self.training.optimizer_state == "average":
            self.training.leave(
                self.name, "a silo trains two models at once; 'keep' keeps the state of both", "optimizer_state"
            )
        self.training.leave(self.name, "each model learns from the other's loss, too", *LABELS)

    def init_silo(self, context: SiloContext) -> State:
        return {}

    def train(self, down: Payload, state: State, context: SiloContext) -> tuple[Update, State]:
        meme, own = load(context.module, down["model"]), self.own(state, context)
        both = replace(context, module=nn.ModuleList([meme, own]))
        self.training.fit(both, lambda x, y: self.mutual(meme(x), own(x), y))
        return self.update(meme, context), state | {"own": snapshot(own)}

    def own(self, state: State, context: SiloContext) -> nn.Module:
        """Return the silo's local model, newly initialized if the silo has none yet."""
        own = expect(nn.Module, context.own)
        if "own" in state:
            return load(own, state["own"])
        reset(own)
        return own

    def update(self, meme: nn.Module, context: SiloContext) -> Update:
        """Return the update that the silo sends: its trained meme."""
        return Update({"model": snapshot(meme)}, context.examples)

    def mutual(self, meme: Tensor, own: Tensor, y: Tensor) -> Tensor:
        """Return the sum of eq. 1 and 2, from the logits (N, C) of both models; each term trains one of the two."""
        return learn(meme, own, y, self.beta, 1 - self.beta) + learn(own, meme, y, self.alpha, 1 - self.alpha)

    @property
    def linear(self) -> Weights | None:
        return "examples" if self.weights == "examples" and type(self).aggregate is FML.aggregate else None

    def aggregate(self, server: State, replies: Replies, context: SiloContext) -> State:
        uniform = [1.0] * len(replies)
        return server | {"model": replies.mean("model", uniform if self.weights == "uniform" else None)}

    def loaded(self, down: Payload, state: State, context: SiloContext) -> Iterator[tuple[Decision, nn.Module]]:
        yield Decision.GLOBAL, load(context.module, down["model"])
        if "own" in state:
            yield Decision.LOCAL, self.own(state, context)


def learn(student: Tensor, teacher: Tensor, y: Tensor, label: float | Tensor, imitation: float | Tensor) -> Tensor:
    """Return the mean over a batch of label * CE(y, student) + imitation * KL(teacher || student), from logits (N, C).

    Weights are numbers or tensors (N,); the teacher gets no gradient.
    """
    log_student, log_teacher = student.log_softmax(-1), teacher.detach().log_softmax(-1)
    divergence = F.kl_div(log_student, log_teacher, log_target=True, reduction="none").sum(-1)
    return torch.mean(label * F.cross_entropy(student, y, reduction="none") + imitation * divergence)
