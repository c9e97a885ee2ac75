"""Warnings about models without proven skill, below a baseline or with misranked errors, and unpredictable labels.

All checks use the sums of `metrics.skill`, over all silos and at each of them. Silos are tested together, so chance
causes a warning about any of them as rarely as one about the run.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Self

from torch import Tensor

from ..core import Caution, SiloId, Tensors
from ..core.text import decimal, named, percent
from ..metrics import merge
from ..uncertainty.statistical_tests import binomial_tail

LEVEL = 0.01
"""Probability that chance causes one kind of warning, or that a skill above the bounds below causes `no_skill`."""
FEWEST = 20
"""Minimum number of inputs for a warning."""
VAGUE = 1 / 8
"""Standard error of an AUROC without skill above which the AUROC is ignored: few inputs, or a rare class."""
SLIGHT, SLIGHT_AUROC = 1 / 3, 0.75
"""Bounds on agreement above chance (Cohen's kappa) and AUROC; a model significantly below them has no proven skill."""
NONE, NONE_AUROC = 0.02, 0.52
"""The same bounds for a model that is at most marginally better than chance."""
FAR = {"majority": 0.02, "reference": 0.1}
"""Minimum differences of accuracies for a model to be far below a baseline."""
STRICT = 0.001
"""Level of `has_no_skill` before labels are called unpredictable, because chance rarely hides a skill at this level."""
NO_EVIDENCE = 0.5
"""Minimum share of inputs without evidence for a warning."""


@dataclass(frozen=True)
class Compared:
    """A comparison: the observed number, its expectation without skill, and its variance without skill."""

    observed: float
    expected: float
    variance: float

    @classmethod
    def of(cls, triple: Tensor) -> Self:
        return cls(*triple.tolist())

    @property
    def z(self) -> float:
        """Standard deviations above the expectation without skill."""
        certain = self.variance <= 1e-9 * (1 + self.expected)  # except for rounding
        return 0.0 if certain else (self.observed - self.expected) / math.sqrt(self.variance)

    def upper(self, level: float) -> float:
        """Return a bound that is exceeded with probability `level`."""
        return self.observed + NormalDist().inv_cdf(1 - level) * math.sqrt(self.variance)

    @property
    def auroc(self) -> float:
        """For ranks: the share of pairs in the correct order."""
        return self.observed / (2 * self.expected)

    @property
    def lost(self) -> float:
        """For two predictions: the number of inputs that only the second one gets right."""
        return 2 * self.expected - self.observed

    @property
    def tail(self) -> float:
        """For two equally good predictions: the probability that the second one is ahead by at least this much."""
        return binomial_tail(round(self.lost), round(2 * self.expected), 0.5)


def collapse(silos: Mapping[SiloId, Tensors], loss: float, classes: int) -> Iterator[Caution]:
    """Yield warnings, from the sums of each silo, and the mean loss in nats.

    Only a lack of evidence, which can be the cause, is reported after a lack of skill in the whole run.
    """
    if not silos:
        return
    names = set.intersection(*(set(sums) for sums in silos.values())) - {"in_sets", "calibration"}
    total = merge({name: sums[name] for name in names} for sums in silos.values())
    if has_no_skill(total, LEVEL):
        yield no_skill(total, loss, classes)
        yield from without_evidence(total)
        return
    bad = tuple(silo for silo, sums in silos.items() if has_no_skill(sums, LEVEL / len(silos)))
    if bad:
        yield no_skill_at(bad, silos)
    rest = {silo: sums for silo, sums in silos.items() if silo not in bad}
    yield from unpredictable_labels(total, rest, len(silos))
    for name in FAR:
        yield from behind(name, total, rest)
    yield from without_evidence(total)
    yield from misranked(total)


def has_no_skill(sums: Tensors, level: float) -> bool:
    """Return whether predictions are not significantly better than chance, although a moderate skill would be
    significant.

    Neither the agreement of labels nor the ranking of classes is significant. A weak skill can be missed. Labels that
    agree significantly less than permuted ones show no skill, whatever the ranking.
    """
    agreement, ranking, n = Compared.of(sums["agreement"]), Compared.of(sums["ranking"]), float(sums["inputs"])
    if n < FEWEST or vague(ranking) or agreement.expected >= n:
        return False
    if agreement.z < NormalDist().inv_cdf(level):
        return True
    kappa, auroc = bounds(sums, level)
    if shows_skill(sums):
        return kappa < NONE and auroc < NONE_AUROC
    return kappa < SLIGHT and auroc < SLIGHT_AUROC


def shows_skill(sums: Tensors, level: float = LEVEL, by: tuple[str, ...] = ("agreement", "ranking")) -> bool:
    """Return whether one of the comparisons `by` is better than chance: labels agree, or probabilities rank classes."""
    return max(Compared.of(sums[name]).z for name in by) > NormalDist().inv_cdf(1 - level)


def bounds(sums: Tensors, level: float) -> tuple[float, float]:
    """Return approximate upper bounds of kappa and AUROC, each exceeded with probability `level`."""
    agreement, n = Compared.of(sums["agreement"]), float(sums["inputs"])
    kappa = (agreement.upper(level) - agreement.expected) / (n - agreement.expected)
    return kappa, _auroc(sums, "ranking", level)


def standing(every: Iterable[Tensors]) -> str:
    """Return how predictions compare with chance, in words."""
    low = NormalDist().inv_cdf(LEVEL)
    found = {"worse" if Compared.of(each["agreement"]).z < low else "hardly better" if shows_skill(each)
             else "not shown to be better" for each in every}  # fmt: skip
    return ", or ".join(sorted(found))


def no_skill(total: Tensors, loss: float, classes: int) -> Caution:
    agreement, ranking, n = Compared.of(total["agreement"]), Compared.of(total["ranking"]), float(total["inputs"])
    constant = agreement.variance <= 1e-9 * n
    kappa, auroc = bounds(total, LEVEL)
    text = (
        f"Predictions are {standing([total])} than chance on the {n:,.0f} validation inputs: accuracy "
        f"{percent(agreement.observed / n)}, where permuted labels give {percent(agreement.expected / n)} (kappa at "
        f"most {decimal(kappa)}, bound of {percent(1 - LEVEL)}); AUROC {decimal(ranking.auroc)} (at most "
        f"{decimal(auroc)}); loss {loss:.2f} nats, where equal probabilities give {math.log(classes):.2f}."
    )
    text += " At each silo, inputs all get or all have the same class." if constant else ""
    lower = "Try a lower training.lr, or more rounds. More validation inputs may show a weak skill."
    return Caution("no_skill", text, lower if constant else f"Check that labels belong to their inputs. {lower}")


def no_skill_at(bad: tuple[SiloId, ...], silos: Mapping[SiloId, Tensors]) -> Caution:
    chosen = merge({name: silos[silo][name] for name in ("agreement", "ranking", "inputs")} for silo in bad)
    n, agreement, ranking = float(chosen["inputs"]), Compared.of(chosen["agreement"]), Compared.of(chosen["ranking"])
    kappa, auroc = map(max, zip(*(bounds(silos[silo], LEVEL / len(silos)) for silo in bad), strict=True))
    return Caution(
        "no_skill",
        f"Predictions are {standing([silos[silo] for silo in bad])} than chance at {named(bad)}: accuracy "
        f"{percent(agreement.observed / n)} on {n:,.0f} validation inputs, where permuted labels give "
        f"{percent(agreement.expected / n)} (kappa at most {decimal(kappa)} at each, bound of {percent(1 - LEVEL)} for "
        f"all silos at once); AUROC {decimal(ranking.auroc)} (at most {decimal(auroc)} at each).",
        "Check the data there: that labels belong to their inputs, and that columns and units match other silos. A "
        "weak skill may only show with more validation inputs.",
        bad,
    )


def unpredictable_labels(total: Tensors, silos: Mapping[SiloId, Tensors], every: int) -> Iterator[Caution]:
    """Warn of labels, of all silos or of some of `every`, that neither predictions nor a ridge classifier predict."""
    bad = () if (whole := unpredictable(total, LEVEL / 2)) else tuple(
        silo for silo, sums in silos.items() if unpredictable(sums, LEVEL / 2 / every)
    )  # fmt: skip
    if not whole and not bad:
        return
    level, chosen = (LEVEL / 2, [total]) if whole else (LEVEL / 2 / every, [silos[silo] for silo in bad])
    ranking = Compared.of(merge({"": each["predictable"]} for each in chosen)[""])
    most = max(_auroc(each, "predictable", level) for each in chosen)
    yield Caution(
        "unpredictable_labels",
        f"Labels are not shown to be predictable{f' at {named(bad)}' if bad else ''}: a ridge classifier fitted to "
        f"half of the training inputs ranks the classes of the other half with an AUROC of {decimal(ranking.auroc)} "
        f"(at most {decimal(most)}{' at each' if bad else ''}, bound of {percent(1 - LEVEL)}"
        f"{' for all silos at once' if bad else ''}), and predictions of validation inputs are not shown to be better.",
        "Check that labels belong to their inputs. A skill that a linear classifier lacks shows with more validation "
        "inputs.",
        bad,
    )


def unpredictable(sums: Tensors, level: float) -> bool:
    """Return whether neither the ridge classifier nor the model shows skill, although a moderate skill of the former
    would show."""
    if vague(Compared.of(sums["predictable"])) or shows_skill(sums, STRICT, ("agreement", "ranking", "predictable")):
        return False
    return _auroc(sums, "predictable", level) < SLIGHT_AUROC


def vague(ranking: Compared) -> bool:
    return not ranking.expected or math.sqrt(ranking.variance) > VAGUE * 2 * ranking.expected


def _auroc(sums: Tensors, name: str, level: float) -> float:
    """Return an approximate upper bound of an AUROC, exceeded with probability `level`."""
    ranking = Compared.of(sums[name])
    return ranking.upper(level) / (2 * ranking.expected)


BASELINES = {
    "majority": (
        "always predicting the most frequent class of a silo's training data",
        "Try more rounds, a lower training.lr, or a method with local models (docs/reference/methods.md).",
    ),
    "reference": (
        "a ridge classifier of at most 500 of a silo's own training inputs",
        "Try more rounds, another training.lr, or a method with local models (docs/reference/methods.md).",
    ),
}
"""The description of a baseline, and advice if a model is far below it."""


def behind(name: str, total: Tensors, silos: Mapping[SiloId, Tensors]) -> Iterator[Caution]:
    """Warn of a model that is far less accurate than a baseline, over all silos or at some."""
    below = tuple(silo for silo, sums in silos.items() if _behind(name, sums, LEVEL / 2 / len(silos)))
    whole = _behind(name, total, LEVEL / 2)
    if not below and not whole:
        return
    baseline, advice = BASELINES[name]
    where = f", most clearly at {named(below)}" if below else ""
    if not whole:
        total = merge({each: silos[silo][each] for each in (name, "inputs")} for silo in below)
        where = f" at {named(below)}"
    found, n = Compared.of(total[name]), float(total["inputs"])
    yield Caution(
        f"below_{name}",
        f"Predictions are less accurate on validation inputs than {baseline}{where}: of {n:,.0f}, only the baseline is "
        f"right for {found.lost:,.0f}, and only the model for {found.observed:,.0f}.",
        advice,
        () if whole else below,
        {"inputs": round(n), "only_baseline": round(found.lost), "only_model": round(found.observed)},
    )


def _behind(name: str, sums: Tensors, level: float) -> bool:
    found, n = Compared.of(sums[name]), float(sums["inputs"])
    return n >= FEWEST and (found.lost - found.observed) / n >= FAR[name] and found.tail < level


def without_evidence(total: Tensors) -> Iterator[Caution]:
    n, share = float(total["inputs"]), float(total.get("no_evidence", total["inputs"] * 0) / total["inputs"])
    if n >= FEWEST and share >= NO_EVIDENCE:
        yield Caution(
            "no_evidence",
            f"{percent(share)} of {n:,.0f} validation inputs have hardly any evidence (vacuity above .9), so their "
            "probabilities are close to the prior.",
            "Try more rounds, or a lower training.lr.",
        )


def misranked(total: Tensors) -> Iterator[Caution]:
    """Warn of a total uncertainty that tends to be lower for errors than for correct predictions."""
    errors = Compared.of(total["errors"])
    wrong = float(total["inputs"]) - float(total["agreement"][0])
    if min(wrong, float(total["agreement"][0])) < FEWEST / 2 or errors.z > NormalDist().inv_cdf(LEVEL):
        return
    half = 1.96 * math.sqrt(errors.variance) / (2 * errors.expected)
    low, high = max(errors.auroc - half, 0.0), errors.auroc + half
    yield Caution(
        "misranked_errors",
        f"Uncertainty tends to be lower for wrong than for correct predictions: an error AUROC within silos of "
        f"{decimal(errors.auroc)} (approximate 95 % interval {decimal(low)} to {decimal(high)}, {wrong:,.0f} errors on "
        f"validation splits), where chance gives {decimal(0.5)}.",
        "Do not abstain by this score; try another uncertainty.source.",
    )
