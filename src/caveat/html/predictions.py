"""The page of predictions for new inputs: decisions, p-values beside those of the silo's own inputs, and examples."""

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from os.path import splitext
from types import MappingProxyType

from markupsafe import Markup

from ..core import Reason
from ..core.text import equation, joined, listed, percent, plain, plural
from ..uncertainty.statistical_tests import wilson
from . import templates
from .commands import changed, code, option_of
from .p_value_charts import SCORES, alone, by_row, curve, equal, scores
from .predicted_inputs import PredictedInputs
from .predicted_tables import WHY, answers, first, inputs, shifted, strangest, surest, tied
from .templates import Statement, worst_first

_MOST_NOTES, _FEW = 5, 3
_FEW_DIFFERENT = 0.9
"""Share of different inputs below which the page says that inputs are repeated."""

_NEARLY_SELDOM = 0.1
"""Probability of as many alarms by chance below which their number is not called good."""
_ALARMS = (Reason.UNFAMILIAR, Reason.NOVEL, Reason.UNSURE)


def render(found: PredictedInputs) -> str:
    """Return the text of the page."""
    by = ("narrowest", "widest") if "high" in found.figures else ("least uncertain", "most uncertain")
    lines, doubt = verdicts(found), " All inputs together are unlike the silo's own." * found.all_unlike
    return templates.render(
        "predictions.html.j2",
        found=found,
        sentence=sentence(found),
        lines=lines,
        steps=next_steps(found, lines),
        together=[chart for chart in (by_row(found), curve(found, "typicality", "all scores together")) if chart],
        scores=scores(found),
        single=[chart for name, about in SCORES.items() if (chart := curve(found, name, about))],
        equal=equal(found) + alone(found),
        shifted=shifted(found),
        answers=answers(found),
        strangest=inputs(found, strangest(found), f"The strangest inputs, {first(found)}.{tied(found)}", True),
        surest=inputs(found, surest(found), f"Predictions, the {by[0]} first.{doubt}"),
        unsure=inputs(found, surest(found, last=True), f"Predictions, the {by[1]} first."),
    )


def sentence(found: PredictedInputs) -> Markup:
    """Return whether the inputs are unlike the silo's own, how many a person decides, and why, and what the report of
    the run advises."""
    first = bool(found.advised.check) and not (found.advised.against or found.all_unlike)
    return _decided(found) + " First, check the unusual data of the run (see its warning)." * first


def _decided(found: PredictedInputs) -> Markup:
    n, doubtful = len(found.prediction), sum(found.doubtful)
    if found.advised.against:
        text = Markup("<b>{}</b> A person decides {}.")
        which = found.advised.against.replace("Do not use it ", "Do not use this model ", 1)
        return text.format(which, plural(n, "input"))
    if found.all_unlike:
        also = f", nor on the {n - doubtful:,} of them without an alarm" if 0 < doubtful < n else ""
        at, values, most = found.change[0], found.prediction.typicality, ""
        if found.changes and values is not None and not found.unlike:
            later = float(values[at:].nanmean()) < float(values[:at].nanmean())
            most = f", most of all the {f'last {n - at:,}' if later else f'first {at:,}'}"
        text = Markup("<b>Do not rely on these {} yet</b>{}: together, the inputs are unlike the silo's own{}.")
        return text.format(plural(n, "prediction"), also, most)
    over = f"{'only ' * (doubtful > 0)}for an uncertainty above {found.limit or 0:.3g}"
    doubtful, told = sum(found.referred), _why(found.reasons, {over: sum(found.referred) - doubtful})
    beside = found.beside and doubtful < n
    if beside and not (found.alarms and found.alarms.seldom):
        text = Markup("U{}.{}{}")
        others = plural(doubtful, "other input")
        alone = f" A person decides the {others} without the model's label{told}." * (doubtful > 0)
        like = " It is unknown whether the inputs are like the silo's own." * (found.alarms is None)
        return text.format(_beside(found), alone, like)
    if found.alarms is None:
        text = Markup("<b>{}</b> predicted. It is unknown whether the inputs are like the silo's own{}.")
        return text.format(plural(n, "input"), f"; a person decides {doubtful:,}{told}" if doubtful else "")
    if not doubtful:
        return Markup("The model decides <b>all {}</b>: none has an alarm.").format(plural(n, "input"))
    if found.alarms.seldom:
        text = Markup("<b>Check the file first</b>: {:,} of {} raise an alarm, {} expected; as many or more happen by "
                      "chance in {} of files of the silo's own inputs. If these inputs are its own, {}.")  # fmt: skip
        then = f"a person decides {doubtful:,} and the model {n - doubtful:,}"
        return text.format(found.alarms.raised, plural(n, "input"), _expected_alarms(found), percent(found.alarms.p),
                           "u" + _beside(found) if beside else then)  # fmt: skip
    text = Markup("A person decides <b>{}</b> of {}{}, and the model decides <b>{}</b>.")
    return text.format(f"{doubtful:,}", plural(n, "input"), told, f"{n - doubtful:,}")


def _beside(found: PredictedInputs) -> Markup:
    """Return for how many inputs a label is used beside a person's own decision, and why, without the first letter."""
    n, k, why = len(found.prediction), found.positive, ""
    if k is not None and (of := sum(found.confusion[k])):
        why = f": the model misses {of - found.confusion[k][k]:,} of {of:,} test inputs of class "
        why += f"{plain(found.classes[k])!r} here"
    text = Markup("se {:,} of {} <b>only beside a person's own decision</b>, as the run's report says{}")
    return text.format(n - sum(found.referred), plural(n, "label"), why)


def _expected_alarms(found: PredictedInputs) -> str:
    """Return how many alarms are expected among the same number of the silo's own inputs, with the verb."""
    number = len(found.prediction) * found.alarm_rank / (found.ranked_among + 1)
    return "fewer than 1 is" if number < 0.95 else f"about {number:.0f} are" if number >= 1.5 else "about 1 is"


def _why(reasons: Iterable[Reason], more: Mapping[str, int] = MappingProxyType({})) -> str:
    """Return how many inputs have which reason, or one of `more`, in parentheses; "" without any."""
    why = Counter(WHY[reason] for reason in reasons if reason)
    why.update(more)
    told = ", ".join(f"{number:,} {reason}" for reason, number in why.most_common() if number)
    return f" ({told})" if told else ""


def verdicts(found: PredictedInputs) -> list[Statement]:
    """Return the verdicts on all inputs together, the worst first."""
    prediction, lines = found.prediction, list[Statement]()
    n = len(prediction)
    rate = prediction.false_alarm_rate
    if prediction.typicality is None or not rate:
        lines.append(Statement("unknown", "No alarm is possible: the run has no p-values for inputs."))
    elif alarms := found.alarms:
        near = alarms.p < _NEARLY_SELDOM and not alarms.seldom
        chance = f"; this is {'' if alarms.seldom else 'no '}more than chance explains ({equation(alarms.p)})"
        chance = f"; chance can still explain the difference ({equation(alarms.p)})" if near else chance
        chance *= alarms.raised > rate * n
        than = f"all {found.ranked_among:,}" if found.alarm_rank == 1 else f"all but {found.alarm_rank - 1:,} of the "
        than += f"{found.ranked_among:,}" * (found.alarm_rank > 1)
        what = f"is more unusual than {than} calibration inputs of the silo"
        why = _why(reason for reason in found.reasons if reason in _ALARMS) if alarms.unlike else ""
        one_in = f"{found.alarm_rank} in {found.ranked_among + 1:,}"
        told = f"{alarms.raised:,} of {plural(n, 'input')} raise an alarm{why}; "
        told += f"{_expected_alarms(found)} expected ({one_in}) if inputs are like the silo's own{chance}. "
        told += f"An input with an alarm {what}."
        if alarms.seldom and not found.advised.against and not found.all_unlike:  # the headline has the numbers
            told = f"An input with an alarm {what}, as {one_in} of the silo's own are."
        if found.unlike and not alarms.unlike:
            lines.append(Statement("open", f"The absence of an alarm is no evidence here: {told}"))
        else:
            kind = "unknown" if near else "good"
            lines.append(Statement("bad" if alarms.unlike else "open" if alarms.seldom else kind, told))
    elif n:
        among = f"p-values rank inputs among {found.ranked_among:,} calibration inputs only"
        lines.append(Statement("unknown", f"No alarm is possible: {among}."))
    if found.unlike:
        told = listed(found.unlike, _MOST_NOTES)
        lines.append(Statement("bad", f"Over all rows, these columns are unlike the silo's own: {told}."))
    if copies := found.equal_to_training:
        text = f"{copies:,} of {plural(n, 'input')} are (nearly) equal to a training input of the silo, in the "
        text += "features that the model predicts from: if they are copies, these predictions say nothing about new "
        text += "inputs."
        lines.append(Statement("unknown", text))
    if found.changes:
        lines.append(Statement("open", f"{_parts(found)}. The file may have several sources, or be sorted."))
    if found.different and found.different < _FEW_DIFFERENT * n:
        told = f"Only {found.different:,} of {plural(n, 'input')} are different; tests count repeated inputs as "
        lines.append(Statement("open", f"{told}independent."))
    notes = Counter(note for note in prediction.input_notes if note)
    if notes:
        told = "; ".join(f"{plain(note)} ({number:,})" for note, number in notes.most_common(_MOST_NOTES))
        more = f"; {len(notes) - _MOST_NOTES:,} other notes" if len(notes) > _MOST_NOTES else ""
        text = f"{notes.total():,} of {plural(n, 'input')} are unlike the training inputs: {told}{more}."
        lines.append(Statement("open", text))
    if undefined := found.undefined:
        lines.append(Statement("bad", f"{undefined:,} of {plural(n, 'input')} have probabilities that are not finite."))
    return worst_first(lines)


def _parts(found: PredictedInputs) -> str:
    """Return how many inputs raise an alarm in each part of a file in which p-values change."""
    (at, p), n, alarms = found.change, len(found.prediction), found.prediction.alarms.tolist()
    parts = f"{sum(alarms[:at]):,} of the first {at:,} inputs and {sum(alarms[at:]):,} of the other {n - at:,}"
    return f"P-values change near {found.place(at)} (Pettitt's test, {equation(p)}): {parts} raise an alarm"


def next_steps(found: PredictedInputs, lines: Sequence[Statement]) -> list[str]:
    """Return what to do now after these verdicts: check the inputs, leave some to a person, or use the answers."""
    n, doubtful = len(found.prediction), sum(found.referred)
    steps, refused = list[Markup | str](), found.advised.against or found.all_unlike
    if found.advised.check and not refused:
        steps.append(Markup("{} After a new run, predict this file with it.").format(found.advised.check))
    checked = "units, codes and selection of the inputs" if found.cells else "scale and source of the inputs"
    checked = "orientation, contrast and source of the images" if n and found.image(0) else checked
    seen = f' (the run\'s report has some: "Examples of test inputs", {plain(found.silo)})' * found.own_images
    compare = f"Compare {checked} with those of the silo's own inputs{seen}"
    how = "The file has labels: test the model" if found.labelled else "Test the model on more labelled inputs,"
    test = [Markup("{} with {}.").format(how, code(found.evaluating))] * bool(found.evaluating)
    data = [f"Do not judge the model by these predictions: {found.in_sample}"] * bool(found.in_sample)
    another, known = (_another_silo(found), found.of_silo) if found.all_unlike else ([], "")
    if known:
        steps += another
    if refused:
        text = Markup("{} a person decide {}, as the column <code>decides</code> of the CSV says.")
        have = "Until then, have" if known else "Have"
        steps.append(text.format(have, f"all {n:,} inputs" if n > 1 else plural(n, "input")))
    if found.all_unlike:
        beside = f" and compare them with the silo's own images{seen}" * bool(seen)
        check = f"Check {checked}{beside} before you rely on any prediction."
        steps.append(_why_missing(found) or check)
        if found.changes and not known:
            several = "If the file has several sources, predict each as a file of its own: p-values change near {}, "
            several += "and perhaps again."
            steps.append(several.format(found.place(found.change[0])))
        steps += [*another * (not known), *test * found.labelled]
    elif found.advised.against:
        steps += test
    if undefined := found.undefined:
        steps.append(f"Check the values of the {plural(undefined, 'input')} whose probabilities are not finite.")
    first = bool(found.alarms and found.alarms.seldom and doubtful < n and not refused)
    if first:
        steps.append(f"{compare}. If they differ, have a person decide all inputs.")
    if doubtful and not refused:
        rules = [f"typicality of at most {found.prediction.false_alarm_rate:g}"] * (found.alarms is not None)
        rules += [WHY[reason] for reason in dict.fromkeys(found.reasons) if WHY[reason] and reason not in _ALARMS]
        rule = f" ({' or '.join(rules)})" * bool(rules)
        given = sum(found.doubtful)
        over = f"total_uncertainty above {found.limit or 0:.3g} nats, the limit of the run's report"
        alarms = bool(found.alarms) and all(
            reason in _ALARMS for reason, either in zip(found.reasons, found.doubtful, strict=True) if either
        )
        told = [f"{given:,} with {'an alarm' if alarms else 'a reason'}{rule}"] * (given > 0)
        more = f"that {'is' if doubtful - given == 1 else 'are'} only uncertain ({over})"
        told += [f"{doubtful - given:,} {more if given else f'with {over}'}"] * (doubtful > given)
        which = Markup("with <code>decides</code> = person in the CSV")
        which = Markup("without the model's label") if found.beside else which
        text = Markup("{} a person decide {} {}: {}.")
        have = "Otherwise, have" if first else "Have"
        steps.append(text.format(have, plural(doubtful, "input"), which, " and ".join(told)))
    unknown = found.alarms is None or any(line.kind in ("bad", "open") for line in lines)
    if found.undefined or doubtful == n:
        return [*steps, *data]
    others = f"other {plural(n - doubtful, 'input')} in the " * (doubtful > 0)
    what = f"{'values' if found.figures else 'labels'} of the {others}CSV"
    only = " only beside a person's own decision" * found.beside
    check = f"{compare} before using the {what}{',' * bool(only)}{only}."
    wrong = f" {_expected(found)}" * (found.alarms is not None)
    use = f"Use the {what}{only}{' then' * first}."
    last = f"{check if unknown and not first else use}{_undecided(found)}{wrong}"
    return [*steps, last, *_overconfident(found), *data]


def _undecided(found: PredictedInputs) -> str:
    """Return how many labels to use are nearly undecided; empty if none is."""
    if not found.undecided:
        return ""
    how = "a probability below 60 %" if len(found.classes) == 2 else "two classes within 20 points"
    return f" {found.undecided:,} of these {'is' if found.undecided == 1 else 'are'} nearly undecided ({how})."


def _overconfident(found: PredictedInputs) -> list[str]:
    told = "Do not trust the probabilities: according to the run's report, confidence is too high."
    return [told] * found.advised.overconfident


def _why_missing(found: PredictedInputs) -> str:
    """Return what it means that columns are mostly missing here, and more often than in the silo's own rows, if the
    silo of the inputs is known, or else what to find out; "" without such columns."""
    few = [each for each in found.prediction.unlike_columns
           if each.figure == "share missing" and each.here > max(0.5, each.known)]  # fmt: skip
    if not few:
        return ""
    which = [f"{plain(each.name)} {'> 99 %' if 0.995 <= each.here < 1 else percent(each.here, 0)}" for each in few]
    columns = f"columns are mostly missing ({listed(which, _MOST_NOTES)})"
    if found.of_silo:
        there = f", as in the calibration rows of silo {plain(found.of_silo)}"
        same = there * all(each.name in found.missing_there for each in few)
        return f"Here, {columns}{same}: {_fitted(found)} of silo {plain(found.silo)} do not fit such rows."
    return (f"Find out why {columns}: if they are not measured where these rows come from, do not use this silo's "
            "model for such rows.")  # fmt: skip


def _fitted(found: PredictedInputs) -> str:
    """Return the parts of predictions that are fitted at each silo, in words."""
    scaled = found.prediction.uncalibrated_probs is not None
    return joined(["standardization"] * bool(found.cells) + ["temperature"] * scaled + ["calibration"])


def _another_silo(found: PredictedInputs) -> list[Markup]:
    """Return how to predict if the inputs, or some of them, belong to another silo: the one that the file is named
    after, if any."""
    if not found.others:
        return []
    named = found.namesake
    silo = named or "NAME"
    new = {name: f"-{silo}".join(splitext(given)) for name in ("--out", "--report")  # keeps this page and its CSV
           if (given := option_of(found.command, name))}  # fmt: skip
    with_it = changed(found.command, {"--silo": silo, **new}) if found.command else shlex.join(["--silo", silo])
    if found.of_silo:
        text = Markup("These inputs belong to silo {}. Predict them with its {}: {}")
        return [text.format(plain(named), _fitted(found), code(with_it))]
    # Few alarms do not show the silo: among many silos, one raises few by chance.
    text = Markup("If you know from their source, not from alarms, that {} belong to {}, predict them{} with "
                  "its {}: {}")  # fmt: skip
    whose = f"silo {plain(named)}" if named else f"another silo ({listed(list(map(plain, found.others)), _FEW)})"
    which, alone = "these inputs", ""
    if found.changes:
        which, alone = "these inputs, or those of one part,", ", as a file of their own,"
        file = f"PART{splitext(found.source)[1]}"
        with_it = shlex.join(file if word.rpartition("/")[2] == found.source else word for word in shlex.split(with_it))
    return [text.format(which, whose, alone, _fitted(found), code(with_it))]


def _expected(found: PredictedInputs) -> str:
    """Return how many test predictions were wrong: of the silo, and of all silos up to the limit of uncertainty."""
    told = "Without an alarm, a prediction can still be wrong"
    known = found.own if found.limit is not None else found.tested
    parts = [_wrong_at(found, *known)] if known and known[1] else []
    if found.limit is not None and found.tested and found.tested[1]:
        wrong, of = found.tested
        parts.append(f"of all silos' test inputs with total_uncertainty up to {found.limit:.3g}, {wrong:,} of {of:,} "
                     f"were wrong ({rate(wrong, of)}; the limit was chosen on these inputs)")  # fmt: skip
    return f"{told}{':' * bool(parts)} {'; '.join(parts)}".rstrip() + "."


def _wrong_at(found: PredictedInputs, wrong: int, of: int) -> str:
    """Return how many of the silo's answered test inputs were wrong, by class if there are two and all
    were answered."""
    counts, names = found.confusion, list(map(plain, found.classes))
    if sum(map(sum, counts)) != of:
        return f"of the silo's answered test inputs, {wrong:,} of {of:,} were wrong ({rate(wrong, of)})"
    classes = sorted(range(2), key=lambda k: k != found.positive) if len(counts) == 2 else ()
    told = [f"{sum(counts[k]) - counts[k][k]:,} of {sum(counts[k]):,} of class {names[k]!r}" for k in classes]
    by = f": {joined(told)}" if told else ""
    which = "of all test inputs of the silo, with or without an alarm,"
    return f"{which} {wrong:,} of {of:,} were wrong ({rate(wrong, of)}){by}"


def rate(some: int, of: int) -> str:
    """Return a share of wrong or right inputs with its interval."""
    low, high = wilson(some, of)
    return f"{percent(some / of)}, 95 % interval {percent(low)} to {percent(high)}"
