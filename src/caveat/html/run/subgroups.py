"""Metrics by subgroup of inputs, which show whether guarantees hold and predictions are calibrated in each subgroup."""

from ...core.text import decimal, percent, significant
from ...files import RunFolder
from ...files.schema import GuaranteeRecord, SubgroupRecord
from ..templates import Cell, Table, column, table, words
from .guarantee import alone

QUANTITY = (
    ("MAE", "mae", "mean absolute error of medians"), ("RMSE", "rmse", "root of the mean squared error of means"),
    ("CRPS", "crps", "continuous ranked probability score of the distributions; lower is better"),
)  # fmt: skip
TIME = (
    ("C", "c_index", "Harrell's C-index: share of comparable pairs of inputs in the right order"),
    ("Uno's C", "c_index_uno", "C-index with weights for censoring"),
    ("Brier", "integrated_brier", "integrated Brier score with weights for censoring; lower is better"),
)
"""Metrics of quantities and of times: title, key, and meaning."""
CAPTION = (
    "Test inputs of all silos by subgroup. A subgroup has its own guarantee, prediction sets and alarms with enough "
    "calibration inputs; otherwise it is pooled with the next larger subgroup, and they share a guarantee."
)
REPORTED = "Test inputs of all silos by subgroup. Guarantees are for all inputs together, not for each subgroup."


def subgroup_table(run: RunFolder) -> Table | None:
    """Return a table with a row per subgroup; None for a run without subgroups."""
    if run.summary is None or not run.summary.subgroups:
        return None
    found, guarantee = run.summary.subgroups, run.summary.guarantee
    pools = guarantee.subgroups if guarantee else []
    columns = [
        words("subgroup", [each.name for each in found]),
        column("test inputs", [f"{each.examples:,}" for each in found]),
        column("accuracy", [percent(each.accuracy) for each in found]),
        column("ECE", [decimal(each.ece, 3) for each in found]),
        *(
            column(head, [significant(getattr(each, name)) for each in found], help)
            for head, name, help in (*QUANTITY, *TIME)
        ),
        column("coverage", [percent(each.interval_coverage) for each in found], "inputs within their interval"),
        column("NLL", [decimal(each.nll, 3) if each.accuracy is not None else "" for each in found]),
        column("answered", [percent(each.coverage) if guarantee else "" for each in found]),
        column("wrong among these", [_subgroup_errors(each, guarantee) for each in found], _promised(guarantee)),
        column("label in set", [percent(each.set_coverage) for each in found]),
        column("classes in set", [decimal(each.set_size) for each in found]),
        column("alarms", [percent(each.alarms) for each in found], "of unfamiliar, novel or unsure inputs"),
        words("guarantee of", [" and ".join(_pool(each, pools)) for each in found]),
    ]
    return table(columns, CAPTION if run.section("uncertainty").get("by_subgroup") else REPORTED)


def _pool(found: SubgroupRecord, pools: list[GuaranteeRecord]) -> list[str]:
    """Return the subgroups that share a subgroup's guarantee."""
    return next((pool.of for pool in pools if found.name in pool.of), [])


def _promised(guarantee: GuaranteeRecord | None) -> str:
    return f"at most {100 * guarantee.risk:.6g} % are guaranteed" if guarantee else ""


def _subgroup_errors(found: SubgroupRecord, guarantee: GuaranteeRecord | None) -> Cell:
    """Return the share of errors among answered inputs, flagged if it is above the guarantee beyond chance."""
    test = alone(found, found.examples) if found.accuracy is not None else None
    if guarantee is None or test is None or test.risk is None:
        return Cell("")
    own = _pool(found, guarantee.subgroups) == [found.name]
    flag = "more errors than guaranteed" if own else "more errors than guaranteed for inputs of several subgroups"
    return Cell(percent(test.risk), flag if test.broken(guarantee.risk) else "")
