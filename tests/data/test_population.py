"""Silos by the hundred thousand: made when they are asked for, the same run as with silos in memory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import caveat
from caveat.core import Data, DataError, Silo
from caveat.data.silo_collection import SiloNames, Silos, population

TRAINING = caveat.Training(batch_size=8, optimizer="sgd", lr=0.05)
MODEL = caveat.ModelSettings(name="mlp", width=8, features=8, hidden=8)


def make(number: int, name: str) -> Silo:
    generator = torch.Generator().manual_seed(number)
    x = torch.randn(30, 3, generator=generator) + number % 3
    y = (x.sum(1) > 3 * (number % 3)).long()
    parts = [Data(x[i:j], y[i:j]) for i, j in ((0, 16), (16, 20), (20, 24), (24, 30))]
    return Silo(name, f"shift({number % 3})", *parts)


def test_names_are_a_sequence_without_a_list() -> None:
    names = SiloNames(1200)
    assert (names[0], names[-1], names[17], len(names)) == ("silo-0000", "silo-1199", "silo-0017", 1200)
    assert list(names) == sorted(names) == [names[i] for i in range(1200)]
    assert names[3:7:2] == ["silo-0003", "silo-0005"]
    assert [names.index(name) for name in names] == list(range(1200))
    for stranger in ("silo-1200", "silo-17", "silo-00017", "ward", "silo--001", "silo-+017", 3, "silo-\uff10017"):
        assert stranger not in names
        with pytest.raises(ValueError, match="is not among silo-0000 to silo-1199"):
            names.index(stranger)
    with pytest.raises(IndexError):
        names[1200]


def test_a_population_is_made_only_as_far_as_it_takes_part(tmp_path: Path) -> None:
    made: set[int] = set()

    def watched(number: int, name: str) -> Silo:
        made.add(number)
        return make(number, name)

    result = caveat.run(
        population(100_000, watched, ["no", "yes"]), caveat.SCAFFOLD(), rounds=2, training=TRAINING, model=MODEL,
        participation=4 / 100_000, n_silos=3, out=tmp_path / "run",
    )  # fmt: skip
    assert len(made) <= 1 + 4 * 4 + 3  # two rounds of training, and two after it, for temperatures and densities
    assert [silo["n_train"] for silo in result.summary["silos"]] == [16, 16, 16]
    assert list(json.loads((tmp_path / "run" / "splits.json").read_text())) == [
        s["name"] for s in result.summary["silos"]
    ]
    assert len(list((tmp_path / "run" / "state" / "silos").iterdir())) <= 16
    name = result.summary["silos"][0]["name"]
    assert result.predictor(name)(result.silos.named(name).test.x).probs.shape == (6, 2)


@pytest.mark.parametrize(
    ("method", "privacy"), [(caveat.Local(), caveat.Privacy()), (caveat.FedAvg(), caveat.Privacy(clip_norm=1.0))]
)
def test_silos_that_were_not_asked_say_how_familiar_inputs_are_where_nothing_is_shared(
    method: caveat.FedAvg, privacy: caveat.Privacy
) -> None:
    result = caveat.run(
        population(300, make, ["no", "yes"]), method, rounds=2, training=TRAINING, model=MODEL, privacy=privacy,
        participation=0.02, n_silos=4,
    )  # fmt: skip
    for silo in result.summary["silos"]:
        assert silo["test"]["unfamiliar"] is not None
        familiarity = result.predictor(silo["name"])(result.silos.named(silo["name"]).test.x).familiarity
        assert familiarity is not None


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.long
def test_it_gives_the_bits_of_silos_in_memory(workers: int, tmp_path: Path) -> None:
    lazily = population(40, make, ["no", "yes"])
    held = Silos(tuple(lazily), lazily.classes)
    for name, silos in (("lazily", lazily), ("held", held)):
        caveat.run(
            silos, caveat.SCAFFOLD(), rounds=3, training=TRAINING, model=MODEL, participation=0.2, n_silos=5,
            workers=workers, out=tmp_path / name,
        )  # fmt: skip
    for file in ("rounds.jsonl", "ledger.jsonl", "splits.json", "model/model.safetensors"):
        assert (tmp_path / "lazily" / file).read_bytes() == (tmp_path / "held" / file).read_bytes()


def test_a_maker_has_to_keep_to_the_name_it_is_given() -> None:
    with pytest.raises(DataError, match=r"make\(0, 'silo-00'\) returned a silo called 'ward'"):
        population(20, lambda number, name: make(number, "ward"), ["no", "yes"])
    with pytest.raises(DataError, match="count = 0, expected at least 1 silo"):
        population(0, make, ["no", "yes"])
