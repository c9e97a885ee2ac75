"""Policies that choose between a silo's two models, or answer with their mean.

`Switched`: the local model answers inputs that it knows, the global model other inputs that it knows, or neither does.
Kotelevskii et al., Dirichlet-Based Uncertainty Quantification for Personalized Federated Learning with Improved
Posterior Networks, IJCAI 2024, sections 2.2 and 4.2, for any score of any method. Thresholds are conformal quantiles of
calibration data: the silo's own data for its local model, and all silos' data for the global model, which answers
inputs that other silos know. A method with one model answers with it or abstains.

The other policies answer every input. `Best` and `Blended` compare the models on validation splits, in one round after
the base's last one; `Surer` compares their uncertainty for each input. Decisions use no calibration labels, so
guarantees about the answers stay valid.

An input has the p-values of one model or, if the model depends on the input, the larger p-values of both models, so
that no more inputs like the silo's own raise an alarm than with one model.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..core import (
    Answers,
    Decision,
    Payload,
    Prediction,
    Reason,
    Replies,
    Round,
    SiloContext,
    State,
    SumOver,
    Tensors,
    Update,
)
from ..core.silo import SiloInfo
from ..uncertainty import linear_pool
from ..uncertainty.histograms import finite_sample_quantile, histogram, quantile
from ..uncertainty.measures import entropy
from .base import Wrapper, no_histograms


def choose(answers: Answers, within: Mapping[Decision, Tensor], reason: Reason = Reason.UNCERTAIN) -> Prediction:
    """Return the local answer if it is `within`, (N,) bool, else the global answer if it is `within`, or abstain for
    `reason`. With one model, return its answer or abstain."""
    if len(answers) == 1:
        (whose,) = answers
        chosen, trusted = answers[whose], within[whose]
    else:
        known = within[Decision.LOCAL]
        chosen = answers[Decision.LOCAL].where(known, answers[Decision.GLOBAL])
        trusted = known | within[Decision.GLOBAL]
    return chosen.abstaining(~trusted, reason)


def nowhere(answers: Answers) -> dict[Decision, Tensor]:
    """Return (N,) False for each model: none of its answers is within a limit."""
    return {whose: torch.zeros_like(answer.decision, dtype=torch.bool) for whose, answer in answers.items()}


def scalar(value: float) -> Tensor:
    """Return a threshold as a float64 scalar; infinity becomes the largest number, because it is stored and sent."""
    return torch.tensor(value, dtype=torch.float64).nan_to_num()


@dataclass(frozen=True)
class Switched(Wrapper):
    """The base, and a round after its last one in which silos set their thresholds."""

    score: str = "total"
    """The uncertainty to compare with thresholds, a key of `Prediction.scores`."""
    handover_rate: float = 0.1
    """Share of a silo's own data for which its local model may be too uncertain."""
    abstain_rate: float = 0.05
    """Share of calibration data for which the last model asked may be too uncertain; 0 never abstains."""
    max_aleatoric: float = torch.inf
    """Aleatoric uncertainty in nats above which an input is ambiguous and no answer is trusted."""

    def init_server(self, context: SiloContext) -> State:
        return self.base.init_server(context) | {"decision": {"ready": torch.tensor(False), "limit": scalar(torch.inf)}}

    def schedule(self) -> Iterable[Round]:
        yield from super().schedule()
        yield Round(
            self.broadcast, self.calibrate, self.settle, everyone=True, trains=False, name="calibrate",
            totals=True, sums=SumOver("calibration", self.wrong),
        )  # fmt: skip

    def broadcast(self, server: State) -> Payload:
        return self.base.broadcast(server) | {"decision": server["decision"]}

    def calibrate(self, down: Payload, state: State, context: SiloContext) -> tuple[Update, State]:
        """Keep the local model's threshold; send a histogram of the global model's scores of the calibration split."""
        answers = self.base.answer(down, state, context, context.calibration.x)
        kept, sent = {}, {}
        if Decision.LOCAL in answers:
            level = 1 - (self.handover_rate if Decision.GLOBAL in answers else self.abstain_rate)
            kept["limit"] = scalar(finite_sample_quantile(answers[Decision.LOCAL].score(self.score), level))
        if Decision.GLOBAL in answers:
            sent["scores"] = histogram(self.score, answers[Decision.GLOBAL].score(self.score))
        return Update({"decision": sent}, len(context.calibration)), state | {"decision": kept}

    def wrong(self, sent: Payload, card: SiloInfo) -> str:
        """Return why `sent` cannot be a histogram of a silo's calibration inputs; "" if it can."""
        return no_histograms(sent.get("decision", {}), card.examples["calibration"])

    def settle(self, server: State, replies: Replies, context: SiloContext) -> State:
        """Sum the silos' histograms, and keep the global model's threshold."""
        limit = torch.inf
        if any(update.payload["decision"] for update in replies.updates.values()):
            limit = quantile(self.score, replies.total("decision", "scores"), 1 - self.abstain_rate)
        return server | {"decision": {"ready": torch.tensor(True), "limit": scalar(limit)}}

    def decide(self, down: Payload, state: State, answers: Answers) -> Prediction:
        if not down["decision"]["ready"]:
            return self.base.decide(down, state, answers)
        within = {whose: self.within(whose, down, state, answer) for whose, answer in answers.items()}
        chosen = choose(answers, within)
        # Do not ask the other model: the first one knows the input well, and the input is ambiguous.
        return chosen.abstaining(chosen.aleatoric > self.max_aleatoric, Reason.AMBIGUOUS)

    def within(self, whose: Decision, down: Payload, state: State, answer: Prediction) -> Tensor:
        """Return (N,) whether an answer is within its threshold, ties included, and has no alarm; NaN is not within.

        An input for which the local model raises an alarm is passed to the global model. So only the last model
        abstains because of alarms, and the rate of false alarms is the same as with one model.
        """
        group = state.get("decision", {}) if whose is Decision.LOCAL else down["decision"]
        # A silo that missed the round has no threshold, and asks the global model.
        limit = group.get("limit", torch.tensor(-torch.inf))
        return (answer.score(self.score) <= limit) & ~answer.alarms

    def outcome(self, server: State) -> dict[str, object]:
        limit = float(server["decision"]["limit"])
        about = {"score": self.score, "handover_rate": self.handover_rate, "abstain_rate": self.abstain_rate}
        # Without a limit, everything is accepted and there is no number to report.
        bound = {"global_limit": limit} if limit < torch.finfo(torch.float64).max else {}
        return self.base.outcome(server) | {"policy": {"name": "switch", **about, **bound}}


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
        found = torch.zeros(linear_pool.WEIGHTS, dtype=torch.float64)
        if len(answers) == 2:
            found = linear_pool.curve(answers[Decision.LOCAL].probs, answers[Decision.GLOBAL].probs, y).cpu()
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
    """The base, whose silos answer with a weighted mean of both models' probabilities. Decision, p-values and all other
    scores come from the model with the larger weight."""

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
        """Return why `sent` cannot be likelihoods of a silo's validation inputs; "" if it can."""
        n, classes = card.examples["validation"], len(card.class_counts)
        found = (linear_pool.impossible(each, n, classes) for each in sent.get(GROUP, {}).values())
        return next((why for why in found if why), "")

    def settle(self, server: State, replies: Replies, context: SiloContext) -> State:
        """Set the best weight for all silos together."""
        means = replies.mean(GROUP)
        weight = linear_pool.shared_weight(means["likelihood"].double() * len(replies)) if means else 0.5
        return server | {GROUP: {"ready": torch.tensor(True), "weight": scalar(weight)}}

    def weight(self, down: Payload, state: State) -> float:
        """Return the weight of the silo's local model, or the federation's weight if the silo has measured nothing."""
        shared, own = float(down[GROUP]["weight"]), state.get(GROUP, {}).get("likelihood")
        return shared if own is None else linear_pool.own_weight(own, shared)

    def decide(self, down: Payload, state: State, answers: Answers) -> Prediction:
        if len(answers) == 1 or not down[GROUP]["ready"]:
            return self.base.decide(down, state, answers)
        return blend(answers, self.weight(down, state))

    def outcome(self, server: State) -> dict[str, object]:
        told = {"weight": float(server[GROUP]["weight"])} if self.shared else {}
        return self.base.outcome(server) | {"policy": {"name": "blend", **told}}


def blend(answers: Answers, weight: float) -> Prediction:
    """Return the mean of two answers with a `weight` for the local one.

    Total uncertainty is the entropy of the mean, aleatoric uncertainty is the mean of both, and epistemic uncertainty
    is the rest, which includes the disagreement of the models.
    """
    local, shared = answers[Decision.LOCAL], answers[Decision.GLOBAL]
    probs = weight * local.probs.double() + (1 - weight) * shared.probs.double()
    total = entropy(probs)
    aleatoric = weight * local.aleatoric + (1 - weight) * shared.aleatoric
    parts = {"total": total, "aleatoric": aleatoric, "epistemic": (total - aleatoric).clamp_min(0)}
    heavier = local if weight >= 0.5 else shared
    before = weight * local.uncalibrated.double() + (1 - weight) * shared.uncalibrated.double()
    return replace(heavier, probs=probs, uncertainty=heavier.uncertainty | parts, uncalibrated_probs=before)
