"""Policies that answer every input with the better or the less uncertain of a silo's two models, or with their mean.

`Best` and `Blended` compare the models on validation splits, in one round after the base's last one; `Surer` compares
their uncertainty for each input. Decisions use no calibration labels, so guarantees about the answers stay valid.

An input has the p-values of one model or, if the model depends on the input, the larger ones of both: among inputs like
the silo's own, no more get an alarm than with one model.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..core import Answers, Decision, Payload, Prediction, Replies, Round, SiloContext, State, SumOver, Tensors, Update
from ..core.silo import SiloInfo
from ..uncertainty import blending
from ..uncertainty.measures import entropy
from .base import Wrapper
from .switch_policy import scalar

GROUP = "decision"


@dataclass(frozen=True)
class Surer(Wrapper):
    """The base, which answers with the model that is less uncertain about the input, or the local one if tied."""

    score: str = "total"
    """The uncertainty to compare, a key of `Prediction.scores`."""

    def decide(self, down: Payload, state: State, answers: Answers) -> Prediction:
        if len(answers) == 1:
            return self.base.decide(down, state, answers)
        local, shared = answers[Decision.LOCAL], answers[Decision.GLOBAL]
        mine, theirs = (answer.score(self.score).nan_to_num(nan=torch.inf) for answer in (local, shared))
        chosen = local.where(mine <= theirs, shared)
        larger = {name: torch.maximum(p, shared.p_values[name]) for name, p in local.p_values.items()
                  if name in shared.p_values}  # fmt: skip
        return replace(chosen, **larger)  # type: ignore[arg-type]

    def outcome(self, server: State) -> dict[str, object]:
        return self.base.outcome(server) | {"policy": {"name": "surer", "score": self.score}}


@dataclass(frozen=True)
class Best(Wrapper):
    """The base, whose silos answer with the model that has the smaller loss on their validation splits.

    Silos compare both models in a round after the base's last one. Before that round, and if both are equal, the local
    model answers. Nothing leaves a silo.
    """

    everyone: bool = True
    """Whether all silos are asked, or only as many as in a training round."""

    def schedule(self) -> Iterable[Round]:
        yield from super().schedule()
        yield Round(
            self.base.broadcast, self.weigh, self.settle, everyone=self.everyone, trains=False, linear="silos",
            name="weigh", sums=self.sums,
        )  # fmt: skip

    @property
    def sums(self) -> SumOver | None:
        """The check of what silos send; None if they send nothing."""
        return None

    def weigh(self, down: Payload, state: State, context: SiloContext) -> tuple[Update, State]:
        """Keep the likelihood of the validation split on a grid of weights of the local model."""
        x, y = context.validation
        answers = self.base.answer(down, state, context, x) if len(y) else {}
        found = torch.zeros(blending.WEIGHTS, dtype=torch.float64)
        if len(answers) == 2:
            found = blending.curve(answers[Decision.LOCAL].probs, answers[Decision.GLOBAL].probs, y).cpu()
        return Update({GROUP: self.sent(found)}, 1), state | {GROUP: {"likelihood": found}}

    def sent(self, curve: Tensor) -> Tensors:
        """Return what leaves the silo."""
        return {}

    def settle(self, server: State, replies: Replies, context: SiloContext) -> State:
        return server

    def decide(self, down: Payload, state: State, answers: Answers) -> Prediction:
        curve = state.get(GROUP, {}).get("likelihood")
        if len(answers) == 1 or curve is None or float(curve[-1]) <= float(curve[0]):
            return self.base.decide(down, state, answers)
        return answers[Decision.GLOBAL]

    def outcome(self, server: State) -> dict[str, object]:
        return self.base.outcome(server) | {"policy": {"name": "best"}}


@dataclass(frozen=True)
class Blended(Best):
    """The base, whose silos answer with a weighted mean of both models' probabilities.

    Decision, p-values and all other scores come from the model with the larger weight.
    """

    shared: bool = True
    """Whether silos send the likelihoods of their validation splits. Otherwise the federation's weight is 0.5."""

    @property
    def sums(self) -> SumOver | None:
        return SumOver("validation", self.wrong) if self.shared else None

    def init_server(self, context: SiloContext) -> State:
        return self.base.init_server(context) | {GROUP: {"ready": torch.tensor(False), "weight": scalar(0.5)}}

    def broadcast(self, server: State) -> Payload:
        return self.base.broadcast(server) | {GROUP: server[GROUP]}

    def sent(self, curve: Tensor) -> Tensors:
        return {"likelihood": curve} if self.shared else {}

    def wrong(self, sent: Payload, card: SiloInfo) -> str:
        """Return why these cannot be likelihoods of a silo's validation inputs."""
        n, classes = card.examples["validation"], len(card.class_counts)
        found = (blending.impossible(each, n, classes) for each in sent.get(GROUP, {}).values())
        return next((why for why in found if why), "")

    def settle(self, server: State, replies: Replies, context: SiloContext) -> State:
        """Set the best weight for all silos together."""
        means = replies.mean(GROUP)
        weight = blending.shared_weight(means["likelihood"].double() * len(replies)) if means else 0.5
        return server | {GROUP: {"ready": torch.tensor(True), "weight": scalar(weight)}}

    def weight(self, down: Payload, state: State) -> float:
        """Return the weight of the silo's local model; the federation's for a silo that has measured nothing."""
        shared, own = float(down[GROUP]["weight"]), state.get(GROUP, {}).get("likelihood")
        return shared if own is None else blending.own_weight(own, shared)

    def decide(self, down: Payload, state: State, answers: Answers) -> Prediction:
        if len(answers) == 1 or not down[GROUP]["ready"]:
            return self.base.decide(down, state, answers)
        return blend(answers, self.weight(down, state))

    def outcome(self, server: State) -> dict[str, object]:
        told = {"weight": float(server[GROUP]["weight"])} if self.shared else {}
        return self.base.outcome(server) | {"policy": {"name": "blend", **told}}


def blend(answers: Answers, weight: float) -> Prediction:
    """Return the mean of two answers with a `weight` for the local one.

    Total uncertainty is the entropy of the mean, aleatoric uncertainty the mean of both, and epistemic uncertainty the
    rest, to which the disagreement of the models adds.
    """
    local, shared = answers[Decision.LOCAL], answers[Decision.GLOBAL]
    probs = weight * local.probs.double() + (1 - weight) * shared.probs.double()
    total = entropy(probs)
    aleatoric = weight * local.aleatoric + (1 - weight) * shared.aleatoric
    parts = {"total": total, "aleatoric": aleatoric, "epistemic": (total - aleatoric).clamp_min(0)}
    heavier = local if weight >= 0.5 else shared
    before = weight * local.uncalibrated.double() + (1 - weight) * shared.uncalibrated.double()
    return replace(heavier, probs=probs, uncertainty=heavier.uncertainty | parts, uncalibrated_probs=before)
