"""Tune the learning rates of `caveat bench`'s rows on validation data, and write them as settings.

    CAVEAT_DATA=DIR python benchmarks/tune_board.py OUT [--rows fedavg ditto ...] [--federations ...] [--workers 2]
        [--seeds 100 101] [--plugin mine.py] [--settings FILE.toml]

Every row tries the same three rates on every federation: a third of the federation's rate, the rate, and three times
the rate, with seeds that no board uses. The score is the mean over silos and seeds of the NLL of a silo's validation
split, with the first source of the method that scales its probabilities by a temperature (one pass, `evidence` or
`draws`) and the method's own decision between models; a failed run has no score. A message names every row whose best
rate is at the edge of its grid. OUT/FEDERATION.SEED.json has all trials; repeat the command to continue.
OUT/settings.toml is the file of --settings with the chosen rates; rows that were not tuned keep theirs. To tune other
keys, call the script with a file of settings and a folder per value, and compare the trials.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
import warnings
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

import caveat
from caveat.bench.federations import FEDERATIONS, LITE, BoardFederation, deal
from caveat.bench.make_cell import SOURCES, sources_of
from caveat.bench.settings import POOLED, SETTINGS, BoardSettings, read_settings
from caveat.files import write_bytes
from caveat.methods.plugins import use

SEEDS = (100, 101)
FACTORS = (1 / 3, 1.0, 3.0)
MARK = "# Rates chosen by benchmarks/tune_board.py"
Trials = dict[str, dict[str, float | None]]
"""By row and rate, the NLL of validation data, or None if the run failed."""


def rates(federation: BoardFederation) -> list[float]:
    return [float(f"{federation.settings.training.lr * factor:.1g}") for factor in FACTORS]


def validation_nll(
    settings: BoardSettings, name: str, federation: BoardFederation, row: str, rate: float, seed: int
) -> float:
    row_method, model, _ = settings.method_of(row, name, federation.settings)
    trained: Any = row_method  # whose rate in the settings, from an earlier tuning, is not the one to try
    method = replace(trained, training=replace(trained.training, lr=rate))
    silos = federation.pooled().silos if row == POOLED else federation.silos
    uncertainty = caveat.Uncertainty(**SOURCES[sources_of(method)[1]])  # type: ignore[arg-type]
    arguments = {"seed": seed, "every": 10**6, "splits": ["validation"], "n_silos": 1}
    run = caveat.run(silos, method, model=model, uncertainty=uncertainty, **arguments)  # type: ignore[arg-type]
    found = []
    for silo in silos:
        probs = run.predictor(silo.name)(silo.validation.x).probs
        found.append(float(-probs.gather(1, silo.validation.y[:, None]).clamp_min(1e-12).log().mean()))
    return fmean(found)


def tune(name: str, seed: int, rows: list[str], data: Path, out: Path, settings_file: Path = SETTINGS) -> None:
    path = out / f"{name}.{seed}.json"
    trials: Trials = json.loads(path.read_text()) if path.exists() else {}
    if missing := [row for row in rows if row not in trials]:
        torch.set_num_threads(1)
        warnings.simplefilter("ignore")
        settings = read_settings(settings_file)
        federation = deal(name, data, seed, 1)
        for row in missing:
            began, found = time.process_time(), {}
            for rate in rates(federation):
                try:
                    found[f"{rate:g}"] = validation_nll(settings, name, federation, row, rate, seed)
                except caveat.CaveatError as error:
                    print(name, seed, row, rate, error, flush=True)
                    found[f"{rate:g}"] = None
            trials[row] = found
            write_bytes(path, json.dumps(trials, indent=1).encode())
            print(name, seed, row, f"{time.process_time() - began:.1f} s", found, flush=True)


def chosen(names: list[str], rows: list[str], out: Path, seeds: Sequence[int] = SEEDS) -> dict[str, dict[str, str]]:
    """Return by row and federation the rate with the lowest mean NLL over seeds."""
    found: dict[str, dict[str, str]] = {row: {} for row in rows}
    for name in names:
        trials = [json.loads((out / f"{name}.{seed}.json").read_text()) for seed in seeds]
        for row in rows:
            means = {
                rate: fmean(math.inf if (nll := each[row][rate]) is None else nll for each in trials)
                for rate in trials[0][row]
            }
            found[row][name] = best = min(means, key=lambda rate: means[rate])
            smallest, *_, largest = means
            if best in (smallest, largest):
                side = "smallest" if best == smallest else "largest"
                print(f"{row} on {name}: the best rate, {best}, is the {side} that was tried", flush=True)
    return found


def blocks(found: dict[str, dict[str, str]], settings: Path = SETTINGS) -> str:
    """Return the text of the settings with the chosen rates below the mark, and the rates of other rows as before."""
    before = {
        row: {name: str(each.training["lr"]) for name, each in own.federations.items() if "lr" in each.training}
        for row, own in read_settings(settings).settings.items()
    }
    text = settings.read_text(encoding="utf-8").partition(MARK)[0].rstrip()
    parts = [text, MARK]
    for row in {**before, **found}:
        if not (by_federation := before.get(row, {}) | found.get(row, {})):
            continue
        if f"[settings.{row}]\n" not in text:
            parts.append(f'\n[settings.{row}]\ntuned = ["training.lr"]')
        parts.append(f"\n[settings.{row}.federations]")
        parts += [f"{name} = {{ training = {{ lr = {rate} }} }}" for name, rate in by_federation.items()]
    return "\n".join(parts) + "\n"


def keep_untuned(settings: Path, out: Path) -> None:
    """Keep the settings, without rates, with which the trials of OUT are made; refuse to add trials with others."""
    text, kept = settings.read_text(encoding="utf-8").partition(MARK)[0].rstrip(), out / "untuned.toml"
    if kept.exists() and kept.read_text(encoding="utf-8") != text:
        raise SystemExit(f"{out} has trials with other settings ({kept}) than {settings}; name a new folder")
    write_bytes(kept, text.encode())


class Help(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Show defaults, and the lines of the description as they are."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=Help)
    parser.add_argument("out", type=Path)
    built_in = read_settings(SETTINGS)
    parser.add_argument("--rows", nargs="+", default=["local", POOLED, *built_in.rows], help="methods to tune")
    parser.add_argument("--federations", nargs="+", default=[*LITE, *FEDERATIONS], help="federations of the board")
    parser.add_argument("--workers", type=int, default=1, help="federations at a time")
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS, help="seeds that no board uses")
    parser.add_argument("--plugin", action="append", default=[], help="file with a method of --rows")
    parser.add_argument("--settings", type=Path, default=SETTINGS, help="settings of the rows, except for rates")
    given = parser.parse_args()
    for plugin in given.plugin:
        use(plugin)
    given.out.mkdir(parents=True, exist_ok=True)
    keep_untuned(given.settings, given.out)
    data = Path(os.environ.get("CAVEAT_DATA", "."))
    with ProcessPoolExecutor(given.workers, get_context("fork")) as pool:
        tasks = [
            pool.submit(tune, name, seed, given.rows, data, given.out, given.settings)
            for seed in given.seeds
            for name in given.federations
        ]
        for task in tasks:
            task.result()
    found = chosen(given.federations, given.rows, given.out, given.seeds)
    write_bytes(given.out / "settings.toml", blocks(found, given.settings).encode())


if __name__ == "__main__":
    main()
