"""A run's guarantee about errors, compared with the test split."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from ...core.text import initial, joined, percent
from ...files import RunFolder
from ...files.schema import INSIDE, NOBODY, GuaranteeRecord, Metrics, SiloRecord, Stream, Summary
from ...uncertainty.statistical_tests import binomial_tail, score_interval
from ..templates import Cell, Table, column, table, words
from .more_answers import to_answer_more

_LEVEL = 0.05


@dataclass(frozen=True)
class Kept:
    """Errors among answered test inputs, with silos weighted as in calibration."""

    wrong: int
    answered: int
    inputs: int
    share: float
    """The weighted share of inputs that were answered."""
    risk: float | None
    """The weighted share of errors among answered inputs; None if nothing was answered."""
    effective: float
    """Effective number of answered inputs (Kish, 1965)."""

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the risk, by Wilson."""
        return (0.0, 1.0) if self.risk is None else score_interval(self.risk, self.effective)

    def missed(self, promised: float) -> bool:
        """Return whether there are more errors than guaranteed, by chance or not."""
        return self.risk is not None and self.risk > promised

    def broken(self, promised: float) -> bool:
        """Return whether there are more errors than guaranteed, beyond the uncertainty from few inputs."""
        return self.interval[0] > promised

    def doubtful(self, found: GuaranteeRecord) -> bool:
        """Return whether there are more errors than guaranteed, beyond chance at the guarantee's confidence level or at
        that of the interval."""
        z = NormalDist().inv_cdf(found.confidence_level)
        at_level = self.risk is not None and score_interval(self.risk, self.effective, z)[0] > found.risk
        return at_level or self.broken(found.risk)

    @property
    def weighted(self) -> bool:
        """Whether the weights differ from the test inputs' shares."""
        return self.risk is not None and abs(self.risk - self.wrong / self.answered) > 1e-9


def kept(summary: Summary) -> Kept | None:
    """Return the errors of all silos that took part; None without test metrics."""
    silos = [silo for silo in summary.silos if not silo.newcomer]
    if all(silo.n_calibration for silo in silos) and (found := kept_by(silos)):
        return found
    # If a silo has no calibration inputs, the weights are unknown: pool the test inputs.
    return alone(summary.pooled, sum(silo.n_test or 0 for silo in silos))


def kept_by(silos: Sequence[SiloRecord]) -> Kept | None:
    """Return the errors of these silos, weighted as in calibration; None if one of them has no test metrics."""
    parts = [alone(silo.test, silo.n_test or 0) for silo in silos]
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


def alone(test: Metrics, inputs: int) -> Kept | None:
    """Return the errors among `inputs` inputs with these metrics and equal weights; None without metrics."""
    if test.answered is None or not inputs:
        return None
    answered = round(test.answered * inputs)
    wrong = round((1 - (test.accuracy_answered or 0.0)) * answered)
    return Kept(wrong, answered, inputs, answered / inputs, wrong / answered if answered else None, answered)


@dataclass(frozen=True)
class Shares:
    """Correct and wrong answers as shares of one stream's inputs."""

    right: float
    wrong: float

    @property
    def answered(self) -> float:
        return self.right + self.wrong


def foreign_streams(summary: Summary | None) -> dict[str, Stream]:
    """Return the streams of inputs that silos do not know, without the mixture with own inputs."""
    tested = summary.tested if summary else {}
    return {name: each for name, each in tested.items() if name not in (INSIDE, "mix")}


def in_words(stream: str) -> str:
    """Return a clause about who knows the inputs of a stream; "" unless they are foreign to the silo."""
    return {"ood_local": "that only other silos know", NOBODY: "that no silo knows"}.get(stream, "")


def foreign(summary: Summary) -> dict[str, Shares]:
    """Return the shares of each stream of inputs that silos do not know."""
    return {name: each for name, each in shares_of(summary).items() if name in foreign_streams(summary)}


def worst_at(summary: Summary, stream: str) -> tuple[str, Shares] | None:
    """Return the silo with the largest share of wrong answers to a stream, if there are several."""
    found = {
        silo.name: _of(next(iter(each.models.values())))
        for silo in summary.silos
        if (each := silo.streams.get(stream)) and each.models
    }
    known = {name: each for name, each in found.items() if each}
    return max(known.items(), key=lambda each: each[1].wrong) if len(known) > 1 else None


def shares_of(summary: Summary) -> dict[str, Shares]:
    """Return the shares by stream."""
    found = {name: _of(each.chosen.pooled) for name, each in summary.tested.items()}
    return {name: each for name, each in found.items() if each}


def _of(found: Metrics) -> Shares | None:
    if found.answered is None:
        return None
    right = found.answered * (found.accuracy_answered or 0.0)
    return Shares(right, found.answered - right)


@dataclass(frozen=True)
class Promise:
    """The guarantee, compared with the test split; the verdict is the caption of the table, if any."""

    statement: str
    verdict: str
    alarm: bool
    table: Table | None = None


def guarantee_lines(run: RunFolder) -> list[str]:
    """Return lines for the terminal: the guarantee, and test results; empty for a run without a guarantee."""
    if run.summary is None or run.summary.guarantee is None:
        return []
    found, own = run.summary.guarantee, _with_promises(run.summary)
    if run.quantity:
        return [f"guarantee: {found.statement}"]
    if own:
        broken = exceeding(run.summary)
        lines = [f"guarantee: {stated(found)}", f"on test:   {_told(own, broken)}"]
    else:
        test = kept(run.summary) if found.guaranteed else None
        lines = [f"guarantee: {stated(found)}"]
        lines += [f"on test:   {_answered(test)} answered, {_wrong(test)} wrong"] if test else []
    about = foreign(run.summary) if found.guaranteed or own else {}
    texts = [f"{name} {percent(each.answered)} answered, {percent(each.wrong)} wrongly" for name, each in about.items()]
    return lines + [f"OOD:       {'; '.join(texts)}; no guarantee covers these" for _ in texts[:1]]


def promise_clause(run: RunFolder) -> str:
    """Return the guarantee beside the errors of the test split, for the headline; empty for a run without one."""
    if run.summary is None or run.summary.guarantee is None:
        return ""
    found, own = run.summary.guarantee, _with_promises(run.summary)
    limit = f"{100 * found.risk:.6g} %"
    if own:
        broken = exceeding(run.summary)
        at = joined(broken) if broken else "no silo"
        return f" The guarantee of at most {limit} errors among answers is exceeded beyond chance at {at}."
    if not found.guaranteed or (test := kept(run.summary)) is None or not test.missed(found.risk):
        return ""  # the box below has a guarantee that is compatible with the test inputs
    return f" Its guarantee of at most {limit} errors among answers is {_state(found, test)[0]}."


def _state(found: GuaranteeRecord, test: Kept) -> tuple[str, str]:
    """Return what test inputs show about a guarantee, in a few words and in a clause about the error rate."""
    if not test.missed(found.risk):
        return "", "is compatible with the guarantee"
    if test.broken(found.risk):
        return "broken", "is higher than the guarantee allows, beyond chance"
    if test.doubtful(found):
        level = f"{100 - 100 * found.confidence_level:.6g} %"
        told = f"makes the guarantee doubtful: if it holds, less than {level} of tests have as many errors"
        return "doubtful", told
    told = "is higher than the guarantee allows, by no more than chance explains"
    return "missed, by no more than chance explains", told


def promise(run: RunFolder) -> Promise | None:
    """Return the section; None for a run without a guarantee."""
    if run.summary is None or run.summary.guarantee is None:
        return None
    found, own = run.summary.guarantee, _with_promises(run.summary)
    statement, outside = _unbroken(f"{initial(stated(found))}."), _outside(run.summary, found.risk)
    if own:
        broken = exceeding(run.summary)
        caption = _unbroken(f"{_told(own, broken)}. {_ABOUT_GROUPS}{outside}")
        alarm = bool(broken or outside) or not any(silo.promise.guaranteed for silo in own if silo.promise)
        return Promise(statement, caption, alarm, _by_silo(own, found.risk, caption, broken))
    if not found.guaranteed:
        none = "It abstains from every input: predicted classes have no guarantee."
        return Promise(statement, _unbroken(none + to_answer_more(run.summary, found)), True)
    test = kept(run.summary)
    promised = f"Promised: at most {100 * found.risk:.6g} % errors among answers, at "
    promised += f"{100 * found.confidence_level:.6g} % confidence. Found: {_wrong(test) if test else 'not tested'}."
    about = _ABOUT.format(", hence the weights" if test and test.weighted else "", _most_wrong(run.summary.silos))
    more = "" if test is None or test.missed(found.risk) else to_answer_more(run.summary, found).strip()
    said = " ".join(filter(None, [_tested(found, test), about, outside, more]))
    alarm = bool(outside) or (test is not None and test.missed(found.risk))
    return Promise(_unbroken(promised), _unbroken(said), alarm)


def _tested(found: GuaranteeRecord, test: Kept | None) -> str:
    if test is None or test.risk is None:
        return "No test input was answered." if test else ""
    low, high = map(percent, test.interval)
    calibrated = f"on calibration inputs, {percent(found.errors / max(found.answered, 1))}"
    return f"This error rate (95 % interval {low} to {high}; {calibrated}) {_state(found, test)[1]}."


def _outside(summary: Summary, risk: float) -> str:
    """Return a sentence about inputs that silos do not know, if more answers to them are wrong than guaranteed."""
    wrong = {name: each.wrong for name, each in foreign(summary).items() if each.wrong > risk}
    told = "; ".join(
        f"of those {in_words(name)}, {percent(share)} are answered wrongly" for name, share in wrong.items()
    )
    return f"Inputs that silos do not know are not covered: {told}." if told else ""


def _with_promises(summary: Summary) -> list[SiloRecord]:
    return [silo for silo in summary.silos if silo.promise is not None]


def exceeding(summary: Summary) -> list[str]:
    """Return the silos with more errors among their answers than guaranteed, beyond chance at 5 % over all silos. If
    silos have their own guarantees, only these count: a single silo cannot break a group's."""
    own = _with_promises(summary)
    silos = [silo for silo in own if silo.promise and silo.promise.whose == "silo"] if own else summary.silos
    if summary.guarantee is None or not silos:
        return []
    tested = [(silo.name, alone(silo.test, silo.n_test or 0)) for silo in silos]
    level, risk = _LEVEL / len(silos), summary.guarantee.risk
    return [name for name, found in tested if found and binomial_tail(found.wrong, found.answered, risk) < level]


def _told(silos: list[SiloRecord], broken: list[str]) -> str:
    by = [silo.promise.whose for silo in silos if silo.promise]
    answering = sum(silo.promise.guaranteed for silo in silos if silo.promise)
    counts = ", ".join(f"{by.count(whose)} of {text}" for whose, text in _WHOSE.items() if whose in by)
    said = f"{len(silos)} silos have guarantees ({counts}), and {answering} answer under them"
    if broken:
        return f"{said}; there are more errors than guaranteed, beyond chance over all silos, at {joined(broken)}"
    return f"{said}; no silo has more errors than guaranteed, beyond chance over all silos" if "silo" in by else said


_WHOSE = {"silo": "their own", "domain": "their domain", "federation": "the federation"}
_OF_SILO = {"silo": "the silo", "domain": "its domain", "federation": "the federation"}
_ABOUT_GROUPS = (
    "A guarantee is about inputs like the calibration inputs of the silos that it covers; a guarantee of a domain or "
    "the federation says nothing about a single silo. "
)


def _by_silo(silos: list[SiloRecord], risk: float, caption: str, broken: Sequence[str]) -> Table | None:
    records = [(silo, silo.promise, kept_by([silo])) for silo in silos if silo.promise]
    flag = "more errors than guaranteed"
    wrong = [Cell(_wrong(test) if test else "", flag if silo.name in broken else "") for silo, _, test in records]
    columns = [
        words("silo", [silo.name for silo, _, _ in records]),
        words("guarantee of", [_OF_SILO.get(each.whose, each.whose) for _, each, _ in records]),
        column(
            "answered, calibration",
            [_share(each.answered, each.total) if each.guaranteed else "none" for _, each, _ in records],
            "of the inputs on which the guarantee was tested",
        ),
        column("answered, test", [_answered(test) if test else "" for _, _, test in records], "of the test inputs"),
        column("wrong among these", wrong, f"at most {100 * risk:.6g} % are guaranteed"),
    ]
    return table(columns, caption, [silo.name for silo, _, _ in records])


def _unbroken(sentence: str) -> str:
    """Replace spaces before percent signs by no-break spaces."""
    return sentence.replace(" %", "\N{NO-BREAK SPACE}%")


_ABOUT = (
    "The guarantee is for inputs like the calibration inputs, in their mixture of silos{}, not for a single silo{} or "
    "for foreign inputs."
)
_FEW = 10
"""Maximum number of silos of which the one with the largest share of errors is named."""


def _most_wrong(silos: Sequence[SiloRecord]) -> str:
    """Return the silo with the largest share of errors among its answers, in brackets; empty for one or many silos."""
    tested = [(silo.name, alone(silo.test, silo.n_test or 0)) for silo in silos]
    known = [(found.risk, name, wrong_among(found)) for name, found in tested if found and found.risk]
    return f" (most wrong at {max(known)[1]}: {max(known)[2]})" if known and 1 < len(silos) <= _FEW else ""


def _answered(test: Kept) -> str:
    return f"{percent(test.share)} ({test.answered:,} of {test.inputs:,})"


def _wrong(test: Kept) -> str:
    if test.risk is None:
        return "none"
    return f"{percent(test.risk)} ({test.wrong:,} of {test.answered:,}{', weighted' if test.weighted else ''})"


def wrong_among(found: Kept | None) -> str:
    """Return the number of errors among answers; empty without answers."""
    return f"{found.wrong:,} of {found.answered:,}" if found and found.answered else ""


def _share(part: int, whole: int) -> str:
    return f"{percent(part / whole)} ({part:,} of {whole:,})" if whole else "none"


def stated(found: GuaranteeRecord) -> str:
    """Return a guarantee in words, with the level at which its share was tested if that is stricter."""
    if found.limit is not None or not found.needed or (level := tested_level(found)) == 1 - found.confidence_level:
        return found.statement
    text = " (several shares are tested, this one at {} confidence: at most {:.3g} % errors)"
    return found.statement + text.format(percent(1 - level), 100 * (found.upper or 0.0))


def tested_level(found: GuaranteeRecord) -> float:
    """Return the level at which the share was tested, from its bound on errors; the guarantee's own level without a
    bound, or if the two levels are about equal."""
    own = 1 - found.confidence_level
    if found.upper is None or not found.answered:
        return own
    level = 1 - binomial_tail(found.errors + 1, found.answered, found.upper)
    return level if level < 0.99 * own else own
