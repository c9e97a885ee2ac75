"""A guarantee in words, and what it takes to answer more inputs, as far as test inputs support it."""

from ...core.text import percent
from ...files.schema import GuaranteeRecord, Summary
from ...uncertainty.statistical_tests import binomial_tail, score_interval


def stated(found: GuaranteeRecord) -> tuple[str, str]:
    """Return a guarantee in words, and how many calibration inputs answer more by calibration inputs alone."""
    said, _, more = found.statement.partition("; to answer ")
    if found.limit is None and found.needed and found.upper is not None and found.answered:
        # the level at which the share was tested has this bound
        level = 1 - binomial_tail(found.errors + 1, found.answered, found.upper)
        if level < 0.99 * (1 - found.confidence_level):
            said += f" (several shares are tested, this one at {percent(1 - level)} confidence: at most "
            said += f"{100 * found.upper:.3g} % errors)"
    return said, f"To answer {more}." * bool(more)


def to_answer_more(summary: Summary, found: GuaranteeRecord) -> str:
    """Return how many calibration inputs answer more if test errors at this share are fewer than allowed beyond chance,
    that these are too many if they are more, or else nothing."""
    curve, inputs, more = summary.risk_coverage, sum(silo.n_test or 0 for silo in summary.silos), stated(found)[1]
    if not more or curve is None or not inputs or found.enough_share is None:
        return ""
    points = list(zip(curve.coverage, curve.risk, strict=True))
    share, risk = next((each for each in points if each[0] >= found.enough_share), points[-1])
    low, high = score_interval(risk, share * inputs)
    if low <= found.risk:
        return f" {more}" if high <= found.risk else ""
    most = max((each for each, errors in points if errors <= found.risk), default=0.0)
    answered = round(share * inputs)
    text = f" On test inputs, at most {100 * found.risk:.6g} % of the most certain {percent(most)} are wrong, but "
    text += (
        f"{percent(risk)} ({round(risk * answered):,} of {answered:,}) of the most certain {percent(share)}: to answer "
    )
    return text + "these takes a better model, not only more calibration inputs."
