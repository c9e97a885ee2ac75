"""The audit's page: findings, a chart over fractions of the data, and tables."""

from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction

from markupsafe import Markup

from ..core.text import apart, equation, initial, joined, minus, more_seeds, percent, plural, tick
from ..files.schema import AuditFile, Finding, FusedCopies
from ..uncertainty.statistical_tests import MOST_SEEDS, seeds_needed, student_quantile
from . import templates
from .audit_data_fractions import Rows, legend, means_by_size, sweep_figure, sweep_table
from .commands import changed, option_of
from .diagrams import Dot, dot_plot, dots, lay_out, named
from .svg import Chart, group, line, rect, ticks, written
from .templates import Statement, Table, column, table

_TEMPLATE = "audit.html.j2"


def render(audit: AuditFile) -> str:
    """Return the text of the page of audit.json."""
    return templates.render(
        _TEMPLATE,
        audit=audit,
        sentence=sentence(audit.findings),
        steps=next_steps(audit),
        command=command(audit),
        verdicts_of=verdicts(audit.findings),
        estimates=findings_figure(audit.findings),
        sweep=sweep_table(audit.runs),
        chart=sweep_figure(audit.runs),
        legend_entries=legend(audit.runs),
        fusion=fusion_table(audit.fusion),
        shares=", ".join(map(fraction, audit.shares)),
    )


_KINDS = {
    "does not hold": ("bad", "no", "does not hold", "do not hold"),
    "cannot say": ("unknown", "undecided", "is undecided", "are undecided"),
    "holds": ("good", "yes", "holds", "hold"),
}
"""The mark, the word, the singular and the plural of each verdict on the page."""


def sentence(findings: Sequence[Finding]) -> str:
    """Return how many of the promises do not hold, are undecided, and hold."""
    counts = Counter[str](each.verdict for each in findings if each.verdict in _KINDS)
    told = [f"{n} {_KINDS[verdict][2 + (n > 1)]}" for verdict in _KINDS if (n := counts[verdict])]
    if no := sum(each.verdict == "cannot say" and _word(each) == "leaning no" for each in findings):
        told = [f"{each} ({no} of them leaning no)" if "undecided" in each else each for each in told]
    return f"Of {plural(counts.total(), 'promise')} of these uncertainties, {joined(told)}."


def _word(finding: Finding) -> str:
    """Return the word of a verdict or, for an undecided estimate with an interval, the side of its limit."""
    dot = _estimate(finding)
    if finding.verdict == "cannot say" and _off(finding):
        return "leaning no"
    if finding.verdict != "cannot say" or dot is None or dot.low is None or dot.value == finding.measured["limit"]:
        return _KINDS[finding.verdict][1]
    return "leaning yes" if (dot.value > finding.measured["limit"]) == _above(finding) else "leaning no"


def _above(finding: Finding) -> bool:
    """Return whether a promise holds above its limit."""
    return finding.name.startswith(("seeds", "disagreement"))


def verdicts(findings: Sequence[Finding]) -> list[Statement]:
    """Return every promise with its verdict and the number that decides, those that do not hold first."""
    text = Markup("<b>{}: {}.</b> {}: {}")
    return [Statement(_KINDS[each.verdict][0], text.format(initial(each.name), _word(each),
                       initial(each.claim), shortly(each)))
             for verdict in _KINDS for each in findings if each.verdict == verdict]  # fmt: skip


def shortly(finding: Finding) -> str:
    """Return what was found in a line, or the sentence of a finding without numbers that decide."""
    if dot := _estimate(finding):
        told = next(told for key, told in _DECIDING.items() if key in finding.measured)
        return f"{told} {_numbers(finding, dot)}{_p(finding)}{_beside(finding)}."
    if "above_chance" not in finding.measured:
        return finding.sentence[:1].lower() + finding.sentence[1:]
    if _off(finding):
        return _miscalibrated(finding)
    chance = finding.measured["p"] >= _LEVEL
    told = f"errors are {'as' if chance else 'above those'} by chance ({equation(finding.measured['p'])})"
    if excess := _excess(finding):
        told += f", the mean calibration error is {excess} above that by chance"
    if len(finding.measured["above_chance"]) < 2:
        return f"{told}; one seed does not decide."
    limit, most = finding.measured["limit"], finding.measured.get("excess_at_most")
    if finding.verdict == "holds" or most is None or most >= limit:
        ruled = f"; an excess of {limit} is {'not ' * (finding.verdict != 'holds')}ruled out"
    else:
        ruled = f"; in some seeds, there are too few test inputs to rule out confidences that are {limit} too high"
    return f"{told}{ruled * chance}."


def _off(finding: Finding) -> bool:
    """Return whether the test of confidence alone finds more error than chance explains."""
    measured = finding.measured
    return "above_chance" in measured and len(measured["above_chance"]) > 1 and bool(measured["p"] < _LEVEL)


def _p(finding: Finding) -> str:
    """Return the p-value, corrected for all promises; "" without one."""
    return f", corrected {equation(finding.measured['p_corrected'])}" if "p_corrected" in finding.measured else ""


def _excess(finding: Finding) -> str:
    """Return the mean calibration error above that by chance, with its interval; "" without one."""
    excess = finding.measured.get("excess", {})
    each = [minus(f"{excess[name]:.3f}") for name in ("mean", "low", "high")] if "high" in excess else []
    return f"{each[0]} ({each[1]} to {each[2]})" if each else ""


def _miscalibrated(finding: Finding) -> str:
    """Return in how many tests of silos calibration errors are above those by chance."""
    measured = finding.measured
    tests = measured["silos"] * len(measured["above_chance"])
    told = f"{sum(measured['above_chance'])} of {plural(tests, 'test')} of silos find more calibration error than "
    told += f"chance explains ({_LEVEL * tests:.1f} are expected; together {equation(measured['p'])}{_p(finding)})"
    if excess := _excess(finding):
        told += f"; the mean excess is {excess}"
    return f"{told}."


def _beside(finding: Finding) -> str:
    """Return the exponent of aleatoric uncertainty, for which nothing is promised; "" if it was not measured."""
    found = finding.measured.get("aleatoric_exponent")
    if not found or "high" not in found:
        return ""
    return ". For aleatoric uncertainty, the exponent of n is {} ({} to {})".format(
        *apart(found["mean"], found["low"], found["high"])
    )


_LEVEL = 0.05
_DECIDING = {"partial": "partial correlation", "exponent": "exponent of n", "rank_correlation": "rank correlation"}
"""Keys and names of measurements; the limit of a finding is for the first one that the finding has."""


def _estimate(finding: Finding) -> Dot | None:
    """Return what was compared with the finding's limit, with its interval over seeds; None if nothing was compared."""
    found = next((finding.measured[key] for key in _DECIDING if key in finding.measured), None)
    if not found or "limit" not in finding.measured or found.get("mean") is None:
        return None
    value, low, high = found["mean"], found.get("low"), found.get("high")
    if "rank_correlation" in finding.measured:
        low, high = (None if end is None else min(max(end, -1.0), 1.0) for end in (low, high))
        if value < 0 and finding.name.startswith("aleatoric"):  # a reversed ranking is the same ranking
            value, low, high = -value, *(None if end is None else -end for end in (high, low))
    return Dot(value, low, high)


def _numbers(finding: Finding, dot: Dot) -> str:
    """Return an estimate with its interval and limit."""
    (told,), limit = apart(dot.value), finding.measured["limit"]
    if dot.low is not None and dot.high is not None:
        told += " (95 % interval {} to {})".format(*apart(dot.low, dot.high, limit))
    return f"{told}, promised {'above' if _above(finding) else 'below'} {tick(limit)}"


def findings_figure(findings: Sequence[Finding]) -> Chart | None:
    """Return each estimate with its interval over seeds and the limit that decides; None without any."""
    shown_ones = [each for verdict in _KINDS for each in findings if each.verdict == verdict]
    known = [(each, dot) for each in shown_ones if (dot := _estimate(each))]
    ends = [end for each, dot in known for end in (*dot.known, each.measured["limit"])]
    if not ends:
        return None
    values = ticks(min(ends), max(ends), 6)
    shown = (values[0], values[-1])
    rows = lay_out([(f"{initial(each.name)}: {_word(each)}", [""]) for each, _ in known], 24, shown)
    drawn, notes = list[Markup](), list[str]()
    for (each, dot), y in zip(known, rows.at, strict=True):
        notes.append(f"{each.name}: {_numbers(each, dot)}: {_word(each)}")
        limit = rows.frame.x(each.measured["limit"])
        left, right = (limit, rows.frame.right) if _above(each) else (rows.frame.left, limit)
        drawn += [
            rect((left, y - 9), right - left, 18, "track"),
            line((limit, y - 9), (limit, y + 9), "boundary"),
            group(notes[-1], dots(rows.frame, 0, [(dot, y)], 4.2), class_="c1" if each in _broken(findings) else "c0"),
        ]
    label = "Estimates with intervals over seeds, and limits. " + "; ".join(notes)
    about = "Estimates with 95 % intervals over seeds, not corrected for the number of promises. Values in the gray "
    about += "area are as promised. The axis is for exponents of n and for rank correlations (that of aleatoric and "
    about += "epistemic without its sign)."
    if any(each.name == "confidence" for each in shown_ones):
        about += " Confidence has no row: it is tested by the number of silos with errors above chance."
    return Chart(
        "Estimates, intervals and limits", dot_plot(rows, label, written(values, tick), "", *named(rows), *drawn), about
    )


def _broken(findings: Sequence[Finding]) -> list[Finding]:
    return [each for each in findings if each.verdict == "does not hold"]


def next_steps(audit: AuditFile) -> list[str]:
    """Return what to do with the findings: what to use, and how to decide open questions."""
    broken = _broken(audit.findings)
    steps = [_INSTEAD.get(each.name, f"Do not rely on it: {each.claim}.") for each in broken]
    if zero := any(each.measured.get("practically_zero") for each in audit.findings):
        steps.append("Do not use epistemic uncertainty here: it is practically zero.")
    if any(each.verdict == "cannot say" and _off(each) for each in audit.findings):
        steps.append(_CAREFUL)
    steps += [*_growth(audit.runs), *_decrease(audit.findings)]
    if audit.accuracy.warning:
        return ["Train for more rounds or with another training.lr, then repeat the audit.", *steps]
    unknown = [each for each in audit.findings if each.verdict == "cannot say"]
    held = [each for each in audit.findings if each.verdict == "holds"]
    if unknown:
        claims = "; ".join(each.claim for each in held if each.name not in _USE)
        relied = [_USE[each.name] for each in held if each.name in _USE]
        relied += [f"Rely only on what holds: {claims}."] if claims else []
        banned = zero or any(each.name == "seeds" for each in broken)  # another step bans the column epistemic
        columns = "column aleatoric" if banned else "columns aleatoric and epistemic"
        relied = relied if held else ["Do not rely on these uncertainties yet."]
        meanwhile = f"Until the rest is decided, do not use the {columns} of single predictions; the report of a run "
        steps.insert(0, " ".join([*relied, f"{meanwhile}shows whether total_uncertainty finds errors."]))
    inputs = [each.measured for each in unknown if each.name == "confidence" and "limit" in each.measured]
    if changed_labels := _unsettled(audit):
        return [*steps, _longer(audit, changed_labels, "Confidence takes more test inputs, not seeds." * bool(inputs))]
    if inputs:
        now, needed = inputs[0].get("inputs"), inputs[0].get("inputs_needed")
        size = f"about {needed:,} test inputs instead of {now:,}" if now and needed else "more test inputs"
        how = "(more data, or a larger data.split.test); more seeds do not help"
        steps.append(f"To decide on confidence, repeat the audit with {size} {how}.")
    needed = _seeds_needed(audit)
    if beyond := _beyond(needed):
        steps.append(f"{beyond} Such estimates are close to their limits.")
    if decided := [name for name, seeds in needed.items() if seeds]:
        seeds = seeds_to_decide(audit)
        given = "" if audit.command else f" (--seeds {more_seeds(audit.seeds, seeds)})"
        runs = (seeds - len(audit.seeds)) * len(audit.runs) // len(audit.seeds)
        more = f", {runs} runs more than these {len(audit.runs)}" * bool(runs)
        text = f"Repeat with about {seeds} seeds{given}{more}. They decide each of the following with a chance of 80 % "
        each = [f"{name} ({max(_FEWEST, needed[name] or 0)})" for name in decided] if decided[1:] else decided
        steps.append(f"{text}if its estimate is right: {'; '.join(each)}.")
    return steps or ["Use these uncertainties as their names say, on data like these."]


_INSTEAD = {
    "epistemic and data": "Do not read epistemic uncertainty as lack of data: it decreases too little with more data.",
    "aleatoric and epistemic": "Use only one of aleatoric and epistemic uncertainty: they rank inputs almost equally.",
    "disagreement": "Do not read epistemic uncertainty of an input as disagreement of models.",
    "seeds": "Do not single out inputs by epistemic uncertainty: which inputs have high values depends on the seed. "
    'An ensemble (uncertainty.source = "ensemble") averages over seeds.',
    "confidence": "Do not read probabilities as frequencies at every silo: some are off by more than chance explains. "
    "More validation inputs (data.split.validation) give more exact temperatures.",
}
"""What to do about promises that do not hold."""
_USE = {
    "epistemic and data": "Use epistemic uncertainty only as a mean over inputs, which decreases with more data.",
}
"""The use of a promise that holds, if it is not what the promise says."""
_CAREFUL = (
    "Be careful if you read probabilities as frequencies: tested alone, errors of some silos are above those by chance."
)
_MANY_CHANGED = 0.2
"""Share of labels that change between seeds above which more training is advised first."""


def _longer(audit: AuditFile, changed_labels: float, end: str) -> str:
    """Return advice to train for more rounds, and with more seeds if these leave promises open, with its cost."""
    ran, seeds, needed = len(audit.seeds), seeds_to_decide(audit), _seeds_needed(audit)
    also = f" and {seeds} seeds" * bool(seeds)
    text = f"Repeat the audit with twice as many rounds{also} ({2 * (seeds or ran) / ran:g} times the training of this "
    text += f"one): {percent(changed_labels)} of labels differ between two seeds, which more rounds may reduce."
    if decided := [name for name, count in needed.items() if count]:
        text += f" If estimates stay as here, {seeds} seeds decide each of these with a chance of 80 % or more: "
        text += f"{'; '.join(decided)}."
    return " ".join(filter(None, [text, _beyond(needed), end]))


def _beyond(needed: dict[str, int | None]) -> str:
    """Return the open findings that no advised number of seeds decides, as a sentence; "" without any."""
    beyond = [name for name, seeds in needed.items() if not seeds]
    few = f"Do not expect a few more seeds to decide {'; '.join(beyond)}: if estimates are right, this takes more than"
    return f"{few} {MOST_SEEDS}." if beyond else ""


def _unsettled(audit: AuditFile) -> float:
    """Return the share of labels that differ between two seeds, if it is large; 0 otherwise."""
    changed_labels = max((each.measured.get("labels_changed", 0.0) for each in audit.findings), default=0.0)
    return changed_labels if changed_labels > _MANY_CHANGED else 0.0


def _seeds_needed(audit: AuditFile) -> dict[str, int | None]:
    """Return the number of seeds that decide each open finding with a chance of 80 %, after a correction for all
    promises, with None for more than `MOST_SEEDS`; empty if accuracy is too low to say."""
    found, freedom = dict[str, int | None](), max(1, len(audit.seeds) - 1)
    level = _LEVEL / max(1, sum("p_corrected" in each.measured for each in audit.findings))
    for each in audit.findings:
        dot = _estimate(each)
        if each.verdict == "cannot say" and dot and not audit.accuracy.warning:
            found[each.name] = max(_FEWEST, len(audit.seeds) + 1)
            if dot.low is not None and dot.high is not None:
                half, limit = max(dot.value - dot.low, dot.high - dot.value), each.measured["limit"]
                half *= student_quantile(1 - level / 2, freedom) / student_quantile(1 - _LEVEL / 2, freedom)
                found[each.name] = seeds_needed(dot.value - limit, half, len(audit.seeds), level)
    return found


def seeds_to_decide(audit: AuditFile) -> int:
    """Return the number of seeds that decide each of the findings that at most `MOST_SEEDS` decide; 0 without any."""
    known = [seeds for seeds in _seeds_needed(audit).values() if seeds]
    return max(_FEWEST, *known) if known else 0


_FEWEST = 5
"""Fewest seeds of an audit that is repeated."""


def command(audit: AuditFile) -> str:
    """Return the audit's command with twice the rounds if many labels differ between seeds, and with seeds that would
    decide what is open; "" if nothing is open, or if no command would decide it."""
    given, out = option_of(audit.command, "--set rounds"), option_of(audit.command, "--out")
    seeds = seeds_to_decide(audit)
    if _unsettled(audit):
        longer = {"--set rounds": str(2 * int(given)), "--out": f"{out}-longer"} if given.isdecimal() and out else {}
        if longer and seeds:
            longer["--seeds"] = more_seeds(audit.seeds, seeds)
        return changed(audit.command, longer) if longer else ""
    return changed(audit.command, {"--seeds": more_seeds(audit.seeds, seeds)}) if audit.command and seeds else ""


_GROWN = 2.0
"""Ratio of aleatoric uncertainty with all data to that with the least data above which its growth is stated."""


def _growth(rows: Rows) -> list[str]:
    """Return advice if aleatoric uncertainty grows with data."""
    data = means_by_size(rows, "aleatoric") if all("aleatoric" in row for row in rows) and rows else []
    if len(data) < 2 or not data[-1][1] > _GROWN * data[0][1] > 0:
        return []
    (few, low, *_), *_, (most, high, *_) = data
    return [
        f"Do not take aleatoric uncertainty for noise in the data: it is {low:.3f} nats with {few:,.0f} training "
        f"examples per silo and {high:.3f} with {most:,.0f}, so models of few examples are too sure."
    ]


def _decrease(findings: Sequence[Finding]) -> list[str]:
    """Return advice if aleatoric uncertainty decreases with data, beyond the limit of epistemic uncertainty."""
    for each in findings:
        found, limit = each.measured.get("aleatoric_exponent", {}), each.measured.get("limit", 0.0)
        if found.get("high") is not None and found["high"] < limit:
            text = (
                "Do not take aleatoric uncertainty for noise in the data: it decreases with more data, too, with n to "
            )
            return [text + "the power of {} ({} to {}).".format(*apart(found["mean"], found["low"], found["high"]))]
    return []


def fraction(share: float) -> str:
    """Return a fraction as 1/4 if a denominator up to 1000 is exact, otherwise in decimals."""
    near = Fraction(share).limit_denominator(1000)
    return str(near) if float(near) == share else f"{share:g}"


def fusion_table(fusion: Mapping[str, Sequence[Sequence[FusedCopies]]]) -> Table | None:
    """Return a row per number of copies, two columns per rule: means over silos and seeds."""
    if not fusion:
        return None
    copies = [row.copies for row in next(iter(fusion.values()))[0]]
    columns = [column("copies", (f"{count:.0f}" for count in copies))]
    for rule, by_seed in fusion.items():
        for name in ("vacuity", "confidence"):
            means = [sum(getattr(rows[i], name) for rows in by_seed) / len(by_seed) for i in range(len(copies))]
            columns.append(column(f"{name}, {rule}", (f"{mean:.3g}" for mean in means)))
    caption = "Means over the test inputs of runs with all data: a rule that recognizes copies changes neither "
    return table(columns, f"{caption}are.")
