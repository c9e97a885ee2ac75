"""Advice on what to do with a run's model, the most important first."""

import math
import shlex
from collections.abc import Sequence

from markupsafe import Markup, escape

from ...core.text import joined, listed, percent, plural
from ...files import RunFolder
from ...files.schema import WarningRecord
from ...uncertainty.statistical_tests import wilson
from ..commands import code
from ..diagrams import Dot
from ..templates import Statement
from .alarms import AN_ALARM, alarms_only
from .classification import (
    ALONE,
    MANY,
    MOST_ROWS,
    OneClass,
    baseline,
    gap_to,
    judged,
    judged_together,
    one_class,
    too_few,
    without_gain,
)  # fmt: skip
from .confidence import LEVEL, Confidence, silos_off
from .decisions import fewer_handed_over, local_only, not_foreign
from .domains import lowest_domain
from .guarantee import exceeding, kept
from .incidents import rate, varied
from .nothing_answered import unanswered
from .rerun_commands import WITH_ALONE, by, longer, seconds, twice, unknown_alone
from .rounds import rising
from .silo_baselines import MOST_NAMED, alone_at, behind_alone, missed_at, no_use, worse_alone

_ENOUGH = 100
"""Minimum number of the most certain test inputs for advice on them."""
_FEW_ERRORS = 0.05
"""Target error rate of the model's answers if deferring a tenth of the inputs leaves too many errors."""
_MOST_STEPS = 4
BESIDE = "Only beside a person's own decision, "
"""The beginning of advice on the use of labels that miss many inputs of the positive class."""
_EVERY = "Have a person check every prediction"
_OR_ALARM = f", or that raise {AN_ALARM}"


def not_learned(run: RunFolder, only: OneClass | None) -> Markup:
    """Return what to do with a model that is no better than a constant prediction, or predicts `only` one class."""
    if only:
        text = "Do not use it at any silo: it predicts class {} {}. Train for more <code>rounds</code> "
        text += "or with another <code>training.lr</code>{}."
        alone, other = Markup(", or {} training alone (method <code>{}</code>){}"), run.comparable.get(ALONE)
        better = ", which is better than a constant prediction" if other and judged_together(other).majority else ""
        told = alone.format("use" if other else "try", ALONE, better)
        none = run.method == ALONE or len(run.silos) < 2 or (other and no_use(other))
        return Markup(text).format(only.name, only.always, Markup() if none else told)
    text = f"Do not use this model: {_NO_GAIN}. Train for more "
    text += "<code>rounds</code> or with another <code>training.lr</code>, and check the labels."
    return Markup(text)


def advice(run: RunFolder, found: Confidence | None, outside: Statement | None, alarms: bool) -> list[Markup]:
    """Return what to do now with a model that has learned, the most important first; `alarms` is whether some inputs
    raise an alarm."""
    behind, other = behind_alone(run), run.comparable.get(ALONE)
    alone = alone_step(run, behind, gap_to(run, other) if other and not no_use(other) else None)
    more = longer(run)
    if alone and behind:
        return [alone, more] if more else [alone]
    if below(run):
        return _instead(run, more, outside)
    if none := unanswered(run, more):
        return none
    wrong = _mostly_wrong(run)
    if wrong and more:
        return [more]
    gained, steps, lost = without_gain(run), list[Markup | None](), worse_alone(run)
    unknown: Markup | None = None
    local: Markup | None = None
    gained = gained[0], [name for name in gained[1] if name not in lost]
    if too_few(run) and len(run.silos) > 1:
        gained = gained[0], []  # single silos have too few inputs to be judged
    if doubt := _retest(run, alarms):
        steps = [*_where_not(run, *gained), *doubt]
    else:
        test = kept(run.summary) if run.summary else None
        few = bool(test and 0 < test.answered < test.inputs)
        unknown = not_foreign(run, outside, few and not alarms_only(run))
        local = local_only(run, always(run))
        early = more if (gain := rising(run)) and gain.clear else None  # a new model needs another temperature
        first = early and Markup("{} Then judge the new run.").format(early)
        steps = [first, alone_at(run, lost) if lost else None, *_where_not(run, *gained), unknown, local]
        steps += [_above_at(run), None if early else _calibrating(run, found)]
        checked = Markup(f"{_EVERY}: {{}}").format(wrong) if wrong else None
        steps += [None if few and unknown else _leaving(run, alarms) or checked]
        steps += [None if early else more or (None if lost else alone)]
    found_steps = [each for each in steps if each][: _MOST_STEPS - 1]
    if where := [silo.name for silo in run.silos if not any(silo.name in names for names in (*gained, lost))]:
        whole = any(escape(text) in step for step in found_steps for text in (AN_ALARM, _EVERY))
        told = not alarms or doubt or wrong or whole
        check = "" if told else f", and have a person decide those with {AN_ALARM}"
        if unknown in found_steps:
            found_steps += [] if local in found_steps else [_known_only(run, where)]  # both steps concern own inputs
        elif missed := missed_at(run, where):
            found_steps.append(predicting(run, where, f": {missed}", BESIDE))
        else:
            found_steps.append(predicting(run, where, check))
    return found_steps


def _known_only(run: RunFolder, where: Sequence[str]) -> Markup:
    """Return how to predict new inputs where no foreign ones can arrive."""
    test, left = kept(run.summary) if run.summary else None, ""
    if test and 0 < test.answered < test.inputs:
        share = percent(1 - test.answered / test.inputs)
        left = f", and have a person decide those that it abstains from (here {share})"
    return predicting(run, where, left, "Where only inputs like a silo's own can arrive, ")


def premature(run: RunFolder) -> bool:
    """Return whether the run should not be used yet: a simple model is better, or most predictions are wrong and
    validation accuracy still rose."""
    return bool(below(run) or (_mostly_wrong(run) and longer(run)))


def _instead(run: RunFolder, again: Markup | None, outside: Statement | None) -> list[Markup]:
    """Return what to do if a simple model is better, where `again` is how to train for more rounds if these are known
    to help; the run's own local models come first where they are better on own inputs."""
    more, other = again or Markup("Train for more <code>rounds</code>{}.").format(twice(run)), "Or {}."
    last = Markup(other).format(_other_rate(run))
    if local := local_only(run, always(run)):
        known = (run.summary.policy.model_extra or {}).get("handover_rate") if run.summary else None
        lower = varied(run, "less-switched", "--set", f"uncertainty.handover_rate={known / 2:g}") if known else ""
        first = [local, fewer_handed_over(run, by(lower, sum(seconds(run))))]
        further = "Or " + again[:1].lower() + again[1:] if again else None
        return [step for step in (*first, further, not_foreign(run, outside, False)) if step]
    if not unknown_alone(run):
        return [more, last]
    found = run.summary.warnings if run.summary else ()
    linear = any(each.kind == "below_reference" and not each.silos for each in found)
    why = ": on their own validation inputs, even a linear model of each silo is better than this run" * linear
    if twice(run):
        return [more + Markup(" This also trains silos alone{}.").format(why), last]
    return [more, Markup("Or train silos alone (method <code>{}</code>){}.").format(ALONE, why), last]


def always(run: RunFolder) -> Markup:
    """Return how to answer every input with the local models: the command, or the setting."""
    found = run.section("uncertainty")
    if found.get("score") and not found.get("familiarity", True):  # this score is refused with the policy "always"
        return Markup(", with <code>uncertainty.policy = &quot;always&quot;</code>, without <code>score</code>")
    command = varied(run, "always", "--set", "uncertainty.policy=always")
    return by(command, sum(seconds(run))) or Markup(": set <code>uncertainty.policy = &quot;always&quot;</code>")


def _other_rate(run: RunFolder) -> Markup:
    """Return what to do about the learning rate: raise it if all temperatures are so low that logits are small."""
    used, found = rate(run)[0], run.summary.temperature if run.summary else {}
    if used is None or not found or max(found.values()) > _SMALL_LOGITS:
        return Markup("use another <code>training.lr</code>")
    text = Markup("raise <code>training.lr</code> (now {:g}){}: the logits are still small (temperature {:.2g})")
    command = varied(run, "higher-lr", "--set", f"training.lr={3 * used:g}")
    return text.format(used, by(command, sum(seconds(run))), max(found.values()))


_SMALL_LOGITS = 0.2
"""Temperature up to which logits are small because training has not gone far."""


def _mostly_wrong(run: RunFolder) -> str:
    """Return how many test inputs are predicted wrongly, if these are more than half; else an empty text."""
    accuracy, inputs = (run.summary.pooled.accuracy if run.summary else None), sum(s.n_test or 0 for s in run.silos)
    if accuracy is None or accuracy >= 0.5 or not inputs:
        return ""
    wrong = round((1 - accuracy) * inputs)
    return f"{percent(1 - accuracy)} of test inputs ({wrong:,} of {inputs:,}) are predicted wrongly."


def below(run: RunFolder) -> WarningRecord | None:
    """Return the warning that all silos' predictions are less accurate than a simple model; None without one."""
    found = run.summary.warnings if run.summary else []
    return next((each for each in found if each.kind.startswith("below_") and not each.silos), None)


def shortfall(warning: WarningRecord, own: float | None = None) -> str:
    """Return by how much predictions, of accuracy `own` on the validation inputs if this is known, are less accurate
    than the simple model of a warning; its text if it has no numbers."""
    if not warning.against_baseline:
        return warning.text[:1].lower() + warning.text[1:].removesuffix(".")
    inputs, lost, gained = (warning.against_baseline[name] for name in ("inputs", "only_baseline", "only_model"))
    points = 100 * (lost - gained) / inputs
    if own is not None:
        text = f"{_SIMPLE[warning.kind]} is right for {percent(own + points / 100)} of {inputs:,} validation inputs, "
        return f"{text}this run for {percent(own)}"
    text = f"{_SIMPLE[warning.kind]} is {points:.0f} points more accurate on {inputs:,} validation inputs (only it is "
    return f"{text}right for {lost:,}, and only this run for {gained:,})"


_SIMPLE = {
    "below_majority": "always predicting a silo's most frequent training class",
    "below_reference": "a simple linear (ridge) model of each silo's own training inputs",
}


def predicting(run: RunFolder, silos: Sequence[str], check: str = "", only: str = "") -> Markup:
    """Return how to predict new inputs of some silos, with the `check` that a person makes, and where or how `only`."""
    silo = silos[0] if len(silos) == 1 else "SILO"
    command = shlex.join(["caveat", "predict", run.given or run.path.name, "FILE", "--silo", silo])
    names = joined(silos) if len(silos) <= MOST_NAMED else listed(silos, MOST_NAMED)
    of = f" of {names}" if 1 < len(silos) < len(run.silos) else ""
    return Markup("{}redict new inputs{} with {}{}.").format(f"{only}p" if only else "P", of, code(command), check)


_NOT_AT = "Do not use it at {}, where always predicting the most frequent class is more accurate, beyond chance."
_NO_GAIN = "it is no more accurate than always predicting the most frequent class"


def refusal(run: RunFolder, silo: str) -> str:
    """Return why a silo's model should not be used; empty if the test metrics give no reason."""
    based = baseline(run)
    if based and based[0] == "bad":
        return str(not_learned(run, one_class(run)).striptags())
    return _NOT_AT.format(silo) if silo in without_gain(run)[0] else ""


def against(run: RunFolder, silo: str) -> str:
    """Return the advice against a silo's model, also if test inputs merely do not show its use; empty without any."""
    if wrong := _mostly_wrong(run):
        return refusal(run, silo) or f"Do not use this model: {wrong}"
    alone = [] if too_few(run) and len(run.silos) > 1 else without_gain(run)[1]
    (said,) = (str(step.striptags()) for step in _where_not(run, [], [silo])) if silo in alone else ("",)
    known = {each.name: of.majority for each, of in zip(run.silos, judged(run), strict=True)}.get(silo)
    counts = f" ({known.right + known.gained - known.lost} and {known.right} of {known.inputs} right)" if known else ""
    return refusal(run, silo) or (f"{said.removesuffix('.')}{counts}." if said else "")


def _where_not(run: RunFolder, worse: list[str], unknown: list[str]) -> list[Markup]:
    """Return where not to use it, and where test inputs do not show whether it is of use."""
    steps = [Markup(_NOT_AT).format(listed(worse, MOST_NAMED))] if worse else []
    where = listed(unknown, MOST_NAMED)
    if len(unknown) > MANY:
        which = "CSV of all" if len(run.silos) > MOST_ROWS else "table of"
        where = f"{len(unknown):,} of {len(run.silos):,} silos (listed in the {which} silos)"
    text = f"Do not use it at {{}} before a test on more inputs there: {_NO_GAIN}."
    return [*steps, Markup(text).format(where)] if unknown else steps


def _retest(run: RunFolder, alarms: bool) -> list[Markup]:
    """Return what to do, in order, if there are more test errors than a guarantee of all silos together allows, beyond
    chance at its confidence level; empty otherwise."""
    promise, test = (run.summary.guarantee, kept(run.summary)) if run.summary else (None, None)
    if run.summary is None or promise is None or test is None or test.risk is None or not promise.guaranteed:
        return []
    if not test.doubtful(promise) or any(silo.promise for silo in run.summary.silos):
        return []
    at = exceeding(run.summary)
    where = f", most clearly at {listed(at, MOST_NAMED)}" if at else ""
    if test.broken(promise.risk):
        text = Markup("Have a person check every answer: its guarantee does not hold here{}.").format(where)
        return [text, Markup("Use more calibration inputs (<code>data.split.calibration</code>), and run it again.")]
    first = Markup("Until a test on more inputs, have a person check every answer{}.")
    # with as many answers, the 95 % interval of a share like this one is above the guarantee
    answers = 1.96**2 * promise.risk * (1 - promise.risk) / (test.risk - promise.risk) ** 2
    further = 10 * math.ceil(answers / test.effective * test.inputs / 10)
    total = test.answered + round(further * test.share)
    most = math.floor(promise.risk * total + 1e-9)
    text = Markup("Test it on {:,} further labelled inputs, in the same mixture of silos, with {}. If at most {:,} ")
    text += Markup("of about {:,} answers are wrong, with those of this run ({:,} wrong), rely on answers, and have ")
    text += Markup("a person decide the inputs that it abstains from, here {}{}; else use more calibration inputs ")
    by = code(shlex.join(["caveat", "evaluate", run.given or run.path.name, "FILE", "--silo", "NAME"]))
    share = percent(1 - test.share)
    return [
        first.format(where),
        text.format(further, by, most, total, test.wrong, share, _OR_ALARM * alarms) + "and run it again.",
    ]


def _above_at(run: RunFolder) -> Markup | None:
    """Return what to do at silos whose test inputs exceed the guarantee."""
    summary = run.summary
    if summary is None or summary.guarantee is None or not summary.guarantee.guaranteed or not kept(summary):
        return None
    own, at = any(silo.promise for silo in summary.silos), exceeding(summary)
    text = "Have a person check answers at {}: more of them are wrong than the guarantee allows{}."
    return Markup(text).format(listed(at, MOST_NAMED), "" if own else " on average over silos") if at else None


def alone_step(run: RunFolder, behind: bool, gap: Dot | None, error: bool = False) -> Markup | None:
    """Return how to find out whether the federation helps, or that it does not; `gap` is the difference in accuracy, or
    in an `error`, to training alone. None if the federation is better, or if this cannot be tested here."""
    if run.method == ALONE or run.federated or len(run.silos) < 2:
        return None
    if ALONE not in run.comparable:
        again = varied(run, "and-alone", "--set", WITH_ALONE)
        how = by(again, 2 * seconds(run)[0]) or Markup(" with <code>{}</code>").format(WITH_ALONE)
        text = "Find out whom the federation helps: train silos alone, too,{}."
        return Markup(text).format(how) if unknown_alone(run) else None
    if behind:
        text = Markup("Use training alone instead (method <code>{}</code>), which is better than this federation.")
        return text.format(ALONE)
    if gap is None or (gap.value <= 0 if error else gap.value >= 0):
        return None
    options = ("--methods", f"{run.method},{ALONE}", "--seeds", "0,1,2,3,4")
    text = "Compare it with training alone over 5 seeds, which also draw other test inputs,{}: here, training alone "
    text += "has the {}, which may be chance."
    command = varied(run, "seeds", *options, command="compare")
    own, beside = run.summary, run.comparable[ALONE].summary
    took = sum(sum(each.seconds.values()) for each in (own, beside) if each)
    return Markup(text).format(by(command, 5 * took), "lower error" if error else "higher accuracy")


def _calibrating(run: RunFolder, found: Confidence | None) -> Markup | None:
    """Return advice if confidence is miscalibrated; None otherwise."""
    if found is None or run.summary is None or found.p >= LEVEL:
        return None
    if not found.over and _tempered(run):
        off = silos_off(run)
        at = [one.silo.name for one in found.silos if not one.over and one.silo.name in off]
        where = f" at {listed(at, MOST_NAMED)}" if at else "; no single silo shows this"
        return Markup("Read its confidence as too low{}.").format(where if len(run.silos) > 1 else "")
    if found.kind != "bad" and found.over:
        return None
    if not _tempered(run):
        return Markup(
            "Set <code>uncertainty.temperature_scaling = true</code> to calibrate confidence on validation data."
        )
    if run.summary.guarantee is not None:
        return Markup("Rely on the guarantee rather than on confidence: a temperature is fitted, but is not enough.")
    command = varied(run, "guaranteed", "--set", "uncertainty.policy=guaranteed")
    given = run.section("uncertainty")
    plain = given.get("policy") in (None, "always") and not given.get("score")  # with others, it may be refused
    how = by(command, sum(seconds(run))) if plain else Markup()
    how = how or Markup(" with <code>uncertainty.policy = &quot;guaranteed&quot;</code>")
    text = (
        "For a bound on errors, run it again{}: it answers only as many inputs as the bound allows. A temperature is "
    )
    return Markup(f"{text}fitted, but is not enough.").format(how)


def _tempered(run: RunFolder) -> bool:
    by_settings = run.section("uncertainty").get("temperature") is True
    return by_settings or bool(run.summary and run.summary.temperature)


def _leaving(run: RunFolder, alarms: bool) -> Markup | None:
    """Return what to leave to a person: abstentions, or the inputs whose deferral prevents many errors, and alarms."""
    curve = run.summary.risk_coverage if run.summary else None
    test = kept(run.summary) if run.summary else None
    if test and 0 < test.answered < test.inputs:
        abstained = Markup("Have a person decide inputs that it abstains from, here {}{}.")
        return abstained.format(percent(1 - test.answered / test.inputs), _OR_ALARM * alarms)
    if curve is None or not curve.risk:
        return None
    points, errors = list(zip(curve.coverage, curve.risk, strict=True)), curve.risk[-1]
    inputs = sum(silo.n_test or 0 for silo in run.silos)
    found = curve.deferral
    if found and found[1] > 2 * _FEW_ERRORS:
        best = max((point for point in points if point[1] <= _FEW_ERRORS), default=(0.0, 0.0))
        rest = f"{_EVERY}: even without the most uncertain {{}} of test inputs, {{}}"
        rest = rest.format(percent(1 - found[0], 0), _wrong_of(*found[:2], inputs))
        surest = f"; of the most certain {percent(best[0], 0)}, only {percent(best[1])}" * (best[0] * inputs >= _ENOUGH)
        return Markup("{}{}.{}").format(rest, surest, lowest.errors if (lowest := lowest_domain(run)) else "")
    if found:
        coverage, risk, limit = found
        of = _wrong_of(coverage, risk, inputs)
        which = f"among the largest {percent(1 - coverage, 0)}"
        which = which if limit is None else f"above {limit:.3g} nats (the most uncertain tenth)"
        referred, wrong = inputs - round(coverage * inputs), round(errors * inputs)
        found_errors = wrong - round(risk * round(coverage * inputs))
        said = Markup("Have a person decide inputs with <code>total_uncertainty</code> {}{}: {} of {:,} test inputs, ")
        said += Markup("with {}{:,} of {}. Of the less uncertain inputs{}, {}; the limit was chosen on the same ")
        said += "inputs."
        raised = sum(round((silo.test.alarms or 0.0) * (silo.n_test or 0)) for silo in run.silos) if alarms else 0
        # it is unknown how many inputs are uncertain and raise an alarm, too
        which_ones = [f"{each:,}" for each in dict.fromkeys((max(referred, raised), min(referred + raised, inputs)))]
        union, least = " to ".join(which_ones), "at least " * (raised > 0)
        whose, alarm = " of all silos" * (len(run.silos) > 1), f" or with {AN_ALARM}" * alarms
        return said.format(which, alarm, union, inputs, least, found_errors, plural(wrong, "error"), whose, of)
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
    return f"{percent(wrong / of)} ({wrong:,} of {of:,}) are wrong (95 % interval {percent(low)} to {percent(high)})"
