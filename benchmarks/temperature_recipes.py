"""Measure whether temperature scaling, which is on by default, improves the probabilities of recipes.

Each recipe is trained once per seed: a temperature changes no weights, and predictions include the uncalibrated
probabilities. Prints per recipe and seed the negative log-likelihood of test labels in nats, mean over silos, without
and with the temperature, and the relative change (below 0 is better). "own" is the recipe's own seed. Then it prints
the mean over all seeds of a recipe. There are no malicious silos: the script also counts the training updates that
exceeded the bound of docs/how-to/byzantine.md; if there are none, the run is bit-identical to one without the bound.
`digits` needs no data; the others need CAVEAT_DATA.

CAVEAT_DATA=DIR python benchmarks/temperature_recipes.py RECIPE... [--seeds 0,1,2] [--rounds N] [--set KEY=VALUE]...
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import NamedTuple

from torch import Tensor

import caveat
from caveat import Prediction, config, metrics
from caveat.core import Decision


def nll(probs: Tensor, y: Tensor) -> float:
    """Mean negative log-likelihood in nats."""
    found = metrics.figures(metrics.measure(Prediction.from_samples(probs[None], Decision.GLOBAL), y))
    return float(found["nll"])


class Measured(NamedTuple):
    """What a run says of a recipe."""

    without: float
    """The mean over silos of the likelihood without the temperature."""
    with_: float
    above: int
    """Updates that were longer than the bound."""
    updates: int


def measured(recipe: str, sets: Sequence[str]) -> Measured:
    asked = config.load(recipe, [*sets, "baselines=[]"])
    if not asked.uncertainty.temperature_scaling:
        raise SystemExit(f"{recipe}: uncertainty.temperature_scaling is off")
    silos = caveat.data.load(asked.data, asked.seed)
    with TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        run = caveat.run(
            silos, asked.build_method(), model=asked.model, seed=asked.seed, every=1000,
            uncertainty=asked.uncertainty, out=out,
        )  # fmt: skip
        rows = []
        for silo in silos:
            said = run.predictor(silo.name)(silo.test.x)
            rows.append((nll(said.uncalibrated, silo.test.y), nll(said.probs, silo.test.y)))
        above = sum(json.loads(line).get("times_bound") is not None for line in lines(out / "rounds.jsonl"))
        updates = sum(json.loads(line).get("phase") == "train" for line in lines(out / "ledger.jsonl"))
    without, with_ = (mean(column) for column in zip(*rows, strict=True))
    return Measured(without, with_, above, updates)


def lines(file: Path) -> list[str]:
    return file.read_text().splitlines()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="+")
    parser.add_argument("--seeds", type=lambda text: [int(each) for each in text.split(",")], default=[])
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--set", action="append", default=[], dest="sets")
    given = parser.parse_args()
    sets = given.sets + ([f"rounds={given.rounds}"] if given.rounds else [])
    for recipe in given.recipes:
        own = config.load(recipe, sets).seed
        rows = []
        for seed in dict.fromkeys([own, *given.seeds]):
            found = measured(recipe, [*sets, f"seed={seed}"])
            rows.append((found.without, found.with_))
            bound = f"{found.above} of {found.updates} updates above the bound"
            about = f"{recipe}, seed {seed}{' (own)' if seed == own else ''}"
            print(f"{about}: {told(found.without, found.with_)}; {bound}", flush=True)
        print(f"{recipe}, mean of {len(rows)} seeds: {told(*(mean(column) for column in zip(*rows, strict=True)))}")


def told(without: float, with_: float) -> str:
    return f"without {without:.4f}, with {with_:.4f}, {with_ / without - 1:+.2%}"


if __name__ == "__main__":
    main()
