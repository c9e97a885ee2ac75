"""Federations of token ids and of series, from arrays to predictions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import caveat
from caveat import DataError, data
from caveat.data.settings import DataSettings
from caveat.data.silo_collection import Silos
from caveat.data.user_data import from_arrays

RNG = np.random.default_rng(1)
Y = np.arange(120) % 2
IDS = RNG.integers(1, 20, (120, 8)) + 20 * Y[:, None]
"""Ids of 1..19 in one class, of 21..39 in the other."""
SERIES = RNG.normal(size=(120, 8, 2)).astype(np.float32) + 2 * Y[:, None, None].astype(np.float32)
TRAINING = caveat.Training(batch_size=16, lr=0.05)


class Reader(nn.Module):
    """The mean of embedded ids, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.drop, self.last = nn.Embedding(100, 8), nn.Dropout(0.1), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.last(self.drop(self.embedding(x).mean(1)))
        return found


def reader() -> nn.Module:
    return Reader()


def silos_of(kind: str, tmp_path: Path, from_file: bool) -> Silos:
    x = IDS if kind == "tokens" else SERIES
    if from_file:
        np.savez(tmp_path / "a.npz", x=x, y=Y)
        return data.load(DataSettings(source=f"npz:{tmp_path / 'a.npz'}", kind=kind, n_silos=2), 0)  # type: ignore[arg-type]
    lengths = 3 + np.arange(120) % 6
    rows = [row[:length] for row, length in zip(x, lengths, strict=True)]
    halves = {"silo-0": (rows[:60], Y[:60]), "silo-1": (rows[60:], Y[60:])}
    return from_arrays(halves, kind=kind)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["tokens", "series"])
@pytest.mark.parametrize("from_file", [True, False])
def test_a_federation_learns_and_says_what_is_foreign(kind: str, from_file: bool, tmp_path: Path) -> None:
    silos = silos_of(kind, tmp_path, from_file)
    if not from_file:
        far = IDS[:30] + 40 if kind == "tokens" else SERIES[:30] * 30
        silos = data.with_streams(silos, ood_global=far, per_silo=10)
    method = caveat.FedAvg(rounds=12, training=TRAINING)
    run = caveat.run(silos, method, model=reader if kind == "tokens" else None, out=tmp_path / "run")
    predict, own = run.predictor("silo-0"), silos["silo-0"].test.x
    assert float((predict(own).label == silos["silo-0"].test.y).float().mean()) > 0.9
    assert torch.equal(predict(own.numpy() if from_file else own).probs, predict(own).probs)
    if not from_file:
        foreign = silos["silo-0"].streams["ood_global"].x
        # Ids of which nobody has seen any, and series far from all others.
        assert float(predict(foreign).familiarity.mean()) < 0.5 * float(predict(own).familiarity.mean())


def test_any_number_of_workers_gives_the_same_bits(tmp_path: Path) -> None:
    silos = silos_of("tokens", tmp_path, from_file=False)
    method = caveat.FedAvg(rounds=2, training=TRAINING)
    one, two = (caveat.run(silos, method, model=reader, out=tmp_path / str(w), workers=w) for w in (1, 2))
    for silo in silos:
        assert torch.equal(one.predictor(silo.name)(silo.test.x).probs, two.predictor(silo.name)(silo.test.x).probs)


class Functional(Reader):
    """Looks ids up by a function, so that no layer says how many there are."""

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.last(self.drop(nn.functional.embedding(x, self.embedding.weight).mean(1)))
        return found


def test_ids_that_a_model_has_no_row_for_are_named_with_their_silo(tmp_path: Path) -> None:
    silos = silos_of("tokens", tmp_path, from_file=True)
    beyond = from_arrays({"a": (IDS, Y), "b": (IDS + 77, Y)}, kind="tokens")
    told = r"^silo 'b', \w+: token id 116, but the model knows ids from 0 to 99; give its nn.Embedding a row"
    with pytest.raises(DataError, match=told):
        caveat.run(beyond, caveat.FedAvg(rounds=1, training=TRAINING), model=reader)
    with pytest.raises(DataError, match=r"silo 'b', .* the model cannot look up the id 116: index out of range"):
        caveat.run(beyond, caveat.FedAvg(rounds=1, training=TRAINING), model=Functional)
    run = caveat.run(silos, caveat.FedAvg(rounds=1, training=TRAINING), model=reader)
    with pytest.raises(DataError, match="inputs for silo 'silo-1': token id 100, but the model knows ids from 0"):
        run.predictor("silo-1")(np.full((3, 8), 100))
