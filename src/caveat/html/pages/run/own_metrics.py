"""The user's own metrics, by silo and over silos."""

from __future__ import annotations

from ....core.text import decimal
from ....files.run_folder import RunFolder
from ...tables import Table, column, table, words


def own_metrics(run: RunFolder) -> Table | None:
    """A row per silo, then the mean over silos and the worst of each metric; None for a run without such metrics."""
    summary = run.summary
    if summary is None or not summary.metrics:
        return None
    names = [silo.name for silo in run.silos]
    metrics = {silo.name: silo.metrics for silo in summary.silos}
    columns = [words("silo", [*names, "mean", "worst of each"])]
    for name, over in summary.metrics.items():
        values = [metrics.get(silo, {}).get(name) for silo in names]
        better = "higher" if over.higher_is_better else "lower"
        columns.append(
            column(name, map(decimal, (*values, over.mean, over.worst)), f"{better} is better; defined at {over.silos}")
        )
    return table(columns, "Metrics of your own on each silo's test split; one that is not defined there is left out.",
                 names, 2)  # fmt: skip
