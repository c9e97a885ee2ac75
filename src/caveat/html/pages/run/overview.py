"""What one sees first: a sentence of result, and a picture of every silo."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from markupsafe import Markup
from scipy.stats import t as student

from ....core.text import percent, plural, signed
from ....files.run_folder import RunFolder
from ...charts.svg import Chart
from .beside_majority import beside_majority
from .kept import kept, kept_by
from .panels import ACCURACY, ENTROPY, decision_bars, panel, panel_legend, rows_of
from .shares import told
from .streams import kinds


@dataclass(frozen=True)
class Overview:
    sentence: Markup
    notes: Sequence[str]
    figures: Sequence[Chart]
    legend: Sequence[tuple[Markup, str]]


def overview(run: RunFolder) -> Overview | None:
    """None without silos that have an accuracy."""
    if run.mean.accuracy is None or not run.silos:
        return None
    rows = rows_of(run)
    figures = [panel(run, rows, ACCURACY), panel(run, rows, ENTROPY), decision_bars(run, rows)]
    return Overview(_sentence(run), _notes(run), [each for each in figures if each], panel_legend(run))


def _sentence(run: RunFolder) -> Markup:
    mean, worst = run.mean.accuracy or 0.0, run.worst
    if (answering := _answering(run)) is not None:
        return answering
    known = Markup("<b>{}</b> is right about <b>{}</b> of {} inputs").format(run.title, percent(mean), run.split)
    if len(run.silos) > 1:
        known += f", mean over {len(run.silos)} silos"
        if worst and worst.accuracy is not None and worst.accuracy < mean:
            of = _count_of(run, worst.silo)
            known += Markup("; <b>{}</b> at {}{}, where it is lowest").format(percent(worst.accuracy), worst.silo, of)
    return known + "."


def _count_of(run: RunFolder, name: str) -> str:
    """How many of a silo's inputs are right, in brackets; empty where it does not say how many it has."""
    silo = next((silo for silo in run.silos if silo.name == name), None)
    if run.summary is None or silo is None or not silo.n_test or silo.test.accuracy is None:
        return ""
    return f" ({round(silo.test.accuracy * silo.n_test):,} of {silo.n_test:,})"


def _answering(run: RunFolder) -> Markup | None:
    """What is answered and how much of that is right, all silos' inputs together; None where all inputs are."""
    test = kept(run.summary) if run.summary else None
    if test is None or test.answered == test.inputs:
        return None
    title, inputs = run.title, plural(test.inputs, "test input")
    if not test.answered:
        return Markup("<b>{}</b> answers <b>none</b> of {}.").format(title, inputs) + _alone(run)
    found = Markup("<b>{}</b> answers <b>{}</b> of {}, <b>{}</b> of them right").format(
        title, percent(test.answered / test.inputs), inputs, percent(1 - test.wrong / test.answered)
    )
    return found + f"; it abstains from the other {test.inputs - test.answered:,}.{_ends(run)}" + _alone(run)


def _ends(run: RunFolder) -> str:
    """How differently silos fare: the shares that they answer, and where most of the answers are wrong."""
    found = {silo.name: each for silo in run.silos if (each := kept_by([silo]))}
    if len(found) < 2:
        return ""
    least, most = (end(found, key=lambda name: found[name].share) for end in (min, max))
    said = f" Silos answer between {percent(found[least].share)} ({least}) and {percent(found[most].share)} ({most})"
    wrong = {name: each.risk for name, each in found.items() if each.risk}
    if wrong:
        worst = max(wrong, key=lambda name: wrong[name])
        said += (
            f"; the largest share of wrong answers is at {worst}, {percent(wrong[worst])} of {found[worst].answered:,}"
        )
    return f"{said}."


def _alone(run: RunFolder) -> str:
    """What the models would be worth if each answered everything."""
    names = ("local", "global")
    models = run.summary.models if run.summary else {}
    found = {name: models[name].mean.accuracy for name in names if name in models}
    if len(found) < 2 or None in found.values():
        return ""
    silos = models["local"].silos
    both = f", mean over the {plural(silos, 'silo')} that have both" if silos and silos < len(run.silos) else ""
    return (
        f" Asked about everything, silos' own models would be right about {percent(found['local'])}, "
        f"the federation's about {percent(found['global'])}{both}."
    )


def _notes(run: RunFolder) -> list[str]:
    notes = [each for each in [beside_majority(run)] if each]
    rivals = {name: r.mean.accuracy for name, r in run.comparable.items() if r.mean.accuracy is not None}
    if rivals:
        best = max(rivals, key=lambda name: rivals[name])
        others = f"the best of {len(rivals)} methods beside it" if len(rivals) > 1 else ""
        notes.append(_compared(run, best, run.comparable[best], others))
    if run.summary and len(kinds(run.summary.decisions or {})) > 1:
        notes.append(f"Decisions about all silos' test inputs: {told(run.summary.decisions or {})}.")
    return notes


def _compared(run: RunFolder, name: str, other: RunFolder, about: str) -> str:
    """The mean difference over the silos that both have, and what it may be by chance."""
    theirs = {silo.name: silo.test.accuracy for silo in other.silos}
    found = [
        silo.test.accuracy - accuracy
        for silo in run.silos
        if silo.test.accuracy is not None and (accuracy := theirs.get(silo.name)) is not None
    ]
    called = f"{name}, {about}," if about else name
    if not found:
        return f"No silo has {run.split} figures of both {run.title} and {name}."
    mean = fmean(found)
    said = f"Compared with {called} it is {abs(100 * mean):.1f} points {'ahead' if mean >= 0 else 'behind'}"
    if len(found) > 2:
        half = float(student.ppf(0.975, len(found) - 1)) * stdev(found) / math.sqrt(len(found))
        low, high = 100 * (mean - half), 100 * (mean + half)
        said += f" (95 % interval over silos {signed(f'{low:.1f}')} to {signed(f'{high:.1f}')})"
        said += ", more than chance over silos explains" if low * high > 0 else ", no more than chance explains"
    return f"{said}."
