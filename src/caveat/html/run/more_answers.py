"""A guarantee in words, and what it takes to answer more inputs, as far as test inputs support it."""

from ...core.text import percent
from ...files.schema import GuaranteeRecord, Summary
from ...uncertainty.statistical_tests import binomial_tail, score_interval


def stated(found: GuaranteeRecord) -> str:
    """Return a guarantee in words, with the level at which its share was tested if that is stricter."""
    if found.limit is not None or not found.needed or (level := tested_level(found)) == 1 - found.confidence_level:
        return found.statement
    text = " (several shares are tested, this one at {} confidence: at most {:.3g} % errors)"
    return found.statement + text.format(percent(1 - level), 100 * (found.upper or 0.0))


def tested_level(found: GuaranteeRecord) -> float:
    """Return the level at which the share was tested, which is the one that has its bound on errors; the guarantee's
    own without a bound, or if both are about equal."""
    own = 1 - found.confidence_level
    if found.upper is None or not found.answered:
        return own
    level = 1 - binomial_tail(found.errors + 1, found.answered, found.upper)
    return level if level < 0.99 * own else own


def to_answer_more(summary: Summary, found: GuaranteeRecord) -> str:
    """Return how many calibration inputs answer more if test errors at this share are fewer than allowed beyond chance,
    that these are too many if they are more, or else nothing; nothing if silos have fewer inputs."""
    curve, inputs = summary.risk_coverage, sum(silo.n_test or 0 for silo in summary.silos)
    if not (found.enough and curve and curve.risk and inputs) or found.enough_share <= (found.coverage or 0.0):
        return ""
    points = list(zip(curve.coverage, curve.risk, strict=True))
    share, risk = next((each for each in points if each[0] >= found.enough_share), points[-1])
    low, high = score_interval(risk, share * inputs)
    if low <= found.risk:
        text, needed = (
            f" To answer {100 * found.enough_share:.0f} % takes",
            f"about {found.enough:,} calibration inputs",
        )
        if not found.guaranteed:
            return f"{text} {needed}." if high <= found.risk else ""
        if found.enough - found.total > sum(silo.n_train or 0 for silo in summary.silos):
            return ""  # no split gives as many
        # one error more than found is assumed
        rare = "if errors stay as rare as on these"
        return f"{text} at most {needed} instead of {found.total:,} {rare} (data.split.calibration)."
    most = max((each for each, errors in points if errors <= found.risk), default=0.0)
    answered = round(share * inputs)
    text = f"at most {100 * found.risk:.6g} % of the most certain {percent(most)} are wrong, but " * bool(most)
    text += f"{percent(risk)} ({round(risk * answered):,} of {answered:,}) of the most certain {percent(share)}"
    how = "" if most else " are wrong"
    return f" On test inputs, {text}{how}: to answer these takes a better model, not only more calibration inputs."
