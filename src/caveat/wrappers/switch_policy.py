"""Switching: the local model answers inputs that it knows, the global model other inputs that it knows, or neither
does.

Kotelevskii et al., Dirichlet-Based Uncertainty Quantification for Personalized Federated Learning with Improved
Posterior Networks, IJCAI 2024, sections 2.2 and 4.2, for any score of any method. Thresholds are conformal quantiles of
calibration data: the silo's own data for its local model, and all silos' data for the global model, which answers
inputs that other silos know. A method with one model answers with it or abstains.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core import Answers, Decision, Payload, Prediction, Reason, Replies, Round, SiloContext, State, SumOver, Update
from ..core.silo import SiloInfo
from ..uncertainty.histograms import finite_sample_quantile, histogram, quantile
from .base import Wrapper, no_histograms


def choose(answers: Answers, within: Mapping[Decision, Tensor], reason: Reason = Reason.UNCERTAIN) -> Prediction:
    """Return the local answer if it is `within`, (N,) bool, else the global one if it is; otherwise abstain for
    `reason`.

    With one model, return its answer or abstain.
    """
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
            sums=SumOver("calibration", self.wrong),
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
        """Return why this cannot be a histogram of a silo's calibration inputs."""
        return no_histograms(sent.get("decision", {}), card.examples["calibration"])

    def settle(self, server: State, replies: Replies, context: SiloContext) -> State:
        """Sum the silos' histograms, and keep the global model's threshold."""
        counts = [u.payload["decision"]["scores"] for u in replies.updates.values() if u.payload["decision"]]
        limit = quantile(self.score, torch.stack(counts).sum(0), 1 - self.abstain_rate) if counts else torch.inf
        return server | {"decision": {"ready": torch.tensor(True), "limit": scalar(limit)}}

    def decide(self, down: Payload, state: State, answers: Answers) -> Prediction:
        if not down["decision"]["ready"]:
            return self.base.decide(down, state, answers)
        within = {whose: self.within(whose, down, state, answer) for whose, answer in answers.items()}
        chosen = choose(answers, within)
        # Do not ask the other model: the first one knows the input well, and it is ambiguous.
        return chosen.abstaining(chosen.aleatoric > self.max_aleatoric, Reason.AMBIGUOUS)

    def within(self, whose: Decision, down: Payload, state: State, answer: Prediction) -> Tensor:
        """Return (N,) whether an answer is within its threshold, ties included, and has no alarm; NaN is not within.

        An input for which the local model raises an alarm is passed to the global model. So only the last model
        abstains for alarms, and the rate of false alarms is that of one model.
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
