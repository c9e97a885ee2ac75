"""Federated deep ensembles: the base several times over, from other weights and with other batches, one after another.

Lakshminarayanan et al., Simple and Scalable Predictive Uncertainty Estimation using Deep Ensembles, NeurIPS 2017,
without adversarial training. An ensemble of M members takes M times the rounds, the traffic and the memory for states,
and M passes per prediction. Its first member is the run that there would be without an ensemble, to the bit.

Epistemic uncertainty that falls with data, for any method whose models end in a linear layer.

The last layer's posterior by Laplace's approximation (`caveat.uncertainty.laplace`), from Kronecker factors of its
curvature, which are sums over training inputs: in one round after training silos send theirs, and the posterior is that
of all silos' training inputs pooled. A layer that a silo does not share has the silo's own curvature, which stays there
with the posterior; under clipping and noise, which would drown the sums, so has every layer.
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
from ..core.silo_info import SiloInfo
from ..nn.stages import LastLayer, last_layer, unobserved
from ..training.modules import in_batches, reset
from ..uncertainty import entropy, laplace
from ..uncertainty.histograms import beside
from .base import Wrapper, find, no_counts, no_scatter, not_within
from .privacy import Private


@dataclass(frozen=True)
class Ensemble(Wrapper):
    """The base's schedule once for each member; predictions are means over members, and epistemic is what they differ.

    A member's groups of tensors, at the server, at silos and in what is sent for prediction, have its number before
    their names. What is sent in a round is what the base sends. Members that have not begun yet say nothing.
    """

    ensemble_size: int = 5
    """How many there are, above 0."""
    seed: int = 0
    """What the members' initial weights are drawn from, but for the first, whose weights are those of the run."""

    @property
    def scores(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("epistemic", "aleatoric", "total")

    @property
    def cost(self) -> str:
        """What to say before a run begins."""
        return (
            f"an ensemble of {self.ensemble_size} members: {self.ensemble_size} times the rounds and the traffic of "
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
        """A site whose freshly initialised module is that of a member: the same at the server and at every silo."""
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
        """A round of the base as one of a member whose schedule begins at that position, and has that horizon."""
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
        """The members that have begun, by the server's state or by what was sent."""
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
        """(N, C) probabilities by each model that a member asks: of a pass without dropout, where it has such."""
        if self.base.softmax:
            for whose, module in self.base.loaded(down, state, context):
                yield whose, in_batches(module.eval(), x).double().softmax(-1)
        else:
            for whose, answer in self.base.answer(down, state, context, x).items():
                yield whose, answer.probs

    # What is no mean over members is that of one: of the first, and of the newest while a run goes on.

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
    """A member's work at a silo, from and to its own groups of the silo's state."""
    update, after = step.task(
        down, member_groups(m, state), replace(context, round=context.round - begin, horizon=until)
    )
    return update, other_groups(m, state) | numbered(m, after)


def member_aggregate(m: int, step: Round, server: State, replies: Replies, context: SiloContext) -> State:
    """A member's aggregation, from and to its own groups of the server's state."""
    after = numbered(m, step.aggregate(member_groups(m, server), replies, context))
    return other_groups(m, server) | after | {"ensemble": {"begun": torch.tensor(m + 1)}}


def numbered(m: int, groups: Payload) -> Payload:
    """A member's groups, by names that are no other member's."""
    return {f"{m}.{group}": tensors for group, tensors in groups.items()}


def member_groups(m: int, groups: Mapping[str, Tensors]) -> Payload:
    """The groups of one member, by the names that the base gives them."""
    return {name.removeprefix(f"{m}."): tensors for name, tensors in groups.items() if name.startswith(f"{m}.")}


def other_groups(m: int, groups: Mapping[str, Tensors]) -> Payload:
    """The groups that are not of one member."""
    return {name: tensors for name, tensors in groups.items() if not name.startswith(f"{m}.")}


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
