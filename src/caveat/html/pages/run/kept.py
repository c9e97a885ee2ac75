"""What became of a promise on the test split: errors among the answered inputs of those whom it is about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ....files.schema.figures import INSIDE, Metrics, Stream
from ....files.schema.summary import SiloRecord, Summary
from ...intervals import score_interval


@dataclass(frozen=True)
class Kept:
    """Errors among answered test inputs, of silos mixed as their calibration inputs are."""

    wrong: int
    answered: int
    inputs: int
    share: float
    """The share of inputs that was answered, of the mixture."""
    risk: float | None
    """The share of errors among these, of the mixture; None where nothing was answered."""
    effective: float
    """As many answered inputs of equal weight would be as good to judge by (Kish, 1965)."""

    @property
    def interval(self) -> tuple[float, float]:
        """95 %, by Wilson."""
        return (0.0, 1.0) if self.risk is None else score_interval(self.risk, self.effective)

    def broken(self, promised: float) -> bool:
        """Whether there are more errors than promised, beyond what so few inputs leave open."""
        return self.interval[0] > promised

    @property
    def weighted(self) -> bool:
        """Whether the mixture is another than that of the test inputs."""
        return self.risk is not None and abs(self.risk - self.wrong / self.answered) > 1e-9


def kept(summary: Summary) -> Kept | None:
    """Of all silos that took part; None without test figures."""
    silos = [silo for silo in summary.silos if not silo.newcomer]
    if all(silo.n_calibration for silo in silos) and (found := kept_by(silos)):
        return found
    # Where a silo has no calibration inputs, nothing says how to mix: test inputs as they come.
    return _alone(summary.pooled, sum(silo.n_test or 0 for silo in silos))


def kept_by(silos: Sequence[SiloRecord]) -> Kept | None:
    """Of these silos, mixed as their calibration inputs are; None if one of them has no test figures."""
    parts = [_alone(silo.test, silo.n_test or 0) for silo in silos]
    found = [part for part in parts if part]
    if not found or len(found) < len(parts):
        return None
    weights = [(silo.n_calibration or 1) / part.inputs for silo, part in zip(silos, found, strict=True)]
    mixed = list(zip(weights, found, strict=True))
    answered = sum(w * part.answered for w, part in mixed)
    squares = sum(w * w * part.answered for w, part in mixed)
    return Kept(
        sum(part.wrong for part in found),
        sum(part.answered for part in found),
        sum(part.inputs for part in found),
        answered / sum(w * part.inputs for w, part in mixed),
        sum(w * part.wrong for w, part in mixed) / answered if answered else None,
        answered**2 / squares if answered else 0.0,
    )


def _alone(test: Metrics, inputs: int) -> Kept | None:
    """Of one silo, or of inputs that have been pooled."""
    if test.answered is None or not inputs:
        return None
    answered = round(test.answered * inputs)
    wrong = round((1 - (test.accuracy_answered or 0.0)) * answered)
    return Kept(wrong, answered, inputs, answered / inputs, wrong / answered if answered else None, answered)


@dataclass(frozen=True)
class Shares:
    """What became of the inputs of one stream: shares of all of them."""

    right: float
    wrong: float

    @property
    def answered(self) -> float:
        return self.right + self.wrong


def foreign(summary: Summary) -> dict[str, Shares]:
    """By stream of inputs that silos do not know, what was answered of it; a mixture with what they know is none."""
    return {name: each for name, each in shares_of(summary).items() if name not in (INSIDE, "mix")}


def worst_at(summary: Summary, stream: str) -> tuple[str, Shares] | None:
    """The silo that answers most of a stream wrongly, where there are several."""
    found = {
        silo.name: _of(next(iter(each.models.values())))
        for silo in summary.silos
        if (each := silo.streams.get(stream)) and each.models
    }
    known = {name: each for name, each in found.items() if each}
    return max(known.items(), key=lambda each: each[1].wrong) if len(known) > 1 else None


def shares_of(summary: Summary) -> dict[str, Shares]:
    """By stream, what was answered of it."""
    found = {name: _shares(each) for name, each in summary.tested.items()}
    return {name: each for name, each in found.items() if each}


def _shares(stream: Stream) -> Shares | None:
    return _of(stream.chosen.pooled)


def _of(found: Metrics) -> Shares | None:
    if found.answered is None:
        return None
    right = found.answered * (found.accuracy_answered or 0.0)
    return Shares(right, found.answered - right)
