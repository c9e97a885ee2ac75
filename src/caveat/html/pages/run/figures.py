"""From a run to the figures and captions of its report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from statistics import fmean

from markupsafe import Markup

from ....files.run_folder import RunFolder, natural
from ....files.schema.rounds import RoundRow
from ....files.schema.run import Codewords, Reliability, SiloRecord
from ...charts.charts import Event, Line, heat_map, key, line_chart, reliability_diagram, risk_curve, shorten
from ...text import decimal, percent
from .guarantee import kept

_LONGEST_LABEL = 24  # characters: two labels side by side should not cover each other


@dataclass(frozen=True)
class Chart:
    title: str
    drawing: Markup
    caption: str


@dataclass(frozen=True)
class Curves:
    figures: Sequence[Chart]
    legend: Sequence[tuple[Markup, str]]
    growth: Sequence[str]
    silos: Sequence[str]


def domains(run: RunFolder) -> list[str]:
    """In the order of the silos; a silo without a domain stands for itself."""
    return list(dict.fromkeys(row.domain or row.silo for row in sorted(run.curve_rows, key=lambda row: row.round)))


def curves(run: RunFolder) -> Curves | None:
    """Accuracy and entropy over rounds; None without validation rows."""
    rows = run.curve_rows
    if not rows:
        return None
    grown = growth(rows)
    figures = [
        *_curve(run, "accuracy", "Accuracy", lambda value: f"{100 * value:.3g} %", percent, 1.0, grown),
        *_curve(run, "entropy", "Entropy, nats", lambda value: f"{value:g}", decimal, None, grown),
    ]
    legend = [(key(i), name) for i, name in enumerate(domains(run))]
    if len({row.silo for row in rows}) > 1:
        legend.append((key(None, "mean"), f"mean of {run.method or 'the silos'}"))
    legend += [(key(None, f"beside b{i % 3}"), f"mean of {name}") for i, name in enumerate(_with_rows(run))]
    return Curves(figures, legend, _told(grown), list(dict.fromkeys(row.silo for row in rows)))


def growth(rows: Sequence[RoundRow]) -> dict[int, dict[str, int]]:
    """Round -> silo -> own codewords that it received, at the rounds where it is first seen to have more."""
    held: dict[str, int] = {}
    grown: dict[int, dict[str, int]] = {}
    for row in sorted(rows, key=lambda row: (row.round, natural(row.silo))):
        if row.codewords is not None:
            more = row.codewords.private - held.get(row.silo, row.codewords.private)
            if more > 0:
                grown.setdefault(row.round, {})[row.silo] = more
            held[row.silo] = row.codewords.private
    return grown


def _told(grown: dict[int, dict[str, int]]) -> list[str]:
    return [
        f"Round {at}: {_list([f'{silo} (+{more})' for silo, more in silos.items()])} received codewords of their own"
        for at, silos in grown.items()
    ]


def _event(at: int, silos: Sequence[str]) -> Event:
    names = ", ".join(silos)
    return Event(at, names if len(names) <= _LONGEST_LABEL else f"{len(silos)} silos extended")


def _curve(
    run: RunFolder,
    metric: str,
    title: str,
    tick: Callable[[float], str],
    write: Callable[[float | None], str],
    ceiling: float | None,
    grown: dict[int, dict[str, int]],
) -> list[Chart]:
    points = _points(run.curve_rows, metric)
    if not points:
        return []
    series = {name: i for i, name in enumerate(domains(run))}
    domain = {row.silo: row.domain for row in run.curve_rows}
    lines = [
        Line(silo, at, series[domain[silo] or silo], note=f"{_silo(silo, domain[silo])}: {write(at[-1][1])} at the end")
        for silo, at in points.items()
    ]
    if len(points) > 1 and (mean := mean_line(points)):
        lines.append(Line("mean", mean, None, "mean", f"mean: {write(mean[-1][1])} at the end"))
    for i, (name, other) in enumerate(_with_rows(run).items()):
        if mean := mean_line(_points(other.curve_rows, metric)):
            lines.append(Line(name, mean, None, f"beside b{i % 3}", f"mean of {name}: {write(mean[-1][1])} at the end"))
    events = [_event(at, list(silos)) for at, silos in grown.items()]
    better = "higher is better" if metric == "accuracy" else "lower is more certain, right or wrong"
    whose = " with its own model" if {row.model for row in run.curve_rows} == {"local"} else ""
    caption = f"Each line is one silo's {metric}{whose} on its validation samples, drawn by domain; {better}"
    caption += ", and a vertical rule marks where silos received codewords of their own." if events else "."
    compared = comparisons(run)
    caption += " Triangles on the axis mark rounds after which the server compared the silos." if compared else ""
    label = f"{title} per round for {len(points)} silos; final values are in the table above"
    return [Chart(title, line_chart(lines, events, label, tick, ceiling, compared), caption)]


def comparisons(run: RunFolder) -> list[Event]:
    """Where the server compared silos with a threshold, and what it then knew."""
    milestones = run.summary.milestones if run.summary else []
    return [
        Event(int(at), ", ".join(f"{name} {value:.4g}" for name, value in found.items() if value is not None))
        for found in milestones
        if (at := found.get("round")) is not None and found.get("threshold") is not None
    ]


def _points(rows: Sequence[RoundRow], metric: str) -> dict[str, list[tuple[float, float]]]:
    points: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        if (value := getattr(row, metric)) is not None:
            points.setdefault(row.silo, []).append((row.round, value))
    return points


def mean_line(points: dict[str, list[tuple[float, float]]]) -> list[tuple[float, float]]:
    """The mean over silos at the rounds that all of them have: that of a part would jump with who took part."""
    at_round: dict[float, list[float]] = {}
    for at, value in (point for line in points.values() for point in line):
        at_round.setdefault(at, []).append(value)
    return [(at, fmean(values)) for at, values in sorted(at_round.items()) if len(values) == len(points)]


def codebook(run: RunFolder) -> Chart | None:
    """Tokens per codeword and silo; None for methods without a codebook."""
    silos = [silo for silo in run.silos if silo.codeword_use]
    if not silos:
        return None
    uses = [silo.codeword_use or [] for silo in silos]
    most = max(max(use) for use in uses)
    label = f"Heat map of codeword use, {len(silos)} silos by {max(map(len, uses))} codewords, at most {most} tokens"
    names = [_with_perplexity(silo) for silo in silos]
    caption = f"Each cell is how often a silo's test tokens fall on a codeword, log scale, strongest at {most:,}; "
    caption += "empty cells are codewords that the silo never uses"
    perplexed = any(silo.perplexity is not None for silo in silos)
    caption += ", and the number after a name is its perplexity, the count of codewords in effective use." * perplexed
    return Chart("Codeword use", heat_map(names, uses, _shared(silos), label), caption.rstrip(".") + ".")


def _shared(silos: Sequence[SiloRecord]) -> int | None:
    """How many of the columns are shared, if counts and columns agree on it for every silo."""
    held = [(silo.codewords or Codewords(shared=0), len(silo.codeword_use or [])) for silo in silos]
    agreed = {words.shared if words.shared + words.private == columns else None for words, columns in held}
    return agreed.pop() if len(agreed) == 1 else None


def reliability(run: RunFolder) -> tuple[Chart, list[Chart]] | None:
    """The pooled diagram, and one per silo; None if no silo has bins."""
    silos = [(silo, silo.reliability) for silo in run.silos if silo.reliability and sum(silo.reliability.count)]
    if not silos:
        return None
    # Additive bins: this is the diagram of all predictions together, not a mean of diagrams.
    pooled: Reliability = reduce(add, (bins for _, bins in silos))
    total = f"{sum(pooled.count):,} test predictions of {len(silos)} silos"
    caption = f"{total}, binned by confidence: a bin below the diagonal is overconfident, above it underconfident; "
    caption += "vertical bars are 95 % intervals and the histogram is how many predictions a bin holds."
    known = "" if run.summary is None or run.summary.pooled.ece is None else f", ECE {run.summary.pooled.ece:.3f}"
    title = f"All silos pooled{known}"
    figure = Chart(title, reliability_diagram(pooled, f"Reliability diagram of {total}{known}"), caption)
    if len(silos) == 1:
        return figure, []
    return figure, [_small(silo, bins) for silo, bins in silos]


def risk_coverage(run: RunFolder) -> Chart | None:
    """Errors among the answered inputs over the share that is answered; None where no figures are there."""
    summary = run.summary
    if summary is None or summary.risk_coverage is None or len(summary.risk_coverage.risk) < 2:
        return None
    curve, test = summary.risk_coverage, kept(summary)
    policy = (test.answered / test.inputs, test.risk) if test and test.risk is not None else None
    decided = policy if policy and policy[0] < 1 else None
    limit = summary.guarantee.risk if summary.guarantee else None
    label = f"Share of errors over share of answered test inputs, {percent(curve.risk[-1])} when all are answered"
    caption = "Share of wrong predictions among the test inputs of lowest total uncertainty, all silos pooled, by how "
    caption += "many of them are answered; the lower it is at the left, the better uncertainty tells errors."
    if decided:
        caption += f" The diamond is what decisions made of it: {percent(decided[0])} answered, {percent(decided[1])} "
        caption += "of these wrong; it need not lie on the curve, since decisions may go by another score or model."
    return Chart("Errors against answers", risk_curve(curve.coverage, curve.risk, limit, decided, label), caption)


def _small(silo: SiloRecord, bins: Reliability) -> Chart:
    ece = "" if silo.test.ece is None else f"ECE {silo.test.ece:.3f}"
    flag = " \N{BLACK UP-POINTING TRIANGLE}" if silo.test.ece_above_chance else ""
    label = f"Reliability diagram of {silo.name}, {sum(bins.count):,} predictions, {ece}".rstrip(", ")
    return Chart(silo.name, reliability_diagram(bins, label, small=True), ece + flag)


def _with_rows(run: RunFolder) -> dict[str, RunFolder]:
    return {name: other for name, other in run.beside.items() if other.curve_rows}


def _with_perplexity(silo: SiloRecord) -> str:
    return silo.name if silo.perplexity is None else f"{shorten(silo.name, 12)} {silo.perplexity:.1f}"


def _silo(name: str, domain: str) -> str:
    return f"{name} ({domain})" if domain else name


def _list(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
