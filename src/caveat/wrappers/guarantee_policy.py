"""A guaranteed bound on errors among answered inputs: local, global or abstain by one tested limit.

After the base's last round come two. In the first, silos send histograms of their validation scores, whose quantiles
rank the scores of all silos of a group on one scale, model by model. In the second they count on their calibration
split what each limit of a grid would answer, and how many wrongly; the limits of the grid are tested
(`caveat.uncertainty.guarantee`), and silos get the largest that passed, or abstain from everything if none did.

Whom a guarantee covers depends only on `guarantee_scope` and on numbers of calibration inputs, before any label is
used: a silo has its own, tested at the silo on its own counts, which need not leave it; or that of its domain, or that
of the federation. What a method decides by is fixed before the calibration split is used, so the tests are valid.
"""

import dataclasses
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

import torch
from torch import Tensor

from ..core import Answers, Decision, Payload, Prediction, Replies, Round, SiloContext, State, SumOver, Tensors, Update
from ..core.silo import SiloInfo
from ..uncertainty.guarantee import GRID, Guarantee, answers_needed, fixed_sequence, policy_counts, ranks, score_edges
from ..uncertainty.histograms import BINS, histogram
from .base import Wrapper, no_counts, no_histograms
from .switch_policy import choose, nowhere, scalar

GuaranteeScope = Literal["federation", "domain", "silo"]
"""The smallest group that gets its own guarantee."""
CODE = 4
"""Length of a domain's code."""


class Whose(IntEnum):
    """The group whose guarantee a silo has."""

    FEDERATION = 0
    """Of all silos together that have no smaller group's."""
    DOMAIN = 1
    """Pooled over the silos of its domain that have none of their own."""
    SILO = 2
    """Its own."""


NOBODY = -1.0
"""Stands for a silo without a guarantee, because it took no part in the counts."""
MIXED = "together, mixed as their calibration inputs are, not this silo by itself"
ABOUT = {
    Whose.FEDERATION: f"all silos like it {MIXED}",
    Whose.DOMAIN: f"the silos like it of its domain {MIXED}",
    Whose.SILO: "this silo by itself",
}


def domain_code(name: str) -> Tensor:
    """Return (4,) int64 from 0 to 65535: the code of a domain in messages, equal for equal names."""
    digest = hashlib.sha256(name.encode()).digest()
    return torch.tensor([int.from_bytes(digest[2 * i : 2 * i + 2], "big") for i in range(CODE)])


def row_of(code: Tensor, domains: Tensor) -> int:
    """Return the row of a domain's code (4,) among codes (G, 4), whose first row is the federation's; 0 if it is not
    there.
    """
    found = (domains.cpu() == code.cpu()).all(-1).nonzero().flatten().tolist()
    return int(found[0]) if found else 0


def members(codes: Tensor, domains: Tensor) -> Tensor:
    """Return (G, K) float64: whether silo k, of codes (K, 4), belongs to group g; all belong to the first, the
    federation.
    """
    belongs = (domains[:, None] == codes[None]).all(-1)
    belongs[0] = True
    return belongs.double()


def known_domains(codes: Tensor) -> Tensor:
    """Return (G, 4): a row of -1 for the federation, then the distinct codes (K, 4) of its silos, ascending."""
    return torch.tensor([[-1] * CODE, *sorted({tuple(code) for code in codes.tolist()})])


NUMBERS = ("limit", "answered", "errors", "total", "upper", "needed", "enough", "enough_share")
"""What a silo reports of its guarantee: fields of `Guarantee`, with limit 0 for none."""
FRACTIONS = frozenset({"limit", "upper", "enough_share"})


@dataclass(frozen=True)
class Rule:
    """What a silo decides by: edges to rank scores by, a limit, its counts, and whom the guarantee covers."""

    whose: Whose
    edges: Tensors
    limit: Tensor
    counts: Tensor
    total: Tensor


@dataclass(frozen=True)
class Guaranteed(Wrapper):
    """The base, and two rounds after its last one: ranks of validation scores, and counts on calibration splits."""

    score: str = "total"
    """The uncertainty to limit, a key of `Prediction.scores`."""
    risk: float = 0.05
    """Guaranteed maximum share of errors among answered inputs."""
    confidence_level: float = 0.9
    """Probability, over calibration data, with which the guarantee holds."""
    guarantee_scope: GuaranteeScope = "federation"
    """Who has its own guarantee, given enough calibration inputs."""
    familywise: bool = False
    """Whether all guarantees hold simultaneously at that confidence level, rather than each by itself."""

    @property
    def names(self) -> list[str]:
        """The names of the base's models."""
        return [whose.name.lower() for whose in self.models]

    @property
    def least(self) -> int:
        """The number of calibration inputs with which a group gets its own guarantee: it allows for one error."""
        return answers_needed(1, self.risk, 1 - self.confidence_level)

    def init_server(self, context: SiloContext) -> State:
        none = torch.zeros(1, BINS, dtype=torch.float64)
        unset = {
            "ready": torch.tensor(False),
            "promises": scalar(1.0),
            "domains": known_domains(torch.zeros(0, 4, dtype=torch.long)),
            "summed": torch.zeros(1, 2, GRID, dtype=torch.float64),
            "totals": torch.zeros(1, dtype=torch.float64),
            "limits": torch.zeros(1, dtype=torch.float64),
        }
        return self.base.init_server(context) | {"decision": unset | self.edges(dict.fromkeys(self.names, none))}

    def schedule(self) -> Iterable[Round]:
        yield from super().schedule()
        yield Round(
            self.broadcast, self.survey, self.set_edges, everyone=True, trains=False, name="survey",
            sums=SumOver("validation", self.wrong_survey),
        )  # fmt: skip
        yield Round(
            self.broadcast, self.count, self.set_limits, everyone=True, trains=False, name="count",
            sums=SumOver("calibration", self.wrong_count),
        )  # fmt: skip

    def broadcast(self, server: State) -> Payload:
        return self.base.broadcast(server) | {"decision": server["decision"]}

    def survey(self, down: Payload, state: State, context: SiloContext) -> tuple[Update, State]:
        """Send a histogram of each model's validation scores; keep what ranks the silo's own."""
        answers = {w.name.lower(): a for w, a in self.base.answer(down, state, context, context.validation.x).items()}
        found = {
            name: histogram(self.score, answers[name].score(self.score))
            if name in answers
            else torch.zeros(BINS, dtype=torch.float64)
            for name in self.names
        }
        own = self.guarantee_scope == "silo" or context.joins
        kept = self.edges({name: each[None] for name, each in found.items()}) if own else {}
        sent = self.sent(context) | {f"scores.{name}": each for name, each in found.items()}
        return Update({"decision": sent}, len(context.validation)), state | {"decision": kept}

    def wrong_survey(self, sent: Payload, card: SiloInfo) -> str:
        """Return why these cannot be histograms of a silo's validation scores."""
        scores = {name: each for name, each in sent.get("decision", {}).items() if name.startswith("scores.")}
        return no_histograms(scores, card.examples["validation"])

    def wrong_count(self, sent: Payload, card: SiloInfo) -> str:
        """Return why these cannot be counts of a silo's calibration inputs, which grow with the limit."""
        n = card.examples["calibration"]
        for answered, errors in sent.get("decision", {}).get("counts", torch.zeros(0, 2, GRID)):
            fits = no_counts("answered", answered.diff(prepend=answered.new_zeros(1)), n)
            if fits or bool(((errors < 0) | (errors > answered) | (errors != errors.floor())).any()):
                return f"counts that are impossible with {n:,} calibration inputs"
        return ""

    def sent(self, context: SiloContext) -> Tensors:
        """Return the code of the silo's domain if the server needs it."""
        return {} if self.guarantee_scope == "federation" else {"domain": domain_code(context.domain)}

    def edges(self, scores: Mapping[str, Tensor]) -> Tensors:
        """Return what ranks the scores of each model: (G, J) edges from (G, 4096) histograms."""
        return {f"edges.{name}": torch.stack([score_edges(self.score, row) for row in each]) for name, each in
                scores.items()}  # fmt: skip

    def set_edges(self, server: State, replies: Replies, context: SiloContext) -> State:
        """Sum the histograms of each group."""
        domains = known_domains(torch.zeros(0, 4, dtype=torch.long))
        belongs = torch.ones(1, len(replies), dtype=torch.float64)
        if self.guarantee_scope != "federation":
            codes = replies.stack("decision", "domain")
            domains = known_domains(codes)
            belongs = members(codes, domains)
        groups = {"federation": 1, "domain": len(domains) - 1, "silo": max(replies.population, len(replies))}
        edges = self.edges({name: belongs @ replies.stack("decision", f"scores.{name}") for name in self.names})
        unset = {
            "promises": scalar(float(groups[self.guarantee_scope] if self.familywise else 1)),
            "domains": domains,
            "summed": torch.zeros(len(domains), 2, GRID, dtype=torch.float64),
            "totals": torch.zeros(len(domains), dtype=torch.float64),
            "limits": torch.zeros(len(domains), dtype=torch.float64),
        }
        return server | {"decision": {"ready": server["decision"]["ready"]} | unset | edges}

    def count(self, down: Payload, state: State, context: SiloContext) -> tuple[Update, State]:
        """Send the answered and wrong calibration inputs per limit; keep the silo's own guarantee."""
        x, y = context.calibration
        group, own = down["decision"], state.get("decision", {})
        answers = {w: among_others(a, len(y)) for w, a in self.base.answer(down, state, context, x).items()}
        row = row_of(domain_code(context.domain), group["domains"])
        sent = torch.stack([self.counts(at(group, each), answers, y) for each in ([0, row] if row else [0])])
        if self.guarantee_scope != "federation" and not row:
            sent = torch.cat([sent, torch.zeros_like(sent)])
        kept = {"domain": domain_code(context.domain), "promises": group["promises"]}
        if f"edges.{self.names[0]}" in own and len(y) >= self.least:
            counts = self.counts(at(own, 0), answers, y)
            limit = self.guarantee(counts, len(y), group["promises"]).limit
            kept |= own | {"summed": counts[None], "totals": scalar(len(y))[None], "limits": scalar(limit or 0.0)[None]}
            sent = torch.zeros_like(sent)  # group guarantees are for silos that need them
        elif context.joins:
            kept = {}  # the guarantees were tested without it
        needs = torch.tensor("limits" not in kept)
        update = Update({"decision": self.sent(context) | {"counts": sent, "needs": needs}}, len(y))
        return update, state | {"decision": kept}

    def counts(self, edges: Tensors, answers: Answers, y: Tensor) -> Tensor:
        """Return (2, J): what each limit answers, and how much of it is wrong."""
        rank = {whose: self.rank(edges, whose, answer) for whose, answer in answers.items()}
        wrong = {whose: answer.label != y for whose, answer in answers.items()}
        local, federation = Decision.LOCAL, Decision.GLOBAL
        return policy_counts(rank.get(local), rank.get(federation), wrong.get(local), wrong.get(federation))

    def rank(self, edges: Tensors, whose: Decision, answer: Prediction) -> Tensor:
        """Return (N,) ranks of a model's answers, to compare with limits; infinite for unfamiliar inputs, which none
        answers.

        Both counts and decisions use it, so what is counted is what is decided.
        """
        rank = ranks(edges[whose.name.lower()], answer.score(self.score))
        return rank.masked_fill(answer.is_unfamiliar, torch.inf)

    def set_limits(self, server: State, replies: Replies, context: SiloContext) -> State:
        """Sum the counts of each group, and keep the largest limit that passes the tests."""
        decision = server["decision"]
        counts = replies.stack("decision", "counts")
        sizes = torch.tensor([float(update.examples) for update in replies.updates.values()], dtype=torch.float64)
        sizes = sizes * replies.stack("decision", "needs")
        summed, totals = counts[:, 0].sum(0)[None], sizes.sum()[None]
        if self.guarantee_scope != "federation":
            belongs = members(replies.stack("decision", "domain"), decision["domains"])
            totals = belongs @ sizes
            # The federation's guarantee is tested on the silos that will have it, not on domains that have their own.
            belongs[0] = 1 - belongs[1:][totals[1:] >= self.least].sum(0)
            totals = belongs @ sizes
            summed = torch.einsum("k,kij->ij", belongs[0], counts[:, 0])[None]
            summed = torch.cat([summed, torch.einsum("gk,kij->gij", belongs[1:], counts[:, 1])])
        found = [self.guarantee(c, int(n), decision["promises"]) for c, n in zip(summed, totals, strict=True)]
        limits = torch.tensor([each.limit or 0.0 for each in found], dtype=torch.float64)
        set_ = {"ready": torch.tensor(True), "summed": summed, "totals": totals, "limits": limits}
        return server | {"decision": decision | set_}

    def guarantee(self, counts: Tensor, total: int, promises: Tensor) -> Guarantee:
        """Return what the (2, J) counts of so many inputs guarantee, as one of so many guarantees."""
        found = fixed_sequence(counts, self.risk, 1 - (1 - self.confidence_level) / float(promises), total=total)
        return dataclasses.replace(found, confidence_level=self.confidence_level)

    def promise(self, down: Payload, state: State) -> Rule | None:
        """Return what a silo decides by; None if it was not counted and has no guarantee."""
        kept, group = state.get("decision", {}), down["decision"]
        if "domain" not in kept:
            return None
        if "limits" in kept:
            return promise(Whose.SILO, kept, 0)
        row = row_of(kept["domain"], group["domains"])
        own = row and group["totals"][row] >= self.least
        return promise(Whose.DOMAIN, group, row) if own else promise(Whose.FEDERATION, group, 0)

    def decide(self, down: Payload, state: State, answers: Answers) -> Prediction:
        if not down["decision"]["ready"]:
            return self.base.decide(down, state, answers)
        by = self.promise(down, state)
        if by is None:
            return choose(answers, nowhere(answers))
        return choose(answers, {w: self.rank(by.edges, w, answer) <= by.limit for w, answer in answers.items()})

    def describe(self, down: Payload, state: State, context: SiloContext, x: Tensor) -> Tensors:
        """Add the silo's guarantee to the base's numbers, if silos have different ones."""
        described = self.base.describe(down, state, context, x)
        if not down["decision"]["ready"] or self.guarantee_scope == "federation":
            return described
        by, own = self.promise(down, state), scalar(len(context.calibration))
        told = {"whose": scalar(NOBODY), "own": own, "found": torch.zeros(len(NUMBERS), dtype=torch.float64)}
        if by is not None:
            found = self.guarantee(by.counts, int(by.total), down["decision"]["promises"])
            numbers = [float(getattr(found, name) or 0) for name in NUMBERS]
            told |= {"whose": scalar(float(by.whose)), "found": torch.tensor(numbers, dtype=torch.float64)}
        return described | {f"promise.{name}": each for name, each in told.items()}

    def summarize(self, sums: Mapping[str, Tensor]) -> dict[str, object]:
        found = self.base.summarize(sums)
        if sums.get("promise.whose", NOBODY) == NOBODY:
            return found
        whose, own = Whose(int(sums["promise.whose"])), int(sums["promise.own"])
        numbers = dict(zip(NUMBERS, sums["promise.found"].tolist(), strict=True))
        whole = {name: int(value) for name, value in numbers.items() if name not in FRACTIONS}
        limit = numbers["limit"] or None
        granted = Guarantee(
            **numbers | whole | {"limit": limit, "risk": self.risk, "confidence_level": self.confidence_level}
        )
        few = f" (its {own:,} calibration inputs are fewer than the {self.least:,} needed for its own guarantee)"
        who = f"for {ABOUT[whose]}{few if whose < Whose[self.guarantee_scope.upper()] else ''}"
        statement = f"{who}: {granted.statement}, {self.together}"
        return found | {"promise": self.about(granted) | {"whose": whose.name.lower(), "statement": statement}}

    @property
    def together(self) -> str:
        """What the confidence level covers."""
        return "for all guarantees at once" if self.familywise else "for each guarantee by itself"

    def about(self, found: Guarantee) -> dict[str, object]:
        """Return a guarantee as summary entries."""
        known = dataclasses.asdict(found) | {"coverage": found.coverage, "statement": found.statement}
        return known | {"guaranteed": found.limit is not None}

    def outcome(self, server: State) -> dict[str, object]:
        decision = server["decision"]
        policy = {
            "name": "guaranteed",
            "score": self.score,
            "risk": self.risk,
            "confidence_level": self.confidence_level,
        }
        about = self.about(self.guarantee(decision["summed"][0], int(decision["totals"][0]), decision["promises"]))
        if self.guarantee_scope != "federation":
            policy |= {"guarantee_scope": self.guarantee_scope, "familywise": self.familywise}
            largest = f"the largest of which {about['statement']}" if decision["totals"][0] else "which no silo has"
            about["statement"] = (
                f"every {self.guarantee_scope} has its own guarantee, at {100 * self.confidence_level:.6g} % confidence"
                f" {self.together}; with fewer than {self.least:,} calibration inputs, that of a group of such silos, "
                f"{largest}"
            )
        return self.base.outcome(server) | {"policy": policy, "guarantee": about}


def at(group: Tensors, row: int) -> Tensors:
    """Return the edges of one group, by model."""
    return {name.removeprefix("edges."): each[row] for name, each in group.items() if name.startswith("edges.")}


def promise(whose: Whose, group: Tensors, row: int) -> Rule:
    return Rule(whose, at(group, row), group["limits"][row], group["summed"][row], group["totals"][row])


def among_others(answer: Prediction, inputs: int) -> Prediction:
    """Return the answer to calibration inputs as if each were new: it was ranked among them, and so with itself."""
    if answer.familiarity is None:
        return answer
    return dataclasses.replace(answer, familiarity=answer.familiarity - 1 / (inputs + 1))
