"""Uncertainty estimators for any method: deep ensembles, and the Laplace approximation of the last layer.

Ensemble: Lakshminarayanan et al., Simple and Scalable Predictive Uncertainty Estimation using Deep Ensembles, NeurIPS
2017, without adversarial training. An ensemble of M members takes M times the rounds, the traffic and the memory for
states, and M passes per prediction. Its first member is bit-identical to the run without an ensemble.

Laplace: the posterior of the last linear layer (`caveat.uncertainty.laplace`) from Kronecker factors of its curvature,
which are sums over training inputs. Silos send them in one round after training, so the posterior is that of all silos'
pooled training inputs. A layer that is not shared has the silo's own curvature and posterior, which stay at the silo.
With clipping and noise, which would hide the sums, this holds for every layer.
"""

from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import lru_cache, partial

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
    horizon,
    seeded,
)
from ..core.silo import SiloInfo
from ..nn.stages import LastLayer, last_layer, unobserved
from ..training.modules import in_batches, reset
from ..uncertainty import entropy, laplace
from ..uncertainty.histograms import beside
from .base import Wrapper, find, no_counts, no_scatter, not_within
from .privacy import Private


@dataclass(frozen=True)
class Ensemble(Wrapper):
    """Run the base's schedule once per member; predictions are means, and epistemic uncertainty measures how much
    members differ.

    The names of a member's groups of tensors, at the server, at silos and in the broadcast for prediction, begin with
    its number. Messages of a round are the base's. Members that have not started yet do not answer.
    """

    ensemble_size: int = 5
    """Number of members, above 0."""
    seed: int = 0
    """Seed of the members' initial weights, except for the first member, which has the run's."""

    @property
    def scores(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("epistemic", "aleatoric", "total")

    @property
    def cost(self) -> str:
        """A sentence to print before a run starts."""
        return (
            f"an ensemble of {self.ensemble_size} members needs {self.ensemble_size} times the rounds and traffic of "
            f"one model, and {self.ensemble_size} passes per prediction"
        )

    def init_server(self, context: SiloContext) -> State:
        state: State = {"ensemble": {"begun": torch.tensor(1)}}
        for m in range(self.ensemble_size):
            state |= numbered(m, self.base.init_server(self.fresh(m, context)))
        return state

    def init_silo(self, context: SiloContext) -> State:
        state: State = {}
        for m in range(self.ensemble_size):
            state |= numbered(m, self.base.init_silo(self.fresh(m, context)))
        return state

    def fresh(self, m: int, context: SiloContext) -> SiloContext:
        """Return a context whose module is initialized for a member, equally at the server and at every silo."""
        if m == 0:
            return context
        module = deepcopy(context.module)
        with seeded(self.seed, "member", m):
            reset(module)
        return replace(context, module=module)

    def schedule(self) -> Iterable[Round]:
        position, until = 0, horizon(self.base.schedule())
        for m in range(self.ensemble_size):
            begin = position
            for step in super().schedule():
                yield self.step(m, begin, until, step)
                position += 1

    def step(self, m: int, begin: int, until: int, step: Round) -> Round:
        """Convert a round of the base to one of a member whose schedule begins at `begin`, with horizon `until`."""
        return replace(
            step,
            broadcast=lambda server: step.broadcast(member_groups(m, server)),
            task=partial(member_task, m, begin, until, step),
            aggregate=partial(member_aggregate, m, step),
            when=lambda server: step.when(member_groups(m, server)),
            path=f"member{m}.{step.path}",
        )

    def broadcast(self, server: State) -> Payload:
        sent: Payload = {"ensemble": server["ensemble"]}
        for m in self.begun(server):
            sent |= numbered(m, self.base.broadcast(member_groups(m, server)))
        return sent

    def begun(self, tensors: Payload) -> range:
        """Return the members that have started, from the server's state or from a broadcast."""
        return range(int(tensors["ensemble"]["begun"]))

    def answer(self, down: Payload, state: State, context: SiloContext, x: Tensor) -> Answers:
        said: dict[Decision, list[Tensor]] = {}
        for m in self.begun(down):
            for whose, probs in self.probabilities(member_groups(m, down), member_groups(m, state), context, x):
                said.setdefault(whose, []).append(probs)
        return {whose: Prediction.from_samples(torch.stack(each), whose) for whose, each in said.items()}

    def probabilities(
        self, down: Payload, state: State, context: SiloContext, x: Tensor
    ) -> Iterator[tuple[Decision, Tensor]]:
        """Yield (N, C) probabilities of each model of a member, from a pass without dropout if it has any."""
        if self.base.softmax:
            for whose, module in self.base.loaded(down, state, context):
                yield whose, in_batches(module.eval(), x).double().softmax(-1)
        else:
            for whose, answer in self.base.answer(down, state, context, x).items():
                yield whose, answer.probs

    # Values that are not means over members come from the first member, or from the newest one during a run.

    @property
    def softmax(self) -> bool:
        return False

    def decide(self, down: Payload, state: State, answers: Answers) -> Prediction:
        return self.base.decide(member_groups(0, down), member_groups(0, state), answers)

    def loaded(self, down: Payload, state: State, context: SiloContext) -> Iterator[tuple[Decision, nn.Module]]:
        return self.base.loaded(member_groups(0, down), member_groups(0, state), context)

    def describe(self, down: Payload, state: State, context: SiloContext, x: Tensor) -> Tensors:
        return self.base.describe(member_groups(0, down), member_groups(0, state), context, x)

    def features(self, down: Payload, state: State, context: SiloContext, x: Tensor) -> Tensors:
        return self.base.features(member_groups(0, down), member_groups(0, state), context, x)

    def milestone(self, server: State) -> dict[str, float]:
        return self.base.milestone(member_groups(self.begun(server)[-1], server))

    def outcome(self, server: State) -> dict[str, object]:
        return self.base.outcome(member_groups(0, server)) | {
            "source": {"name": "ensemble", "ensemble_size": self.ensemble_size}
        }


def member_task(
    m: int, begin: int, until: int, step: Round, down: Payload, state: State, context: SiloContext
) -> tuple[Update, State]:
    """Run a member's client task on its own groups of the silo's state."""
    update, after = step.task(
        down, member_groups(m, state), replace(context, round=context.round - begin, horizon=until)
    )
    return update, other_groups(m, state) | numbered(m, after)


def member_aggregate(m: int, step: Round, server: State, replies: Replies, context: SiloContext) -> State:
    """Aggregate for a member, on its own groups of the server's state."""
    after = numbered(m, step.aggregate(member_groups(m, server), replies, context))
    return other_groups(m, server) | after | {"ensemble": {"begun": torch.tensor(m + 1)}}


def numbered(m: int, groups: Payload) -> Payload:
    """Return a member's groups with its number before their names."""
    return {f"{m}.{group}": tensors for group, tensors in groups.items()}


def member_groups(m: int, groups: Mapping[str, Tensors]) -> Payload:
    """Return the groups of one member, under the base's names."""
    return {name.removeprefix(f"{m}."): tensors for name, tensors in groups.items() if name.startswith(f"{m}.")}


def other_groups(m: int, groups: Mapping[str, Tensors]) -> Payload:
    """Return the groups of all other members."""
    return {name: tensors for name, tensors in groups.items() if not name.startswith(f"{m}.")}


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
                "softmax of a linear last layer; remove it to use the method's own estimator",
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
        """Return why these cannot be sums over a silo's training inputs."""
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
