"""Compare silos that join a finished federation with silos that took part from the start, and with training alone.

    python benchmarks/joining.py --out FILE.jsonl            # 10 seeds, about an hour on one core
    python benchmarks/joining.py --out FILE.jsonl --table    # the table from the results so far

The silos are those of `caveat run digits`, nine with three rotations, with that recipe's training and a perceptron. For
every seed, one silo of each rotation is left out of a run, and joins it afterwards with 0, 1 and 5 rounds, each silo by
itself. The finished federation has six silos; the federation "from the start" has nine. The file stores results, and
repeating the command adds the missing ones.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import caveat
from caveat.core.text import plural
from caveat.methods.local import Local
from caveat.nn.models import ModelSettings

TRAINING = caveat.Training(local_epochs=6, batch_size=32, lr=0.003, lr_decay=0.95)
COMMON: dict[str, Any] = {"rounds": 8, "training": TRAINING}
METHODS = {
    "fedavg": caveat.FedAvg(**COMMON),
    "fedbn": caveat.FedBN(**COMMON),
    "uefl": caveat.UEFL(codewords=32, segments=4, threshold=0.3, margin=1, iterations=3, extra_rounds=5, **COMMON),
    "fedpn": caveat.FedPN(**COMMON, personal_steps=0),
    "trfeddis": caveat.TrFedDis(**COMMON),
    "fmlu": caveat.FMLU(**COMMON),
}
ROUNDS = (0, 1, 5)
SETTINGS: dict[str, Any] = {"every": 1000, "model": ModelSettings(name="mlp", width=64, norm=True)}
FIGURES = ("accuracy", "nll", "ece", "entropy", "epistemic")
ROWS = ("from the start", "before", *(plural(count, "round") for count in ROUNDS), "alone")


def left_out(seed: int) -> list[str]:
    """The silos that are left out of a run together, and join by themselves: one of each rotation."""
    return [f"silo-{(seed + 3 * i) % 9}" for i in range(3)]


def figures_of(run: caveat.Run, silo: str, split: str) -> dict[str, float]:
    """A silo's final figures on a split."""
    if split == "test":
        found = next(each for each in run.summary["silos"] if each["name"] == silo)["test"]
    else:
        rows = [row for row in run.rounds if (row["silo"], row["split"], row["phase"]) == (silo, split, "final")]
        found = rows[0]  # of what was decided; each model's by itself come after it
    return {name: found[name] for name in FIGURES}


def measured(seed: int, name: str, split: str) -> dict[str, Any]:
    """By silo that is left out with a seed, its figures in every row of the table."""
    split = caveat.data.Split(train=0.8, validation=0.1, calibration=0.1)
    silos, names = caveat.data.rotated(caveat.data.digits(), seed=seed, split=split), left_out(seed)
    if name == "alone":
        return {silo: {"alone": figures_of(alone(silos, silo, seed), silo, split)} for silo in names}
    whole = caveat.run(silos, METHODS[name], seed=seed, **SETTINGS)
    without = caveat.run(silos, METHODS[name], seed=seed, newcomers=names, **SETTINGS)
    found = {silo: {"from the start": figures_of(whole, silo, split)} for silo in names}
    for rounds in ROUNDS:
        with tempfile.TemporaryDirectory() as place:
            joined = caveat.join(without, rounds=rounds, out=Path(place, "joined"))
            before = json.loads(Path(place, "joined", "join.json").read_text())["before"]
            for silo in names:
                if split == "test":
                    found[silo]["before"] = {figure: before[silo][figure] for figure in FIGURES}
                found[silo][plural(rounds, "round")] = figures_of(joined, silo, split)
    return found


def alone(silos: caveat.data.Silos, name: str, seed: int) -> caveat.Run:
    """A silo that trains by itself, for as many steps."""
    one = caveat.data.Silos((silos.named(name),), silos.classes, silos.normalize)
    return caveat.run(one, Local(**COMMON), seed=seed, **SETTINGS)


def table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Means over joins, and accuracy less that of having been there, its mean and its standard error over seeds."""
    yield "| method | | accuracy | NLL | ECE | entropy | epistemic | difference in accuracy |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    of_seed = {(row["seed"], row["method"]): row["figures"] for row in rows}
    for name in dict.fromkeys(row["method"] for row in rows if row["method"] != "alone"):
        seeds = [seed for seed, method in of_seed if method == name and (seed, "alone") in of_seed]
        all_of = {
            seed: {s: of_seed[seed, "alone"][s] | each for s, each in of_seed[seed, name].items()} for seed in seeds
        }
        for of in ROWS:
            found = {seed: [each[of] for each in all_of[seed].values() if of in each] for seed in seeds}
            if not all(found.values()):
                continue
            mean = {figure: fmean(each[figure] for list_ in found.values() for each in list_) for figure in FIGURES}
            gaps = [
                100 * fmean(each[of]["accuracy"] - each["from the start"]["accuracy"] for each in all_of[seed].values())
                for seed in seeds
            ]
            error = stdev(gaps) / len(gaps) ** 0.5 if len(gaps) > 1 else float("nan")
            numbers = [f"{100 * mean['accuracy']:.1f} %", *(f"{mean[figure]:.3f}" for figure in FIGURES[1:])]
            yield f"| {name} | {of} | {' | '.join(numbers)} | {fmean(gaps):+.1f} ± {error:.1f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first", type=int, default=0, help="the first seed; others than 0 to 9 to choose settings")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--split", choices=("validation", "test"), default="test")
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    rows = [json.loads(line) for line in given.out.read_text().splitlines()] if given.out.exists() else []
    done = {(row["seed"], row["method"]) for row in rows}
    for seed in range(given.first, given.first + (0 if given.table else given.seeds)):
        for name in ("alone", *given.methods.split(",")):
            if (seed, name) not in done:
                rows.append({"seed": seed, "method": name, "figures": measured(seed, name, given.split)})
                with given.out.open("a") as file:
                    file.write(json.dumps(rows[-1]) + "\n")
    print("\n".join(table(rows)))


if __name__ == "__main__":
    main()
