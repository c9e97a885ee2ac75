"""What codewords a run's silos use, and how right they are for how sure they are."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import add

from ....core.text import cut, percent
from ....files.run_folder import RunFolder
from ....files.schema.figures import Reliability
from ....files.schema.summary import Codewords, SiloRecord
from ...charts.diagrams import heat_map, reliability_diagram, risk_curve, small_reliability_diagram
from ...charts.svg import Chart
from .kept import kept


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
    policy = (test.answered / test.inputs, test.wrong / test.answered) if test and test.answered else None
    decided = policy if policy and policy[0] < 1 else None
    limit = summary.guarantee.risk if summary.guarantee else None
    inputs = sum(silo.n_test or 0 for silo in run.silos)
    label = f"Share of errors over share of answered test inputs, {percent(curve.risk[-1])} when all are answered"
    caption = "Share of wrong predictions among the test inputs of lowest total uncertainty, all silos pooled, by how "
    caption += "many of them are answered, with 95 % intervals point by point; dashed is an oracle, which knows all "
    caption += "errors. The nearer to it, the better uncertainty tells errors."
    if decided:
        caption += f" The diamond is what decisions made of it: {percent(decided[0])} answered, {percent(decided[1])} "
        caption += "of these wrong; it need not lie on the curve, since decisions may go by another score or model."
    return Chart(
        "Errors against answers", risk_curve(curve.coverage, curve.risk, inputs, limit, decided, label), caption
    )


def _small(silo: SiloRecord, bins: Reliability) -> Chart:
    ece = "" if silo.test.ece is None else f"ECE {silo.test.ece:.3f}"
    flag = " \N{BLACK UP-POINTING TRIANGLE}" if silo.test.ece_above_chance else ""
    label = f"Reliability diagram of {silo.name}, {sum(bins.count):,} predictions, {ece}".rstrip(", ")
    return Chart(silo.name, small_reliability_diagram(bins, label), ece + flag)


def _with_perplexity(silo: SiloRecord) -> str:
    return silo.name if silo.perplexity is None else f"{cut(silo.name, 12)} {silo.perplexity:.1f}"
