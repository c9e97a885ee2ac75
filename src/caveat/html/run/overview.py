"""The overview of a run: its result in a sentence, and the comparison with other methods."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from markupsafe import Markup

from ...core.text import initial, joined, listed, percent, plural, signed, size
from ...files import RunFolder
from ...uncertainty.statistical_tests import score_interval, wilson
from ..templates import Statement
from .advice import below, premature, shortfall
from .classification import (
    ALONE,
    MANY,
    called,
    gap_to,
    judged_together,
    majority_share,
    one_class,
    too_few,
    without_gain,
)
from .domains import in_lowest_domain, lowest_domain
from .guarantee import kept, promise_clause
from .rounds import last_accuracy, total_time
from .silo_baselines import MOST_NAMED, differences_to_alone, useless_alone, worse_alone


@dataclass(frozen=True)
class Overview:
    sentence: Markup
    notes: Sequence[Statement]


def overview(run: RunFolder) -> Overview | None:
    """Return the overview; None without any accuracy."""
    if run.mean.accuracy is None or not run.silos:
        return None
    return Overview(_sentence(run), _notes(run))


def _sentence(run: RunFolder) -> Markup:
    """Return the result of the run, and the accuracy of the majority-class baseline and of other methods."""
    mean = run.mean.accuracy or 0.0
    if only := one_class(run):
        text = Markup("<b>{}</b> predicts <b>class {}</b> for {}; <b>{}</b> of these have this class.")
        return text.format(run.title, only.name, only.of, percent(only.having / only.inputs)) + promise_clause(run)
    known = Markup("<b>Do not use it yet</b>: ") if premature(run) else Markup()
    early = below(run)
    if (answering := _answering(run)) is not None:
        return known + answering + (f" {initial(shortfall(early))}." if early else "")
    sizes = [silo.n_test or 0 for silo in run.silos] if run.summary else [0]
    of, ends = f"{run.split} inputs", ""
    if all(sizes):
        # inputs of a mean over silos have the weight of their silo (Kish, 1965)
        low, high = map(percent, score_interval(mean, len(sizes) ** 2 / sum(1 / n for n in sizes)))
        of, ends = f"{sum(sizes):,} {of}", f" (95 % interval over inputs {low} to {high})"
    several, share = len(run.silos) > 1, percent(mean)
    if len(set(sizes)) > 1 and run.summary and share != percent(run.summary.pooled.accuracy):
        text = Markup("<b>{}</b> has a mean accuracy over {:,} silos of <b>{}</b> on {} inputs{}")
        known += text.format(run.title, len(run.silos), share, run.split, ends)
    else:
        known += Markup("<b>{}</b> predicts <b>{}</b> of {} correctly{}").format(run.title, share, of, ends)
        known += f", mean over {len(run.silos):,} silos" * several
    if lowest := _lowest(run):
        known += f"; {lowest[0]}" + f" ({lowest[1]})" * bool(lowest[1])
    others = {_MOST: majority_share(run)}
    others |= {called(name): other.mean.accuracy for name, other in run.comparable.items()}
    beside = f" {initial(shortfall(early, last_accuracy(run)))}." if early else ""
    return known + "." + _right("", others) + _missed(run) + promise_clause(run) + beside


def _lowest(run: RunFolder) -> tuple[str, str] | None:
    """Return the lowest accuracy of a silo and its numbers; None for many silos, one of which is low by chance."""
    mean, worst = run.mean.accuracy or 0.0, run.worst
    named = worst is not None and worst.silo in chain.from_iterable(without_gain(run))  # named below, with its numbers
    if not 1 < len(run.silos) < MANY or not worst or worst.accuracy is None or worst.accuracy >= mean or named:
        return None
    silo = next((silo for silo in run.silos if silo.name == worst.silo), None)
    if (tied := sum(each.test.accuracy == worst.accuracy for each in run.silos)) > 1:
        return f"the lowest is {percent(worst.accuracy)} at {tied:,} silos", ""
    counts = ""
    if run.summary and silo and silo.n_test and silo.test.accuracy is not None:
        counts = f"{round(silo.test.accuracy * silo.n_test):,} of {silo.n_test:,}"
    return f"the lowest is {percent(worst.accuracy)} at {worst.silo}", counts


def _missed(run: RunFolder) -> str:
    """Return how many inputs of the positive class are missed, and how many others are called positive."""
    found, names = (run.summary.classification, run.summary.classes) if run.summary else (None, None)
    if found is None or not found.confusion or not names or len(names) != 2 or found.positive not in names:
        return ""
    k = names.index(found.positive)
    own, others = found.confusion[k], found.confusion[1 - k]
    said = f" {run.title} misses {own[1 - k]:,} of {plural(sum(own), 'input')} of class {found.positive!r}, and "
    said += f"predicts this class for {others[k]:,} of {plural(sum(others), 'other')}"
    return f"{said}{', by the most probable class rather than by thresholds' * (found.operating is not None)}."


_MOST = "always predicting a silo's most frequent training class"


def _right(of: str, known: Mapping[str, float | None], about: str = "") -> Markup:
    """Return a sentence with the `known` accuracies by name, and `about` after the first; empty if none is known."""
    told = [(name, percent(share)) for name, share in known.items() if share is not None]
    if not told:
        return Markup()
    (first, share), *rest = told
    texts = [f"{first} is right for {share}{about}", *(f"{name} for {share}" for name, share in rest)]
    text = f"{of}{joined(texts)}"
    return Markup(" {}.").format(initial(text) if of or first == _MOST else text)  # names of methods stay as they are


def _answering(run: RunFolder) -> Markup | None:
    """Return the share of answered inputs and their accuracy, all silos' inputs together; None if all are answered."""
    test = kept(run.summary) if run.summary else None
    if run.summary is None or test is None or test.answered == test.inputs:
        return None
    title, inputs, right = run.title, plural(test.inputs, "test input"), test.answered - test.wrong
    if not test.answered:
        found = Markup("<b>{}</b> answers <b>none</b> of {}").format(title, inputs)
    elif run.summary.guarantee and test.weighted:  # the shares of the guarantee have weights
        text = Markup("<b>{}</b> answers <b>{:,}</b> of {}, <b>{:,}</b> of these correctly")
        found = text.format(title, test.answered, inputs, right)
    else:
        text = Markup("<b>{}</b> answers <b>{}</b> of {}, <b>{}</b> of these correctly ({:,} of {:,}; 95 % interval ")
        shares, ends = (test.answered / test.inputs, right / test.answered), wilson(right, test.answered)
        answers, correct, low, high = map(percent, (*shares, *ends))
        found = (text + "{} to {})").format(title, answers, inputs, correct, right, test.answered, low, high)
    most = judged_together(run).majority
    others = {"its prediction": run.summary.pooled.accuracy, _MOST: most.share if most else None}
    others |= {called(name): each.summary.pooled.accuracy for name, each in run.comparable.items() if each.summary}
    about = f" ({', '.join(filter(None, lowest))})" if (lowest := _lowest(run)) else ""
    beside = _right("of all inputs, ", others, about)
    return Markup("{}.{}{}").format(found, promise_clause(run), beside)


def _notes(run: RunFolder) -> list[Statement]:
    notes = [_compared(run, name, other) for name, other in run.comparable.items()]
    return [*notes, *filter(None, [in_lowest_domain(run)])]


def _compared(run: RunFolder, name: str, other: RunFolder) -> Statement:
    """Return the mean difference over common silos, and whether chance explains it."""
    gap = gap_to(run, other)
    if gap is None:
        return Statement("unknown", f"No silo has {run.split} metrics of both {run.title} and {name}.")
    direction = "ahead of" if gap.value >= 0 else "behind"
    said = f"It is {abs(100 * gap.value):.1f} points {direction} {called(name)} in mean accuracy"
    if gap.low is not None and gap.high is not None:
        low, high = 100 * gap.low, 100 * gap.high
        said += f" (95 % interval of the difference over silos {signed(f'{low:.1f}')} to {signed(f'{high:.1f}')})"
        none = ". Chance can explain this, so neither is shown to be better"
        said += ", more than chance explains" if gap.clear else none
    kind = "unknown" if not gap.clear else "good" if gap.value > 0 else "bad"
    lost = worse_alone(run) if name == ALONE and kind != "bad" else []
    if lost:
        kind, gaps = "open", differences_to_alone(run)
        ends = [[f"{-100 * end:.1f}" for end in gaps[each].known] for each in lost[:MOST_NAMED]]
        told = [f"{each} ({by} points; {low} to {high})" for each, (by, high, low) in zip(lost, ends, strict=False)]
        said += f" over silos; training alone is better at {listed(told, MOST_NAMED)}, beyond chance over silos"
    elif kind == "good" and name == ALONE and (lowest := lowest_domain(run)):
        said += lowest.exception
    return Statement(kind, f"{said}.{'' if lost or gap.clear or name != ALONE else _behind_at(run)}")


def _behind_at(run: RunFolder) -> str:
    """Return the silos at which training alone is better, beyond chance without a correction for the number of silos;
    empty for many silos, of which some are by chance, and for small ones."""
    if too_few(run) or not 1 < len(run.silos) < MANY:
        return ""
    known, useless = differences_to_alone(run), useless_alone(run)
    found = [(name, dot.known) for name, dot in known.items() if (dot.high or 0.0) < 0 and name not in useless]
    told = [(name, *(f"{-100 * end:.1f}" for end in known)) for name, known in found]
    text = " At {}, it is {} points behind (95 % interval over its inputs {} to {}, not corrected for {:,} silos)."
    return "".join(text.format(name, by, low, high, len(run.silos)) for name, by, high, low in told)


def headline(run: RunFolder) -> list[str]:
    """Return the size and the cost of the run."""
    count, summary = len(run.silos), run.summary
    of = f" of {count + len(run.absent):,}" if run.absent else ""
    # the sum of the ledger, if there is one
    counted = summary.traffic.bytes_up if summary and summary.traffic else None
    sent = run.sent.total.bytes if summary and run.sent else counted
    measured = f" (of which {size(run.sent.total.measuring)} for metrics)" if summary and run.sent else ""
    rounds = run.record.rounds if run.record else []
    seconds = sum(summary.seconds.values()) if summary else 0
    early = ", stopped early" if summary and summary.stopped else ""
    begun = f", started with {rounds[0]}" if rounds else ""
    found = [
        f"{plural(count, 'silo')}{of}" if count else "",
        f"{plural(run.rounds_run, 'round')}{early}{begun}",
        f"{size(sent)} sent by silos{measured}" if sent else "",
        total_time(seconds) if seconds else "",
    ]
    return [each for each in found if each]
