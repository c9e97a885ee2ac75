"""A guaranteed share of errors among the inputs that are answered: local, global or abstain by one tested limit.

Scores of both models are ranked among the silo's validation scores, which puts them on one scale. A silo sends 2J
counts of its calibration split; the server tests the limits of a fixed grid (`caveat.uncertainty.guarantee`), and
every silo gets the largest one that passed, or abstains from everything if none did.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core import Answers, Decision, Payload, Prediction, Replies, Round, Site, State, Update
from ..uncertainty.guarantee import Guarantee, fixed_sequence, policy_counts
from ..uncertainty.quantiles import ranks
from .base import Wrapper
from .switched import choose, scalar


@dataclass(frozen=True)
class Guaranteed(Wrapper):
    """The base, and a round after its last one in which silos count what each limit would answer, and how well."""

    score: str = "total"
    """The uncertainty to limit, a key of `Prediction.scores`."""
    risk: float = 0.05
    """Share of errors among answered inputs that is promised not to be exceeded."""
    confidence: float = 0.9
    """Probability, over calibration data, with which the promise holds."""

    def init_server(self, site: Site) -> State:
        unset = {"ready": torch.tensor(False), "limit": scalar(0.0), "counts": torch.zeros(2, 1, dtype=torch.float64)}
        return self.base.init_server(site) | {"decision": unset}

    def schedule(self) -> Iterable[Round]:
        yield from super().schedule()
        yield Round(self.broadcast, self.count, self.set_limit, everyone=True, trains=False, name="count")

    def broadcast(self, server: State) -> Payload:
        return self.base.broadcast(server) | {"decision": {k: server["decision"][k] for k in ("ready", "limit")}}

    def count(self, down: Payload, state: State, site: Site) -> tuple[Update, State]:
        """Keep the validation scores to rank with; send A and E, answered and wrong per limit, of the calibration."""
        x, y = site.calibration
        reference = self.base.answer(down, state, site, site.validation.x)
        kept = {whose.name.lower(): finite(answer.score(self.score)) for whose, answer in reference.items()}
        answers = self.base.answer(down, state, site, x)
        rank = {whose: self.rank(whose, kept, answer) for whose, answer in answers.items()}
        wrong = {whose: answer.label != y for whose, answer in answers.items()}
        local, federation = Decision.LOCAL, Decision.GLOBAL
        counts = policy_counts(rank.get(local), rank.get(federation), wrong.get(local), wrong.get(federation))
        return Update({"decision": {"counts": counts}}, len(y)), state | {"decision": kept}

    def set_limit(self, server: State, replies: Replies, site: Site) -> State:
        """Add up the silos' counts, and keep the largest limit that passes the tests."""
        counts = replies.stack("decision", "counts").sum(0)
        limit = self.guarantee(counts).limit
        set_ = {"ready": torch.tensor(True), "limit": scalar(0.0 if limit is None else limit), "counts": counts}
        return server | {"decision": set_}

    def guarantee(self, counts: Tensor) -> Guarantee:
        """What the (2, J) sums of the silos' counts guarantee."""
        return fixed_sequence(counts, self.risk, self.confidence)

    def decide(self, down: Payload, state: State, answers: Answers) -> Prediction:
        if not down["decision"]["ready"]:
            return self.base.decide(down, state, answers)
        kept = state.get("decision", {})
        within = {w: self.rank(w, kept, answer) <= down["decision"]["limit"] for w, answer in answers.items()}
        return choose(answers, within)

    def rank(self, whose: Decision, kept: dict[str, Tensor], answer: Prediction) -> Tensor:
        """(N,) ranks in (0, 1] among the scores that the silo has kept; infinite, beyond any limit, if it has none."""
        if whose.name.lower() not in kept:
            return torch.full((len(answer),), torch.inf)
        return ranks(kept[whose.name.lower()], answer.score(self.score))

    def outcome(self, server: State) -> dict[str, object]:
        policy = {"name": "guaranteed", "score": self.score, "risk": self.risk, "confidence": self.confidence}
        found = self.guarantee(server["decision"]["counts"])
        about = dataclasses.asdict(found) | {"coverage": found.coverage, "statement": found.statement}
        return self.base.outcome(server) | {
            "policy": policy,
            "guarantee": about | {"guaranteed": found.limit is not None},
        }


def finite(scores: Tensor) -> Tensor:
    """The scores that can be kept: NaN is left out, and an infinite score becomes the largest number there is."""
    return scores[~scores.isnan()].nan_to_num()
