"""What to do with a run's model, the most important first."""

import re
import shlex

from markupsafe import Markup

from ...core.text import listed, percent
from ...files import RunFolder
from ...files.schema import NOBODY, WarningRecord
from ...uncertainty.statistical_tests import wilson
from ..diagrams import Dot
from ..templates import Statement
from .classification import ALONE, MANY, MOST_ROWS, OneClass, baseline, behind_alone, gap_to, one_class, without_gain
from .confidence import Confidence
from .decisions import CHOSEN
from .familiarity import promised
from .guarantee import exceeding, foreign_streams, kept

_LEFT = 0.9
"""Coverage at which the page states the gain from deferring the other inputs to a person."""
_SPARED = 0.005
"""Minimum gain in accuracy for this sentence."""
_SHARE_SPARED = 0.15
"""Minimum share of errors avoided for this sentence."""
_ENOUGH = 100
"""Minimum number of test inputs behind advice on the most certain or on the answered ones."""
_FEW_ERRORS = 0.05
"""Target error rate if deferring a tenth of the inputs gains too little."""
_MOST_STEPS = 4


def not_learned(only: OneClass | None) -> Markup:
    """Return what to do with a model that is no better than the most frequent class, or predicts a single class."""
    if only:
        text = "Do not use it at any silo: it predicts class {} {}. Train for more <code>rounds</code> "
        text += "or with another <code>training.lr</code>, or use training alone (method <code>{}</code>)."
        return Markup(text).format(only.name, only.always, ALONE)
    text = "Do not use this model: it is right no more often than the most frequent class. Train for more "
    text += "<code>rounds</code> or with another <code>training.lr</code>, and check the labels."
    return Markup(text)


def advice(run: RunFolder, found: Confidence | None, outside: Statement | None, alarms: bool) -> list[Markup]:
    """Return what to do now with a model that has learned, the most important first; `alarms` is whether some inputs
    raise one."""
    behind = behind_alone(run)
    alone = alone_step(run, behind, gap_to(run, run.comparable[ALONE]) if ALONE in run.comparable else None)
    if alone and behind:
        return [alone]
    if below(run):
        text = (
            "Do not use it yet. Train for more <code>rounds</code>, with another <code>training.lr</code>, or with a "
        )
        return [Markup(f"{text}method with local models.")]
    local = _local_instead(run)
    instead = _global_instead(run) or local
    foreign_step = _not_foreign(run, outside)
    gained, doubt = without_gain(run), doubted(run)
    steps: list[Markup | None] = [
        *_where_not(run, *gained),
        instead,
        doubt,
        _calibrating(run, found),
        foreign_step,
    ]
    steps += [None if instead else _leaving(run, alarms), None if local else alone]
    found_steps = [each for each in steps if each][: _MOST_STEPS - 1]
    if where := [silo.name for silo in run.silos if not any(silo.name in names for names in gained)]:
        told = not alarms or any(" alarm" in step for step in found_steps)
        check = "" if told else ", and have a person decide those with an alarm"
        check = ", and until then have a person check every answer" if doubt and "its guarantee" in doubt else check
        found_steps.append(predicting(run, where[0], check))
    return found_steps


def below(run: RunFolder) -> WarningRecord | None:
    """Return the warning that all silos' predictions are less accurate than a simple model; None without one."""
    found = run.summary.warnings if run.summary else []
    return next((each for each in found if each.kind.startswith("below_") and not each.silos), None)


def shortfall(warning: WarningRecord) -> str:
    """Return by how much predictions are less accurate than the simple model of a warning; its text if unknown."""
    if (found := _BELOW.fullmatch(warning.text)) is None:
        return warning.text.removesuffix(".")
    inputs, lost, gained = (int(found[name].replace(",", "")) for name in ("n", "lost", "gained"))
    points = 100 * (lost - gained) / inputs
    text = f"{found['model']} is right for {points:.0f} % more of {found['n']} validation inputs "
    return f"{text}(alone right for {found['lost']}, and the run for {found['gained']})"


_BELOW = re.compile(
    r"Predictions are less accurate on validation inputs than (?P<model>.+?)(, most clearly at .+)?: of (?P<n>[\d,]+), "
    r"only the baseline is right for (?P<lost>[\d,]+), and only the model for (?P<gained>[\d,]+)\."
)


def predicting(run: RunFolder, silo: str, check: str = "") -> Markup:
    """Return how to predict new inputs of a silo."""
    command = shlex.join(["caveat", "predict", run.given or run.path.name, "FILE", "--silo", silo])
    return Markup("Predict new inputs with <code>{}</code>{}.").format(command, check)


_MOST_NAMED = 4
_NOT_AT = "Do not use it at {}, where the most frequent class is right more often, beyond chance."


def refusal(run: RunFolder, silo: str) -> str:
    """Return why a silo's model should not be used; empty if the test metrics give no reason."""
    based = baseline(run)
    if based and based[0] == "bad":
        return str(not_learned(one_class(run)).striptags())
    return _NOT_AT.format(silo) if silo in without_gain(run)[0] else ""


def _where_not(run: RunFolder, worse: list[str], unknown: list[str]) -> list[Markup]:
    """Return where not to use it, and where test inputs do not show whether it is of use."""
    steps = [Markup(_NOT_AT).format(listed(worse, _MOST_NAMED))] if worse else []
    where = listed(unknown, _MOST_NAMED)
    if len(unknown) > MANY:
        which = "CSV of all" if len(run.silos) > MOST_ROWS else "table of"
        where = f"{len(unknown):,} of {len(run.silos):,} silos (listed in the {which} silos)"
    text = "Test it on more inputs of {} before use there: these show no gain over the most frequent class."
    return [*steps, Markup(text).format(where)] if unknown else steps


def _not_foreign(run: RunFolder, line: Statement | None) -> Markup | None:
    """Return how to avoid wrong answers to foreign inputs, if there are too many by the verdict on them."""
    if line is None or line.kind == "good" or run.summary is None:
        return None
    if run.summary.policy.name != "guaranteed" and not promised(run):
        return Markup(
            "Do not use it on inputs that its silos do not know: <code>uncertainty.false_alarm_rate</code> above 0 "
            "raises alarms on them."
        )
    return Markup("Do not use it on inputs that its silos do not know, and have a person decide those with an alarm.")


def doubted(run: RunFolder) -> Markup | None:
    """Return what to do about a guarantee that test inputs exceed, at its own confidence level or at some silo."""
    promise, test = (run.summary.guarantee, kept(run.summary)) if run.summary else (None, None)
    if run.summary is None or promise is None or test is None or test.risk is None or not promise.guaranteed:
        return None
    own = any(silo.promise for silo in run.summary.silos)
    at = exceeding(run.summary)
    if test.doubtful(promise) and not own:
        text = "Do not rely on its guarantee before a test on more inputs{}. Use more calibration inputs "
        text += "(<code>data.split.calibration</code>)."
        return Markup(text).format(f": errors are too many most clearly at {listed(at, _MOST_NAMED)}" if at else "")
    text = "Have a person check answers at {}: more of them are wrong than the guarantee allows{}."
    return Markup(text).format(listed(at, _MOST_NAMED), "" if own else " on average over silos") if at else None


def alone_step(run: RunFolder, behind: bool, gap: Dot | None, error: bool = False) -> Markup | None:
    """Return how to find out whether the federation helps, or that it does not, from the `gap` to training alone, in
    accuracy or in an `error`; None if the federation is better, or if this cannot be tested here."""
    if run.method == ALONE or run.federated or len(run.silos) < 2:
        return None
    if ALONE not in run.comparable:
        return Markup("Find out whom the federation helps: add <code>baselines = [&quot;{}&quot;]</code>.").format(
            ALONE
        )
    if behind:
        text = Markup("Use training alone instead (method <code>{}</code>), which is better than this federation.")
        return text.format(ALONE)
    if gap is None or (gap.value <= 0 if error else gap.value >= 0):
        return None
    text = Markup("Compare it with training alone over several seeds before use (<code>caveat compare</code>): here, ")
    better = "lower error" if error else "higher accuracy"
    return text + f"training alone has the {better}, by no more than chance explains."


def _global_instead(run: RunFolder) -> Markup | None:
    """Return advice to answer all inputs with the global model, if this is as accurate as the run's answers and, beyond
    chance, more accurate than the run's predictions of all inputs and than a guarantee of the run."""
    models, test = (run.summary.models, kept(run.summary)) if run.summary else ({}, None)
    alone, chosen = (models[name].pooled.accuracy if name in models else None for name in ("global", CHOSEN))
    if run.summary is None or test is None or test.answered < _ENOUGH or alone is None or chosen is None:
        return None
    if models["global"].silos not in (None, len(run.silos)):
        return None
    if alone < 1 - (test.risk or 0.0) or alone <= wilson(round(chosen * test.inputs), test.inputs)[1]:
        return None
    promise = run.summary.guarantee
    if promise and wilson(round((1 - alone) * test.inputs), test.inputs)[1] > promise.risk:
        return None
    text = f"Answer all inputs with the global model: {percent(alone)} of all silos' test inputs "
    text += f"are right without abstaining, and {percent(1 - test.wrong / test.answered)} of the run's answers"
    worst = models["global"].worst.accuracy
    text += f"; at least {percent(worst)} at each silo" if worst is not None and len(run.silos) > 1 else ""
    text += "".join(
        f"; of {name} {percent(stream.models['global'].pooled.accuracy)}"
        for name, stream in foreign_streams(run.summary).items() if name != NOBODY and "global" in stream.models
    )  # fmt: skip
    text += ". These answers have no guarantee" if promise else ""
    return Markup("{}.").format(text)


def _local_instead(run: RunFolder) -> Markup | None:
    """Return advice to answer silos' own inputs with their local models, if these are more accurate, beyond chance,
    than the run's predictions, and at least as accurate as its answers."""
    test, models = (kept(run.summary), run.summary.models) if run.summary else (None, {})
    own, chosen = (models[name].pooled.accuracy if name in models else None for name in (ALONE, CHOSEN))
    if test is None or not test.answered or own is None or chosen is None:
        return None
    if models[ALONE].silos not in (None, len(run.silos)) or own < 1 - test.wrong / test.answered:
        return None
    if own <= wilson(round(chosen * test.inputs), test.inputs)[1]:
        return None
    text = "Answer silos' own inputs with their local models (<code>uncertainty.policy = &quot;always&quot;</code>): "
    return Markup(text + "{} of all silos' test inputs are right, and {} of the run's answers.").format(
        percent(own), percent(1 - test.wrong / test.answered)
    )


def _calibrating(run: RunFolder, found: Confidence | None) -> Markup | None:
    """Return advice on settings if confidence is miscalibrated; None otherwise."""
    if found is None or found.kind != "bad" or run.summary is None:
        return None
    if not _tempered(run):
        return Markup(
            "Set <code>uncertainty.temperature_scaling = true</code> to calibrate confidence on validation data."
        )
    if run.summary.guarantee is not None:
        return Markup("Rely on the guarantee rather than on confidence: a temperature is fitted, but is not enough.")
    return Markup(
        "A temperature is fitted, but is not enough. <code>uncertainty.policy = &quot;guaranteed&quot;</code> "
        "answers only as many inputs as a guarantee about errors allows."
    )


def _tempered(run: RunFolder) -> bool:
    by_settings = run.section("uncertainty").get("temperature") is True
    return by_settings or bool(run.summary and run.summary.temperature)


def _leaving(run: RunFolder, alarms: bool) -> Markup | None:
    """Return what to leave to a person: abstentions, or the inputs whose deferral spares many errors, and alarms."""
    curve = run.summary.risk_coverage if run.summary else None
    test = kept(run.summary) if run.summary else None
    if test and 0 < test.answered < test.inputs:
        abstained = Markup("Have a person decide inputs that it abstains from, here {}{}.")
        return abstained.format(percent(1 - test.answered / test.inputs), ", or that raise an alarm" * alarms)
    if curve is None or not curve.risk:
        return None
    points, errors = list(zip(curve.coverage, curve.risk, strict=True)), curve.risk[-1]
    inputs = sum(silo.n_test or 0 for silo in run.silos)
    coverage, risk = min(points, key=lambda point: abs(point[0] - _LEFT))
    if abs(coverage - _LEFT) <= 0.05 and errors - risk >= max(_SPARED, _SHARE_SPARED * errors):
        of = _wrong_of(coverage, risk, inputs)
        limits = dict(zip(curve.coverage, curve.max_uncertainty, strict=False))
        which = (
            f"above {limits[coverage]:.3g}" if coverage in limits else f"among the largest {percent(1 - coverage, 0)}"
        )
        said = Markup(
            "Have a person decide inputs with <code>total_uncertainty</code> {}{}. Of the others by uncertainty, "
        )
        said += Markup("{}, compared with {} of all.").format(of, percent(errors))
        return said.format(which, " or with an alarm" * alarms)
    coverage, risk = max((point for point in points if point[1] <= _FEW_ERRORS), default=(0.0, 0.0))
    if errors > 2 * _FEW_ERRORS and coverage * inputs >= _ENOUGH:
        of = _wrong_of(coverage, risk, inputs)
        text = "Use at most the most certain {} of all silos' inputs: of these {}, compared with {} of all."
        return Markup(text).format(percent(coverage, 0), of, percent(errors))
    return None


def _wrong_of(coverage: float, risk: float, inputs: int) -> str:
    """Return the errors among a share of the test inputs, with their number and 95 % interval."""
    of = round(coverage * inputs)
    wrong = round(risk * of)
    if not of:
        return f"{percent(risk)} are wrong"
    low, high = wilson(wrong, of)
    return f"{percent(wrong / of)} ({wrong:,} of {of:,}) are wrong ({percent(low)} to {percent(high)}, 95 % interval)"
