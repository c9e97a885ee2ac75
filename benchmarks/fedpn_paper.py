"""Three tables from the runs of `caveat reproduce fedpn-paper --out DIR`.

    python benchmarks/fedpn_paper.py factors DIR                       FedPN's rows, and which runs collapsed
    python benchmarks/fedpn_paper.py agreement DIR                     the switch and the global model, input by input
    CAVEAT_DATA=DATA python benchmarks/fedpn_paper.py thresholds DIR   Figure 4: the switch, by handover rate

`factors` prints means over seeds, the range over runs of the embeddings' spread (a mean over silos), the number of
runs with the warning `collapsed_embeddings`, and the range of Mix over the other runs. `agreement` prints, for each
run of "FedPN, ours", the fraction of known test inputs that the switch answers with the local model, and the number
for which only the switch or only the global model is right. `thresholds` prints the accuracy of "FedPN, ours" on test
inputs, means over silos and seeds, if other handover rates are applied to the silos' calibration inputs.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from statistics import fmean

import torch
from torch import Tensor

from caveat import Run
from caveat.analysis import reproduced_tables
from caveat.core import Decision, Prediction
from caveat.files import read_comparison, read_payload
from caveat.runs.finished_run import open_run
from caveat.uncertainty.histograms import finite_sample_quantile

TABLE, OURS = "fedpn-paper", "FedPN, ours"
MEASURES = ("InD", "OOD", "Mix", "local model", "global model, Mix")
RATES = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5)


def factors(folder: Path) -> None:
    record = read_comparison(folder / "comparison.json")
    percents = {measure.name: measure for measure in record.measures}
    print("| row | data |", " | ".join(MEASURES), "| spread | collapsed | Mix, others |")
    print("|---|---|" + "---:|" * (len(MEASURES) + 3))
    for row in (row for row in record.rows if row.method == "fedpn"):
        for column in record.columns:
            runs = record.runs(row, column, "done")
            if not runs:
                continue
            means = [record.result(row, column, percents[name]).mean for name in MEASURES]
            summaries = [json.loads((folder / run.folder / "summary.json").read_text()) for run in runs]
            spreads = [fmean(silo["embedding_spread"] for silo in each["silos"]) for each in summaries]
            collapsed = [
                "collapsed_embeddings" in {warning["kind"] for warning in each.get("warnings", ())}
                for each in summaries
            ]
            others = [
                fmean(silo.figures["Mix"] for silo in run.silos)
                for run, bad in zip(runs, collapsed, strict=True)
                if not bad
            ]
            mix = " to ".join(dict.fromkeys(f"{100 * end(others):.1f}" for end in (min, max))) if others else ""
            cells = [f"{100 * mean:.1f}" if mean is not None else "" for mean in means]
            spread = f"{min(spreads):.2g} to {max(spreads):.2g}"
            name = row.name.removeprefix("FedPN, ").removeprefix("by the ")
            print(
                f"| {name} | {column.name} | {' | '.join(cells)} | {spread} | {sum(collapsed)} of {len(runs)} | {mix} |"
            )


def agreement(folder: Path) -> None:
    print("| data | seed | local answers | only the switch right | only the global model right |")
    print("|---|---:|---:|---:|---:|")
    record = read_comparison(folder / "comparison.json")
    for run in record.runs(status="done"):
        if run.row != OURS:
            continue
        local = json.loads((folder / run.folder / "summary.json").read_text())["decisions"]["local"]
        right = read_payload(folder / f"{run.folder}.inputs.safetensors").values()
        switch, other = (torch.cat([each[f"{model}/accuracy"] for each in right]) for model in ("own", "global"))
        only = f"{int((switch > other).sum())} | {int((other > switch).sum())}"
        print(f"| {run.column} | {run.seed} | {local:.1%} | {only} |")


def thresholds(folder: Path) -> None:
    print("| data | inputs |", " | ".join(f"{rate:.0%}" for rate in RATES), "|")
    print("|---|---|" + "---:|" * len(RATES))
    table = reproduced_tables.named(TABLE)
    record = read_comparison(folder / "comparison.json")
    row = next(row for row in record.rows if row.name == OURS)
    for column in record.columns:
        each = [switched(open_run(folder / run.folder)) for run in record.runs(row, column, "done")]
        assert len(each) == len(table.seeds)
        for k, inputs in enumerate(("InD", "OOD")):
            means = [fmean(found[rate][k] for found in each) for rate in RATES]
            print(f"| {column.name} | {inputs} |", " | ".join(f"{100 * mean:.1f}" for mean in means), "|", flush=True)


def switched(run: Run) -> dict[float, tuple[float, float]]:
    """By handover rate: the accuracy of the switch on known and on unknown test inputs, mean over silos."""
    score = run.summary["policy"]["score"]
    found: dict[float, list[tuple[float, float]]] = defaultdict(list)
    for silo in run.silos:
        ask = run.answers(silo.name)
        scores = ask(silo.calibration.x)[Decision.LOCAL].score(score)
        parts = [(ask(data.x), data.y) for data in (silo.test, silo.streams["ood_local"])]
        for rate in RATES:
            limit = finite_sample_quantile(scores, 1 - rate)
            known, unknown = (share(answers, labels, score, limit) for answers, labels in parts)
            found[rate].append((known, unknown))
    return {rate: (fmean(k for k, _ in each), fmean(u for _, u in each)) for rate, each in found.items()}


def share(answers: dict[Decision, Prediction], labels: Tensor, score: str, limit: float) -> float:
    """The accuracy of the local model up to this score, and of the global model above it."""
    local, other = answers[Decision.LOCAL], answers[Decision.GLOBAL]
    right = (local.label == labels).where(local.score(score) <= limit, other.label == labels)
    return float(right.double().mean())


def main() -> None:
    commands = {each.__name__: each for each in (factors, agreement, thresholds)}
    if len(sys.argv) != 3 or sys.argv[1] not in commands:
        sys.exit(__doc__)
    commands[sys.argv[1]](Path(sys.argv[2]))


if __name__ == "__main__":
    main()
