"""FMLU: federated mutual learning weighted by uncertainty.

Pham, FMLU: Weighted Federated Mutual Learning with Uncertainty-aware Balancing Scheme, Algorithm 2, eq. 3 and 4. The
uncertainty is the entropy H of a prediction. A teacher and, at the server, a silo's meme have the weight e^-H, which is
between 1/K and 1 for K classes.

Where the paper is silent: in the loss each example has its teacher's weight, which gets no gradient (otherwise a model
could lower the loss by making the other uncertain); at the server H is the mean entropy over a silo's validation split,
on which neither model was trained. The paper says "private data", which may be the training split: `entropy_on` =
"train". Each weighting can be switched off, as in Table 4; without both, the method is FML. `shuffled` is our control,
which permutes the weights at random.
"""

from typing import Literal, cast

import torch
from torch import Tensor, nn

from ..core import ConfigurationError, Replies, SiloContext, State, Tensors, Update, Weights, seeded
from ..core.devices import brought
from ..core.settings import frozen_settings
from ..training.modules import in_batches
from ..uncertainty import entropy
from .fml import FML, learn


@frozen_settings
class FMLU(FML):
    """FML with lower weights for uncertain predictions and uncertain models (FMLU, Pham)."""

    weigh_loss: bool = True
    """Whether predictions of a teacher are weighted by their certainty, instead of by alpha and beta, as in FML."""
    weigh_mean: bool = True
    """Whether memes are weighted in the server's mean by their certainty on data of their silo; otherwise as in FML."""
    entropy_on: Literal["validation", "train"] = "validation"
    """Split on which the certainty of a meme is measured: held-out inputs, or those it was trained on."""
    scaled: bool = False
    """Whether an example's loss is divided by the sum of its weights; otherwise it exceeds the loss of FML (paper)."""
    shuffled: bool = False
    """Control: whether certainties are permuted at random over the examples of a batch, and memes at the server."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weigh_loss and (self.alpha, self.beta) != (FML.alpha, FML.beta):
            raise ConfigurationError(
                f"method.alpha = {self.alpha} and method.beta = {self.beta} have no effect "
                "with method.weigh_loss = true",
                "method.alpha",
            )
        if self.scaled and not self.weigh_loss:
            text = "method.scaled = true has no effect with method.weigh_loss = false"
            raise ConfigurationError(text, "method.scaled")
        if self.entropy_on != FMLU.entropy_on and not self.weigh_mean:
            raise ConfigurationError(
                f"method.entropy_on = {self.entropy_on!r} has no effect with method.weigh_mean = false",
                "method.entropy_on",
            )
        if self.shuffled and not (self.weigh_loss or self.weigh_mean):
            raise ConfigurationError(
                "method.shuffled = true has no effect with method.weigh_loss = false and method.weigh_mean = false",
                "method.shuffled",
            )

    def mutual(self, meme: Tensor, own: Tensor, y: Tensor) -> Tensor:
        """Return the sum of eq. 3 and 4, from the logits (N, C) of both models, or the loss of FML."""
        if not self.weigh_loss:
            return super().mutual(meme, own, y)
        return self.imitate(meme, own, y) + self.imitate(own, meme, y)

    def imitate(self, student: Tensor, teacher: Tensor, y: Tensor) -> Tensor:
        """Return eq. 3 or 4: the student's loss, in which each example has the weight e^-H of the teacher."""
        certainty = torch.exp(-entropy(teacher.detach().softmax(-1))).to(student.dtype)
        if self.shuffled:
            certainty = certainty[brought(torch.randperm(len(certainty)), certainty.device)]
        label = 1 / (1 + certainty) if self.scaled else torch.ones_like(certainty)
        return learn(student, teacher, y, label, label * certainty)

    def update(self, meme: nn.Module, context: SiloContext) -> Update:
        update = super().update(meme, context)
        if self.weigh_mean:
            update.payload["uncertainty"] = self.uncertainty(meme, context)
        return update

    def uncertainty(self, meme: nn.Module, context: SiloContext) -> Tensors:
        """Return the mean entropy in nats of a meme's predictions on the silo's validation or training split."""
        split = context.validation if self.entropy_on == "validation" else context.train
        logits = in_batches(meme.eval(), split.x)
        return {"entropy": entropy(logits.double().softmax(-1)).mean()}

    @property
    def linear(self) -> Weights | None:
        by_examples = self.weights == "examples" and not self.weigh_mean
        return "examples" if by_examples and type(self).aggregate is FMLU.aggregate else None

    def aggregate(self, server: State, replies: Replies, context: SiloContext) -> State:
        if not self.weigh_mean:
            return super().aggregate(server, replies, context)
        certainty = torch.exp(-replies.stack("uncertainty", "entropy"))
        if self.shuffled:
            with seeded("shuffled", *certainty.tolist()):  # the engine seeds tasks of silos, not aggregation
                certainty = certainty[torch.randperm(len(certainty))]
        if self.weights == "examples":
            certainty = certainty * torch.tensor([update.examples for update in replies.updates.values()])
        return server | {"model": replies.mean("model", cast(list[float], certainty.tolist()))}
