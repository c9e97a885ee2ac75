"""A run on the tables of two silos, with or without a data dictionary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import caveat
from caveat import Run, Uncertainty
from caveat.data.tables.declarations import DictionaryColumn

MLP = caveat.ModelSettings(name="mlp", width=8, features=6, hidden=8)
QUICK = caveat.Training(local_epochs=1, batch_size=16, lr=0.01)
DICTIONARY = (
    DictionaryColumn(name="age", unit="years", range=(0, 100)),
    DictionaryColumn(name="value", range=(-20, 20), missing=(-9,), outside="missing"),
    DictionaryColumn(name="smokes", type="category", values=("1", "2", "3", "4")),
)


def table(folder: Path, dictionary: Any = (), words: tuple[str, ...] = ("yes", "no", "before"), **settings: Any) -> Run:
    """`settings` are those of the uncertainty."""
    generator = np.random.default_rng(0)
    for name, kinds in (("coast", words), ("hill", words[1::-1])):
        lines = ["age,value,smokes,ill"]
        for _ in range(80):
            value = "" if generator.random() < 0.1 else f"{generator.normal(2, 3):.2f}"
            age = generator.integers(20, 80)
            lines.append(f"{age},{value},{generator.choice(kinds)},{'yes' if age > 50 else 'no'}")
        (folder / f"{name}.csv").write_text("\n".join(lines))
    given = caveat.data.load(
        caveat.data.DataSettings(
            source=f"csv:{folder}/coast.csv,{folder}/hill.csv", target="ill", dictionary=dictionary
        ),
        seed=0,
    )
    uncertainty = Uncertainty(mc_samples=3, **settings)
    return caveat.run(given, caveat.FedAvg(rounds=1, training=QUICK), model=MLP, uncertainty=uncertainty)
