"""Epistemic uncertainty that falls with data, for any method whose models end in a linear layer.

The last layer's posterior by Laplace's approximation (`caveat.uncertainty.laplace`), from Kronecker factors of its
curvature, which are sums over training inputs: in one round after training silos send theirs, and the posterior is that
of all silos' training inputs pooled. A layer that a silo does not share has the silo's own curvature, which stays there
with the posterior; under clipping and noise, which would drown the sums, so has every layer.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn

from ..core import (
    Answers,
    ConfigurationError,
    Decision,
    Payload,
    Prediction,
    Replies,
    Round,
    SiloContext,
    State,
    SumOver,
    Tensors,
    Update,
    seeded,
)
from ..core.silo import SiloInfo
from ..nn.last_layer import LastLayer, last_layer, unobserved
from ..uncertainty import entropy, laplace
from ..uncertainty.histograms import beside
from .base import Wrapper, find, no_counts, no_scatter, not_within
from .private import Private

BATCH = 500
"""Inputs that go through a model at a time."""


@dataclass(frozen=True)
class Laplace(Wrapper):
    """The base, with probabilities and uncertainties of its models' last layers under their posteriors.

    Logits are Gaussian. Probabilities are expected ones in closed form, and the total their entropy; aleatoric and
    epistemic uncertainty are of `draws` of logits, the same for every input, so that a prediction depends on nothing
    but the model and the input. The score `logit_variance` is the variance of a logit, averaged over classes: it falls
    as 1/n where mutual information, which the probabilities scale, ranks inputs much as aleatoric uncertainty does.

    Until the posterior is there, answers are the base's. Raises ConfigurationError for a base whose answers are not the
    softmax of a module.
    """

    draws: int = 20
    """Draws of logits per prediction."""
    everyone: bool = True
    """Whether all silos are asked, or those that a round of training asks."""

    def __post_init__(self) -> None:
        if not self.base.softmax:
            raise ConfigurationError(
                f"uncertainty.source = 'laplace' does not fit {self.name!r}: what its models say is not the softmax of "
                "a linear last layer; leave it to the method's own",
                "uncertainty.source",
            )

    @property
    def scores(self) -> tuple[str, ...]:  # type: ignore[override]
        *others, last = self.base.scores
        return (*others, "logit_variance", last)

    def init_server(self, context: SiloContext) -> State:
        return self.base.init_server(context) | {"laplace": {"ready": torch.tensor(False)}}

    def schedule(self) -> Iterable[Round]:
        yield from super().schedule()
        yield Round(
            self.broadcast, self.curve, self.settle,
            everyone=self.everyone, trains=False, linear="silos", name="curvature",
            sums=SumOver("train", self.wrong),
        )  # fmt: skip

    def broadcast(self, server: State) -> Payload:
        return self.base.broadcast(server) | {"laplace": server["laplace"]}

    def curve(self, down: Payload, state: State, context: SiloContext) -> tuple[Update, State]:
        """Send the sums of the training inputs for layers that silos share; keep the posterior of those they do not."""
        sent, kept = Tensors(), Tensors()
        for whose, module in self.base.loaded(down, state, context):
            layer, found = curvature(module, context.train.x)
            if self.shared(whose, layer, down):
                sent |= prefixed(whose, found | {"weight": layer.weight.double()})
            else:
                kept |= prefixed(whose, laplace.posterior(found, layer.weight))
        return Update({"curvature": sent}, 1), state | {"laplace": kept}

    def wrong(self, sent: Payload, card: SiloInfo) -> str:
        """Why these are no sums over a silo's training inputs: of more than it has, or with a negative curvature."""
        for whose in Decision:
            if not (mine := named(whose, sent.get("curvature", {}))):
                continue
            n, outputs = mine["examples"], mine["outputs"]
            found = (
                no_counts("examples", n, card.examples["train"]),
                no_scatter("inputs", mine["inputs"]),
                no_scatter("outputs", outputs),
                # Of each input p (1 - p) for a class, and what it takes from one class it gives to the others.
                not_within("outputs", outputs.diagonal(), 0.0, float(n) / 4),
                not_within("sums of outputs", outputs.sum(0) / (1 + float(n)), 0.0, 0.0),
            )
            if why := next((each for each in found if each), ""):
                return f"{whose.name.lower()}: {why}"
        return ""

    def shared(self, whose: Decision, layer: LastLayer, down: Payload) -> bool:
        """Whether silos have this layer in common, and what it was trained on may be added up."""
        if find(self.base, Private) is not None:
            return False
        sent = any(f"{layer.name}.weight" in group for group in down.values())
        return whose is Decision.GLOBAL or (len(self.models) == 1 and sent)

    def settle(self, server: State, replies: Replies, context: SiloContext) -> State:
        """Add up what silos have sent of each layer that they share, and keep its posterior."""
        means, silos = replies.mean("curvature"), len(replies)
        found: Tensors = {"ready": torch.tensor(True)}
        for whose in Decision:
            if mine := named(whose, means):
                weight = mine.pop("weight")
                pooled = {name: silos * mean for name, mean in mine.items()}
                found |= prefixed(whose, laplace.posterior(pooled, weight))
        return server | {"laplace": found}

    def answer(self, down: Payload, state: State, context: SiloContext, x: Tensor) -> Answers:
        if not down["laplace"]["ready"]:
            return self.base.answer(down, state, context, x)
        return {
            whose: self.ask(module, self.posterior(whose, module, down, state, context), x, whose)
            for whose, module in self.base.loaded(down, state, context)
        }

    def outcome(self, server: State) -> dict[str, object]:
        priors = {whose.name.lower(): named(whose, server["laplace"]).get("prior") for whose in Decision}
        known = {model: float(prior) for model, prior in priors.items() if prior is not None}
        return self.base.outcome(server) | {"source": {"name": "laplace", "prior_precision": known}}

    def posterior(
        self, whose: Decision, module: nn.Module, down: Payload, state: State, context: SiloContext
    ) -> Tensors:
        """The posterior of a model's last layer: all silos' or the silo's own, of its data if it has kept none yet."""
        known = named(whose, down["laplace"]) or named(whose, state.get("laplace", {}))
        if known:
            return known
        layer, found = curvature(unobserved(module), context.train.x)
        return {name: beside(each, layer.weight) for name, each in laplace.posterior(found, layer.weight).items()}

    def ask(self, module: nn.Module, found: Tensors, x: Tensor, whose: Decision) -> Prediction:
        """What a model says of (N, ...) inputs under a posterior of its last layer."""
        seen = [last_layer(module, part) for part in torch.split(x, BATCH)]
        logits = torch.cat([layer.logits for layer in seen]).double()
        variances = torch.cat([laplace.direction_variances(found, layer.hidden) for layer in seen])
        outputs = found["outputs"]
        probs = laplace.mean_probabilities(outputs, logits, variances)
        drawn = beside(noise(self.draws, outputs.shape[1]), outputs)
        within, between = laplace.decomposed(outputs, logits, variances, drawn)
        total = entropy(probs)
        uncertainty = {
            "total": total,
            "aleatoric": torch.minimum(within, total),
            "epistemic": between,
            "logit_variance": laplace.logit_variance(variances),
        }
        return Prediction(probs, uncertainty, torch.full_like(total, int(whose), dtype=torch.long))


def curvature(module: nn.Module, x: Tensor) -> tuple[LastLayer, Tensors]:
    """A module's last layer, and the sums of `uncertainty.laplace.sums` over (N, ...) inputs."""
    total = Tensors()
    for part in torch.split(x, BATCH):
        layer = last_layer(module, part)
        found = laplace.sums(layer.hidden, layer.logits)
        total = {name: total[name] + tensor for name, tensor in found.items()} if total else found
    return layer, total


@lru_cache(maxsize=16)
def noise(draws: int, directions: int) -> Tensor:
    """(draws, directions) float64 standard normal numbers, the same every time."""
    with seeded("laplace"):
        return torch.randn(draws, directions, dtype=torch.float64)


def prefixed(whose: Decision, tensors: Tensors) -> Tensors:
    """Tensors of one model, named so that those of another fit beside them."""
    return {f"{whose.name.lower()}.{name}": tensor for name, tensor in tensors.items()}


def named(whose: Decision, tensors: Tensors) -> Tensors:
    """The tensors of one model, by their own names."""
    prefix = f"{whose.name.lower()}."
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
