"""A guaranteed bound on errors among answered inputs: a tested limit decides between local, global and abstaining.

Two rounds follow the base's last one. In the first, silos send histograms of their validation scores, whose quantiles
rank the scores of all silos of a group on one scale, model by model. In the second, they count on their calibration
split how many inputs each limit of a grid would answer, and how many wrongly. The limits are tested
(`caveat.uncertainty.selective_risk`), and silos get the largest that passed, or abstain from everything if none did.

Which silos a guarantee covers depends only on `guarantee_scope` and on numbers of calibration inputs, before any label
is used. A silo has its own guarantee, tested at the silo on its own counts, which need not leave it; or the guarantee
of its domain; or the guarantee of the federation. Everything that decisions depend on is fixed before the calibration
split is used, so the tests are valid.

With subgroups of inputs (`caveat.uncertainty.mondrian`), a group of silos has a limit for all of its inputs together,
which applies to inputs without a subgroup, and one for each pool of subgroups. A silo sends its numbers of calibration
inputs by subgroup with the histograms, so pools are known before anything is counted.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from ..core import Answers, Decision, Payload, Prediction, Replies, Round, SiloContext, State, SumOver, Tensors, Update
from ..core.prediction import Reason
from ..core.silo import SiloInfo
from ..uncertainty import mondrian as by_subgroup
from ..uncertainty import selective_risk
from ..uncertainty.histograms import BINS, histogram
from ..uncertainty.selective_risk import GRID, Guarantee, answers_needed, fixed_sequence, policy_counts, ranks
from .alarms import among_others
from .base import Wrapper, apart, asked, no_counts, no_histograms
from .choice_policies import choose, nowhere, scalar
from .guarantee_groups import (
    ABOUT,
    FRACTIONS,
    NOBODY,
    NUMBERS,
    Rule,
    Whose,
    at,
    by_pool,
    domain_code,
    entries,
    known_domains,
    members,
    row_of,
)  # fmt: skip

GuaranteeScope = Literal["federation", "domain", "silo"]
"""The smallest group that gets its own guarantee."""


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
    """Which groups of silos have their own guarantees, given enough calibration inputs."""
    familywise: bool = False
    """Whether all guarantees hold simultaneously at that confidence level, rather than individually."""
    subgroups: tuple[str, ...] = ()
    """Names of the subgroups of inputs that have their own guarantees, given enough calibration inputs."""
    tolerance: float | None = None
    """For a quantity: the largest error with which a median still counts as correct."""

    @property
    def names(self) -> list[str]:
        """The names of the base's models."""
        return [whose.name.lower() for whose in self.models]

    @property
    def least(self) -> int:
        """The number of calibration inputs that a group needs for its own guarantee, which allows for one error."""
        return answers_needed(1, self.risk, 1 - self.confidence_level)

    @property
    def additive(self) -> bool:
        """Whether sums over all silos suffice; groups of silos need each silo's own numbers."""
        return self.guarantee_scope == "federation"

    @property
    def rows(self) -> int:
        """Number of rows of a group of silos: all inputs together, and each subgroup."""
        return 1 + len(self.subgroups)

    def init_server(self, context: SiloContext) -> State:
        none = torch.zeros(self.rows, BINS, dtype=torch.float64)
        known = {"ready": torch.tensor(False), "promises": scalar(1.0)}
        known |= self.unset(known_domains(torch.zeros(0, 4, dtype=torch.long)))
        return self.base.init_server(context) | {"decision": known | self.edges(dict.fromkeys(self.names, none))}

    def unset(self, domains: Tensor) -> Tensors:
        """Return the state of groups before limits are tested; G groups have G times `rows` rows."""
        count = len(domains) * self.rows
        found = {
            "domains": domains,
            "summed": torch.zeros(count, 2, GRID, dtype=torch.float64),
            "totals": torch.zeros(count, dtype=torch.float64),
            "limits": torch.zeros(count, dtype=torch.float64),
        }
        pools = {"pools": torch.zeros(len(domains), len(self.subgroups), dtype=torch.long)}
        return found | (pools if self.subgroups else {})

    def schedule(self) -> Iterable[Round]:
        yield from super().schedule()
        yield Round(
            self.broadcast, self.survey, self.set_edges, everyone=True, trains=False, name="survey",
            totals=self.additive, sums=SumOver("validation", self.wrong_survey),
        )  # fmt: skip
        yield Round(
            self.broadcast, self.count, self.set_limits, everyone=True, trains=False, name="count",
            totals=self.additive, sums=SumOver("calibration", self.wrong_count),
        )  # fmt: skip

    def broadcast(self, server: State) -> Payload:
        return self.base.broadcast(server) | {"decision": server["decision"]}

    def survey(self, down: Payload, state: State, context: SiloContext) -> tuple[Update, State]:
        """Send a histogram of each model's validation scores; keep the edges that rank the silo's own scores."""
        answers = {w.name.lower(): a for w, a in asked(self.base, down, state, context, "validation").items()}
        none = torch.zeros(self.rows, BINS, dtype=torch.float64)
        found = {name: self.histograms(answers[name]) if name in answers else none for name in self.names}
        own = self.guarantee_scope == "silo" or context.joins
        n, of = len(context.calibration), context.subgroups.get("calibration")
        sizes = torch.cat([torch.tensor([float(n)]).double(), by_subgroup.sizes(of, len(self.subgroups))])
        kept: Tensors = {}
        if own:
            pool = by_subgroup.pools(sizes[1:], self.least)
            sizes = torch.zeros_like(sizes) if n >= self.least else sizes  # consistent with the counts
            kept = self.edges({name: by_subgroup.pooled(each, pool) for name, each in found.items()})
            kept |= {"pools": pool[None]} if self.subgroups else {}
        sent = {f"scores.{name}": self.plain(each) for name, each in found.items()}
        sent |= self.sent(context) | ({"sizes": sizes} if self.subgroups else {})
        return Update({"decision": sent}, len(context.validation)), state | {"decision": kept}

    def histograms(self, answer: Prediction) -> Tensor:
        """Return the (R, 4096) histograms of a model's scores by row."""
        scores, of = answer.score(self.score), answer.subgroup
        parts = [scores[of == number] if of is not None else scores[:0] for number in range(len(self.subgroups))]
        return torch.stack([histogram(self.score, each) for each in (scores, *parts)])

    def plain(self, by_row: Tensor) -> Tensor:
        """Return numbers by row as they are sent: without the axis of rows if there are no subgroups."""
        return by_row if self.subgroups else by_row[0]

    def wrong_survey(self, sent: Payload, card: SiloInfo) -> str:
        """Return why `sent` cannot be histograms of validation scores and sizes of subgroups; "" if it can."""
        found = sent.get("decision", {})
        scores = {name: each for name, each in found.items() if name.startswith("scores.")}
        if self.subgroups:
            scores = {part: each for name, by_row in scores.items() for part, each in apart(name, by_row).items()}
        sizes = apart("sizes", found["sizes"]) if "sizes" in found else {}
        why = no_histograms(sizes, card.examples["calibration"])
        return why or no_histograms(scores, card.examples["validation"])

    def wrong_count(self, sent: Payload, card: SiloInfo) -> str:
        """Return why `sent` cannot be counts of a silo's calibration inputs, by limit; "" if it can."""
        n = card.examples["calibration"]
        inputs = sent.get("decision", {}).get("inputs", torch.zeros(0))
        possible = bool(((inputs >= 0) & (inputs <= n) & (inputs == inputs.floor())).all())
        if not possible or inputs[:1].tolist() not in ([0], [n]):
            return f"numbers of inputs that are impossible with {n:,} calibration inputs"
        for answered, errors in sent.get("decision", {}).get("counts", torch.zeros(0, 2, GRID)):
            fits = no_counts("answered", answered.diff(prepend=answered.new_zeros(1)), n)
            if fits or bool(((errors < 0) | (errors > answered) | (errors != errors.floor())).any()):
                return f"counts that are impossible with {n:,} calibration inputs"
        return ""

    def sent(self, context: SiloContext) -> Tensors:
        """Return the code of the silo's domain if the server needs it."""
        return {} if self.additive else {"domain": domain_code(context.domain)}

    def edges(self, scores: Mapping[str, Tensor]) -> Tensors:
        """Return the edges that rank the scores of each model: (G, J) from (G, 4096) histograms."""
        return {f"edges.{name}": torch.stack([selective_risk.score_edges(self.score, row) for row in each])
                for name, each in scores.items()}  # fmt: skip

    def set_edges(self, server: State, replies: Replies, context: SiloContext) -> State:
        """Sum the histograms of each group, and pool its subgroups by their numbers of calibration inputs."""
        codes = torch.zeros(0, 4, dtype=torch.long) if self.additive else replies.stack("decision", "domain")
        domains = known_domains(codes)
        belongs = None if self.additive else members(codes, domains)
        groups = {"federation": 1, "domain": len(domains) - 1, "silo": max(replies.population, len(replies))}
        unset = self.unset(domains)
        if self.subgroups:
            tested = None if belongs is None else self.without_own(belongs, replies.stack("decision", "sizes")[:, 0])
            sizes = self.by_group(replies, "sizes", tested)[:, 1:]
            unset["pools"] = torch.stack([by_subgroup.pools(each, self.least) for each in sizes])
        scores = {}
        for name in self.names:
            summed = self.by_group(replies, f"scores.{name}", belongs).view(len(domains), self.rows, BINS)
            each = [by_subgroup.pooled(one, self.pool(unset, g)) for g, one in enumerate(summed)]
            scores[name] = torch.cat(each)
        unset["promises"] = scalar(float(groups[self.guarantee_scope] * self.rows if self.familywise else 1))
        return server | {"decision": {"ready": server["decision"]["ready"]} | unset | self.edges(scores)}

    def by_group(self, replies: Replies, name: str, belongs: Tensor | None) -> Tensor:
        """Return the sums of what silos sent in each group of silos, (G, ...), or in all of them, (1, ...)."""
        if belongs is None:
            return replies.total("decision", name)[None]
        return torch.einsum("gk,k...->g...", belongs, replies.stack("decision", name))

    def without_own(self, belongs: Tensor, sizes: Tensor) -> Tensor:
        """Return the silos on which each group's guarantee is tested, (G, K), given their numbers (K,) of calibration
        inputs. The federation's guarantee is tested on the silos that will have it, not on domains with their own."""
        rest = 1 - belongs[1:][(belongs @ sizes)[1:] >= self.least].sum(0)
        return torch.cat([rest[None], belongs[1:]])

    def pool(self, group: Tensors, number: int) -> Tensor:
        """Return the (G,) pools of subgroups of a group of silos."""
        return group["pools"][number] if self.subgroups else torch.zeros(0, dtype=torch.long)

    def count(self, down: Payload, state: State, context: SiloContext) -> tuple[Update, State]:
        """Send the answered and wrong calibration inputs per limit; keep the silo's own guarantee."""
        y, group, own = context.truth("calibration"), down["decision"], state.get("decision", {})
        answers = {w: among_others(a) for w, a in asked(self.base, down, state, context, "calibration").items()}
        number = row_of(domain_code(context.domain), group["domains"])
        found = [self.counted(group, each, answers, y) for each in ([0, number] if number else [0])]
        sent, sizes = (torch.cat(each) for each in zip(*found, strict=True))
        if self.guarantee_scope != "federation" and not number:
            sent, sizes = (torch.cat([each, torch.zeros_like(each)]) for each in (sent, sizes))
        kept = {"domain": domain_code(context.domain), "promises": group["promises"]}
        if f"edges.{self.names[0]}" in own and len(y) >= self.least:
            counts, totals = self.counted(own, 0, answers, y)
            kept |= own | {"summed": counts, "totals": totals, "limits": self.limits(counts, totals, group["promises"])}
            sent, sizes = torch.zeros_like(sent), torch.zeros_like(sizes)  # not counted in a group
        elif context.joins:
            kept = {}  # the guarantees were tested without this silo
        told = {"decision": self.sent(context) | {"counts": sent, "inputs": sizes}}
        return Update(told, len(y)), state | {"decision": kept}

    def counted(self, group: Tensors, number: int, answers: Answers, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return the counts (R, 2, J) of calibration inputs by the edges of a group, and the numbers (R,) of inputs."""
        of = next(iter(answers.values())).subgroup
        row = by_subgroup.rows(of, self.pool(group, number))
        chosen = [None] + [torch.zeros_like(y, dtype=torch.bool) if row is None else row == k
                           for k in range(1, self.rows)]  # fmt: skip
        parts = [self.counts(at(group, number * self.rows + k), answers, y, rows) for k, rows in enumerate(chosen)]
        sizes = [float(len(y) if rows is None else rows.sum()) for rows in chosen]
        return torch.stack(parts), torch.tensor(sizes, dtype=torch.float64)

    def counts(self, edges: Tensors, answers: Answers, y: Tensor, rows: Tensor | None = None) -> Tensor:
        """Return (2, J): how many inputs (all, or only `rows`) each limit answers, and how many of them wrongly."""
        rank = {whose: self.rank(edges, whose, answer) for whose, answer in answers.items()}
        most = self.tolerance
        wrong = {w: each.label != y if most is None else (each.value - y).abs() > most for w, each in answers.items()}
        if rows is not None:
            rank, wrong = ({whose: one[rows] for whose, one in each.items()} for each in (rank, wrong))
        local, federation = Decision.LOCAL, Decision.GLOBAL
        return policy_counts(rank.get(local), rank.get(federation), wrong.get(local), wrong.get(federation))

    def limits(self, counts: Tensor, totals: Tensor, promises: Tensor) -> Tensor:
        """Return the largest limits (R,) that pass the tests of counts (R, 2, J), 0 where no limit passes."""
        found = [self.guarantee(each, int(n), promises).limit for each, n in zip(counts, totals, strict=True)]
        return torch.tensor([limit or 0.0 for limit in found], dtype=torch.float64)

    def rank(self, edges: Tensors, whose: Decision, answer: Prediction) -> Tensor:
        """Return (N,) ranks of a model's answers, to compare with limits; infinite for inputs with an alarm, which no
        limit answers. Counts and decisions both use this function, so they are consistent."""
        rank = ranks(edges[whose.name.lower()], answer.score(self.score))
        return rank.masked_fill(answer.alarms, torch.inf)

    def set_limits(self, server: State, replies: Replies, context: SiloContext) -> State:
        """Sum the counts of each group, and keep the largest limit that passes the tests."""
        decision, rows = server["decision"], self.rows
        if self.additive:
            summed, totals = replies.total("decision", "counts"), replies.total("decision", "inputs")
        else:
            counts, by_row = replies.stack("decision", "counts"), replies.stack("decision", "inputs")
            belongs = members(replies.stack("decision", "domain"), decision["domains"])
            belongs = self.without_own(belongs, by_row[:, 0])
            summed, totals = (torch.cat([
                torch.einsum("k,k...->...", belongs[0], each[:, :rows]),
                torch.einsum("gk,k...->g...", belongs[1:], each[:, rows:]).flatten(0, 1),
            ]) for each in (counts, by_row))  # fmt: skip
        set_ = {"ready": torch.tensor(True), "summed": summed, "totals": totals}
        set_ |= {"limits": self.limits(summed, totals, decision["promises"])}
        return server | {"decision": decision | set_}

    def guarantee(self, counts: Tensor, total: int, promises: Tensor) -> Guarantee:
        """Return the guarantee from (2, J) counts of `total` inputs, as one of `promises` guarantees."""
        found = fixed_sequence(counts, self.risk, 1 - (1 - self.confidence_level) / float(promises), total=total)
        return dataclasses.replace(found, confidence_level=self.confidence_level, tolerance=self.tolerance)

    def promise(self, down: Payload, state: State) -> Rule | None:
        """Return the rule of a silo; None if it was not counted and has no guarantee."""
        kept, group = state.get("decision", {}), down["decision"]
        if "domain" not in kept:
            return None
        if "limits" in kept:
            return self.rule(Whose.SILO, kept, 0)
        number = row_of(kept["domain"], group["domains"])
        own = number and group["totals"][number * self.rows] >= self.least
        return self.rule(Whose.DOMAIN, group, number) if own else self.rule(Whose.FEDERATION, group, 0)

    def rule(self, whose: Whose, group: Tensors, number: int) -> Rule:
        """Return the rule of the silos of a group."""
        rows = slice(number * self.rows, (number + 1) * self.rows)
        limits, counts, totals = (group[name][rows] for name in ("limits", "summed", "totals"))
        edges = [at(group, row) for row in range(rows.start, rows.stop)]
        return Rule(whose, edges, limits, counts, totals, self.pool(group, number))

    def decide(self, down: Payload, state: State, answers: Answers) -> Prediction:
        if not down["decision"]["ready"]:
            return self.base.decide(down, state, answers)
        by = self.promise(down, state)
        if by is None or not by.limits.any():
            return choose(answers, nowhere(answers), Reason.UNTESTED)
        return choose(answers, {w: self.within(by, w, answer) for w, answer in answers.items()})

    def within(self, by: Rule, whose: Decision, answer: Prediction) -> Tensor:
        """Return (N,) bool: whether a model's answers are within the limits of their rows."""
        row = by_subgroup.rows(answer.subgroup, by.pool)
        if row is None:
            return self.rank(by.edges[0], whose, answer) <= by.limits[0]
        found = torch.zeros_like(row, dtype=torch.bool)
        for k, edges in enumerate(by.edges):
            found |= (row == k) & (self.rank(edges, whose, answer) <= by.limits[k])
        return found

    def describe(self, down: Payload, state: State, context: SiloContext, x: Tensor) -> Tensors:
        """Add the silo's guarantee to the base's numbers, if silos have different guarantees."""
        described = self.base.describe(down, state, context, x)
        if not down["decision"]["ready"] or self.guarantee_scope == "federation":
            return described
        by, own = self.promise(down, state), scalar(len(context.calibration))
        told = {"whose": scalar(NOBODY), "own": own, "found": torch.zeros(self.rows, len(NUMBERS), dtype=torch.float64)}
        told |= {"pools": torch.zeros(len(self.subgroups), dtype=torch.long)} if self.subgroups else {}
        if by is not None:
            found = self.guarantees(by.counts, by.totals, down["decision"]["promises"])
            numbers = [[float(getattr(each, name) or 0) for name in NUMBERS] for each in found]
            told |= {"whose": scalar(float(by.whose)), "found": torch.tensor(numbers, dtype=torch.float64)}
            told |= {"pools": by.pool} if self.subgroups else {}
        return described | {f"promise.{name}": self.plain(each) if name == "found" else each
                            for name, each in told.items()}  # fmt: skip

    def summarize(self, sums: Mapping[str, Tensor]) -> dict[str, object]:
        found = self.base.summarize(sums)
        if sums.get("promise.whose", NOBODY) == NOBODY:
            return found
        whose, own = Whose(int(sums["promise.whose"])), int(sums["promise.own"])
        granted = [self.granted(row.tolist()) for row in sums["promise.found"].view(self.rows, -1)]
        few = f" (its {own:,} calibration inputs are fewer than the {self.least:,} needed for its own guarantee)"
        who = f"for {ABOUT[whose]}{few if whose < Whose[self.guarantee_scope.upper()] else ''}"
        told = self.about(granted, sums.get("promise.pools", torch.zeros(0)).long())
        statement = f"{who}: {told['statement']}{'' if self.subgroups else f', {self.together}'}"
        return found | {"promise": told | {"whose": whose.name.lower(), "statement": statement}}

    def granted(self, row: list[float]) -> Guarantee:
        """Return a guarantee from the numbers that a silo reports."""
        numbers = dict(zip(NUMBERS, row, strict=True))
        whole: dict[str, Any] = {name: int(value) for name, value in numbers.items() if name not in FRACTIONS}
        known = {"limit": numbers["limit"] or None, "risk": self.risk, "confidence_level": self.confidence_level,
                 "tolerance": self.tolerance}  # fmt: skip
        return Guarantee(**numbers | whole | known)

    def guarantees(self, counts: Tensor, totals: Tensor, promises: Tensor) -> list[Guarantee]:
        """Return the guarantees by row."""
        return [self.guarantee(each, int(n), promises) for each, n in zip(counts, totals[: len(counts)], strict=True)]

    @property
    def together(self) -> str:
        """The part of a statement that says what the confidence level covers."""
        return "for all guarantees at once" if self.familywise else "for each guarantee by itself"

    def about(self, found: Sequence[Guarantee], pool: Tensor) -> dict[str, object]:
        """Return the guarantees by row of a group as summary entries."""
        known = entries(found[0])
        return known | by_pool(found, pool, self.subgroups, self.least, self.together) if self.subgroups else known

    def outcome(self, server: State) -> dict[str, object]:
        decision = server["decision"]
        policy = {
            "name": "guaranteed",
            "score": self.score,
            "risk": self.risk,
            "confidence_level": self.confidence_level,
        }
        found = self.guarantees(decision["summed"][: self.rows], decision["totals"], decision["promises"])
        about = self.about(found, self.pool(decision, 0))
        policy |= {"tolerance": self.tolerance} if self.tolerance is not None else {}
        policy |= {"familywise": self.familywise} if self.subgroups else {}
        if self.guarantee_scope != "federation":
            policy |= {"guarantee_scope": self.guarantee_scope, "familywise": self.familywise}
            largest = f"the largest of which {about['statement']}" if decision["totals"][0] else "which no silo has"
            about["statement"] = (
                f"every {self.guarantee_scope} has its own guarantee, at {100 * self.confidence_level:.6g} % confidence"
                f" {self.together}; with fewer than {self.least:,} calibration inputs, the guarantee of a group "
                f"of such silos, {largest}"
            )
        return self.base.outcome(server) | {"policy": policy, "guarantee": about}
