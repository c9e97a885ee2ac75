"""Measure FedPN's switch by the fraction of known inputs: which threshold, and how accurate compared with either model.

Both commands are for the table fedpn-shares (Fashion-MNIST, 20 silos that drew three classes each).

    CAVEAT_DATA=DIR python benchmarks/known_shares.py choose OUT      about 5 minutes: the handover rate
    python benchmarks/known_shares.py curve DIR                       accuracy of the table's models, by fraction

`choose` trains the table's FedPN with its tuning seeds, which the table does not use. It prints the accuracy of the
switch for several handover rates on validation images: the silo's own, and those of other silos with classes that it
does not know. No test image is used. `curve` reads the output of `caveat reproduce fedpn-shares --out DIR` and prints
means over silos and ten seeds.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path
from statistics import fmean

import torch
from torch import Tensor

from caveat import Run
from caveat.analysis import reproduced_tables
from caveat.analysis.compare.grid import PlannedRun
from caveat.analysis.reproduced_tables import Scale
from caveat.core import Decision
from caveat.files import read_payload
from caveat.runs.finished_run import open_run
from caveat.runs.start import start
from caveat.uncertainty.histograms import finite_sample_quantile

TABLE, ROW, SCORE = "fedpn-shares", "FedPN", "dirichlet_entropy"
OUTLIERS = (0.02, 0.05, 0.1, 0.2, 0.3)
SHARES = tuple(tenth / 10 for tenth in range(11))
MOST = 200
"""Foreign validation images that a silo is asked about."""


def trained(out: Path) -> list[Run]:
    """A run of the table's FedPN for each seed that the table tunes on."""
    table = reproduced_tables.named(TABLE)
    grid = reproduced_tables.grid(table, Scale.cpu, table.seeds)
    row = next(row for row in grid.rows if row.name == ROW)
    rate = grid.override(grid.values(row)[0])
    runs = []
    for seed in grid.seeds_tried:
        folder = out / f"seed-{seed}"
        if not (folder / "summary.json").exists():
            start(PlannedRun(row, grid.columns[0], seed, (rate,)).config(), folder)
        runs.append(open_run(folder))
    return runs


def validated(run: Run) -> dict[str, tuple[float, float]]:
    """By model, or by handover rate: the accuracy on known and on foreign validation images, mean over silos."""
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for silo in run.silos:
        ask, known = run.answers(silo.name), silo.validation
        limits = ask(silo.calibration.x)[Decision.LOCAL].score(SCORE)
        x = torch.cat([other.validation.x for other in run.silos])
        y = torch.cat([other.validation.y for other in run.silos])
        foreign = (~torch.isin(y, silo.train.y)).nonzero()[:, 0]
        foreign = foreign[torch.linspace(0, len(foreign) - 1, min(MOST, len(foreign))).long()]
        parts = [(ask(known.x), known.y), (ask(x[foreign]), y[foreign])]
        right = [{whose: each.label == labels for whose, each in answers.items()} for answers, labels in parts]
        for whose, name in ((Decision.LOCAL, "local model"), (Decision.GLOBAL, "global model")):
            found[name].append(tuple(share(part[whose]) for part in right))
        for handover_rate in OUTLIERS:
            limit = finite_sample_quantile(limits, 1 - handover_rate)
            within = [answers[Decision.LOCAL].score(SCORE) <= limit for answers, _ in parts]
            chosen = [
                torch.where(own, part[Decision.LOCAL], part[Decision.GLOBAL])
                for own, part in zip(within, right, strict=True)
            ]
            found[f"switch, handover rate {handover_rate}"].append((share(chosen[0]), share(chosen[1])))
    return {name: (fmean(k for k, _ in each), fmean(f for _, f in each)) for name, each in found.items()}


def share(right: Tensor) -> float:
    return float(right.double().mean())


def kept(folder: Path) -> dict[str, tuple[float, float]]:
    """What the table's FedPN has right of known and of foreign test images, mean over silos and seeds."""
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    names = {"local": "local model", "global": "global model", "own": "switch"}
    for seed in reproduced_tables.named(TABLE).seeds:
        (path,) = folder.glob(f"runs/*/{ROW}/*/seed-{seed}.inputs.safetensors")
        for right in read_payload(path).values():
            for model, name in names.items():
                found[name].append((share(right[f"{model}/accuracy"]), share(right[f"ood_local/{model}/accuracy"])))
    return {name: (fmean(k for k, _ in each), fmean(f for _, f in each)) for name, each in found.items()}


def printed(found: dict[str, tuple[float, float]]) -> None:
    print("| known |", " | ".join(f"{tenth:.0%}" for tenth in SHARES), "|")
    print("|---|" + "---:|" * len(SHARES))
    for name, (known, foreign) in found.items():
        print(f"| {name} |", " | ".join(f"{100 * (p * known + (1 - p) * foreign):.1f}" for p in SHARES), "|")


def main() -> None:
    command, folder = sys.argv[1], Path(sys.argv[2])
    if command == "curve":
        printed(kept(folder))
        return
    each = [validated(run) for run in trained(folder)]
    printed({name: (fmean(one[name][0] for one in each), fmean(one[name][1] for one in each)) for name in each[0]})


if __name__ == "__main__":
    main()
