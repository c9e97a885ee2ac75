"""Switching: a silo's own model where it knows the input, the federation's where it does not, or neither.

Kotelevskii et al., Dirichlet-Based Uncertainty Quantification for Personalized Federated Learning with Improved
Posterior Networks, IJCAI 2024, sections 2.2 and 4.2, for any score of any method. Thresholds are conformal quantiles
of calibration data: of the silo's own for its own model, of all silos together for the federation's model, since that
one is asked about what other silos know. Where a method has one model, the rule is to ask it or to abstain.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core import Answers, Decision, Payload, Prediction, Replies, Round, SiloContext, State, SumOver, Update
from ..core.silo import SiloInfo
from ..uncertainty.histograms import finite_sample_quantile, histogram, quantile
from .base import Wrapper, no_histograms


def choose(answers: Answers, within: Mapping[Decision, Tensor]) -> Prediction:
    """The local answer where it is `within`, (N,) bool, else the global one, and abstention where that is not either.

    Where there is one model, its answer or abstention.
    """
    if len(answers) == 1:
        (whose,) = answers
        chosen, trusted = answers[whose], within[whose]
    else:
        known = within[Decision.LOCAL]
        chosen = answers[Decision.LOCAL].where(known, answers[Decision.GLOBAL])
        trusted = known | within[Decision.GLOBAL]
    return chosen.abstaining(~trusted)


def nowhere(answers: Answers) -> dict[Decision, Tensor]:
    """(N,) for each model that none of its answers is within a limit."""
    return {whose: torch.zeros_like(answer.decision, dtype=torch.bool) for whose, answer in answers.items()}


def scalar(value: float) -> Tensor:
    """A threshold as a float64 scalar. What is kept and sent has to be finite: infinity becomes the largest number."""
    return torch.tensor(value, dtype=torch.float64).nan_to_num()


@dataclass(frozen=True)
class Switched(Wrapper):
    """The base, and a round after its last one in which silos set their thresholds."""

    score: str = "total"
    """The uncertainty to compare with thresholds, a key of `Prediction.scores`."""
    handover_rate: float = 0.1
    """Share of its own data that a silo's own model may be too unsure of."""
    abstain_rate: float = 0.05
    """Share of calibration data that the model asked last may be too unsure of; 0 never abstains."""
    max_aleatoric: float = torch.inf
    """Nats of aleatoric uncertainty above which no answer is trusted: the input has no one label."""

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
        """Keep the own model's threshold; send counts of how the federation's model scores the calibration split."""
        answers = self.base.answer(down, state, context, context.calibration.x)
        kept, sent = {}, {}
        if Decision.LOCAL in answers:
            level = 1 - (self.handover_rate if Decision.GLOBAL in answers else self.abstain_rate)
            kept["limit"] = scalar(finite_sample_quantile(answers[Decision.LOCAL].score(self.score), level))
        if Decision.GLOBAL in answers:
            sent["scores"] = histogram(self.score, answers[Decision.GLOBAL].score(self.score))
        return Update({"decision": sent}, len(context.calibration)), state | {"decision": kept}

    def wrong(self, sent: Payload, card: SiloInfo) -> str:
        """Why this is no histogram of a silo's calibration inputs."""
        return no_histograms(sent.get("decision", {}), card.examples["calibration"])

    def settle(self, server: State, replies: Replies, context: SiloContext) -> State:
        """Add up the silos' histograms, and keep the threshold of the federation's model."""
        counts = [u.payload["decision"]["scores"] for u in replies.updates.values() if u.payload["decision"]]
        limit = quantile(self.score, torch.stack(counts).sum(0), 1 - self.abstain_rate) if counts else torch.inf
        return server | {"decision": {"ready": torch.tensor(True), "limit": scalar(limit)}}

    def decide(self, down: Payload, state: State, answers: Answers) -> Prediction:
        if not down["decision"]["ready"]:
            return self.base.decide(down, state, answers)
        within = {whose: self.within(whose, down, state, answer) for whose, answer in answers.items()}
        chosen = choose(answers, within)
        # Not a reason to ask the other model: the first one knows the input well, and that it has no one label.
        return chosen.abstaining(chosen.is_unfamiliar | (chosen.aleatoric > self.max_aleatoric))

    def within(self, whose: Decision, down: Payload, state: State, answer: Prediction) -> Tensor:
        """(N,) whether an answer is within its threshold, ties included; a score that is NaN is not."""
        group = state.get("decision", {}) if whose is Decision.LOCAL else down["decision"]
        # A silo that was not there when thresholds were set has none of its own, and asks the federation.
        limit = group.get("limit", torch.tensor(-torch.inf))
        return answer.score(self.score) <= limit

    def outcome(self, server: State) -> dict[str, object]:
        limit = float(server["decision"]["limit"])
        about = {"score": self.score, "handover_rate": self.handover_rate, "abstain_rate": self.abstain_rate}
        # No limit is no number: as many scores as there are accept everything.
        bound = {"global_limit": limit} if limit < torch.finfo(torch.float64).max else {}
        return self.base.outcome(server) | {"policy": {"name": "switch", **about, **bound}}
