"""What it takes to answer more inputs under a guarantee, as far as test inputs support it."""

from ...core.text import percent
from ...files.schema import GuaranteeRecord, Summary
from ...uncertainty.statistical_tests import score_interval


def to_answer_more(summary: Summary, found: GuaranteeRecord) -> str:
    """Return how many calibration inputs it takes to answer a larger share; or that this takes a better model, if test
    errors at that share exceed the allowed ones beyond chance. Empty if silos have too few inputs."""
    curve, inputs = summary.risk_coverage, sum(silo.n_test or 0 for silo in summary.silos)
    if not (found.enough and curve and curve.risk and inputs) or found.enough_share <= (found.coverage or 0.0):
        return ""
    points = list(zip(curve.coverage, curve.risk, strict=True))
    share, risk = next((each for each in points if each[0] >= found.enough_share), points[-1])
    low, high = score_interval(risk, share * inputs)
    if low <= found.risk:
        text, needed = (
            f" To answer {100 * found.enough_share:.0f} % of inputs takes",
            f"about {found.enough:,} calibration inputs",
        )
        if not found.guaranteed:
            return f"{text} {needed}." if high <= found.risk else ""
        if found.enough - found.total > sum(silo.n_train or 0 for silo in summary.silos):
            return ""  # no split gives as many
        # the estimate assumes one more error than was found
        rare = "if errors stay as rare as on these"
        return f"{text} at most {needed} instead of {found.total:,} {rare} (data.split.calibration)."
    most = max((each for each, errors in points if errors <= found.risk), default=0.0)
    answered = round(share * inputs)
    text = f"at most {100 * found.risk:.6g} % of the most certain {percent(most)} are wrong, but " * bool(most)
    text += f"{percent(risk)} ({round(risk * answered):,} of {answered:,}) of the most certain {percent(share)}"
    how = "" if most else " are wrong"
    return f" On test inputs, {text}{how}: to answer these takes a better model, not only more calibration inputs."
