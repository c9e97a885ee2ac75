"""The Laplace approximation of the last layer, an uncertainty estimator for any method with softmax outputs.

The posterior of the last linear layer (`caveat.uncertainty.laplace`) is computed from Kronecker factors of its
curvature, which are sums over training inputs. Silos send them in one round after training, so the posterior is based
on all silos' pooled training inputs. A layer that is not shared has the silo's own curvature and posterior, which stay
at the silo. With clipping and noise, which would hide the sums, this holds for every layer.
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
from ..nn.stage_features import LastLayer, last_layer, unobserved
from ..uncertainty import entropy, laplace
from ..uncertainty.histograms import beside
from .base import Wrapper, find, no_counts, no_scatter, not_within
from .privacy import Private

BATCH = 500
"""Number of inputs per pass through a model."""


@dataclass(frozen=True)
class Laplace(Wrapper):
    """The base, with probabilities and uncertainties under the posteriors of its models' last layers.

    Logits are Gaussian. Probabilities are their expectations in closed form, and total uncertainty is their entropy.
    Aleatoric and epistemic uncertainty come from `draws` of logits, the same for every input, so a prediction depends
    only on the model and the input. The score `logit_variance` is the variance of a logit, averaged over classes. It
    decreases as 1/n, whereas mutual information, which is scaled by the probabilities, ranks inputs almost like
    aleatoric uncertainty.

    Until the posterior exists, answers are the base's. Raises ConfigurationError for a base whose answers are not the
    softmax of a module.
    """

    draws: int = 20
    """Number of draws of logits per prediction."""
    everyone: bool = True
    """Whether all silos are asked, or only those that a training round asks."""

    def __post_init__(self) -> None:
        if not self.base.softmax:
            raise ConfigurationError(
                f"uncertainty.source = 'laplace' does not fit {self.name!r}: its models' output is not the "
                "softmax of a linear last layer; remove the key to use the method's own estimator",
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
        """Send the sums over training inputs for shared layers; keep the posteriors of layers that are not shared."""
        sent, kept = Tensors(), Tensors()
        for whose, module in self.base.loaded(down, state, context):
            layer, found = curvature(module, context.train.x)
            if self.shared(whose, layer, down):
                sent |= prefixed(whose, found | {"weight": layer.weight.double()})
            else:
                kept |= prefixed(whose, laplace.posterior(found, layer.weight))
        return Update({"curvature": sent}, 1), state | {"laplace": kept}

    def wrong(self, sent: Payload, card: SiloInfo) -> str:
        """Return why `sent` cannot be sums over a silo's training inputs; "" if it can."""
        for whose in Decision:
            if not (mine := named(whose, sent.get("curvature", {}))):
                continue
            n, outputs = mine["examples"], mine["outputs"]
            found = (
                no_counts("examples", n, card.examples["train"]),
                no_scatter("inputs", mine["inputs"]),
                no_scatter("outputs", outputs),
                # Each input adds p (1 - p) for a class, and its contributions sum to 0 over classes.
                not_within("outputs", outputs.diagonal(), 0.0, float(n) / 4),
                not_within("sums of outputs", outputs.sum(0) / (1 + float(n)), 0.0, 0.0),
            )
            if why := next((each for each in found if each), ""):
                return f"{whose.name.lower()}: {why}"
        return ""

    def shared(self, whose: Decision, layer: LastLayer, down: Payload) -> bool:
        """Return whether silos share this layer and its sums may be pooled."""
        if find(self.base, Private) is not None:
            return False
        sent = any(f"{layer.name}.weight" in group for group in down.values())
        return whose is Decision.GLOBAL or (len(self.models) == 1 and sent)

    def settle(self, server: State, replies: Replies, context: SiloContext) -> State:
        """Pool the silos' sums for each shared layer, and keep its posterior."""
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
        """Return the posterior of a model's last layer: of all silos, or the silo's own, computed now if not kept."""
        known = named(whose, down["laplace"]) or named(whose, state.get("laplace", {}))
        if known:
            return known
        layer, found = curvature(unobserved(module), context.train.x)
        return {name: beside(each, layer.weight) for name, each in laplace.posterior(found, layer.weight).items()}

    def ask(self, module: nn.Module, found: Tensors, x: Tensor, whose: Decision) -> Prediction:
        """Predict (N, ...) inputs under a posterior of the model's last layer."""
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
    """Return a module's last layer, and `uncertainty.laplace.sums` over (N, ...) inputs."""
    total = Tensors()
    for part in torch.split(x, BATCH):
        layer = last_layer(module, part)
        found = laplace.sums(layer.hidden, layer.logits)
        total = {name: total[name] + tensor for name, tensor in found.items()} if total else found
    return layer, total


@lru_cache(maxsize=16)
def noise(draws: int, directions: int) -> Tensor:
    """Return (draws, directions) float64 standard normal numbers, the same in every call."""
    with seeded("laplace"):
        return torch.randn(draws, directions, dtype=torch.float64)


def prefixed(whose: Decision, tensors: Tensors) -> Tensors:
    """Return a model's tensors with its name as a prefix."""
    return {f"{whose.name.lower()}.{name}": tensor for name, tensor in tensors.items()}


def named(whose: Decision, tensors: Tensors) -> Tensors:
    """Return the tensors of one model, without the prefix."""
    prefix = f"{whose.name.lower()}."
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
