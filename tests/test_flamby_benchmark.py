"""FLamby's protocol on tables of the same columns: who is dropped, what becomes of codes, splits and normalisation."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
import flamby

COLUMNS = [*flamby.KEPT, "slope", "ca", "thal", flamby.TARGET]


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty patients a centre and one without chol; of Switzerland one is healthy, chol is constant, ca lacks."""
    folder = tmp_path_factory.mktemp("uci")
    for number, center in enumerate(flamby.CENTERS):
        swiss = center == "switzerland"
        rows = []
        for i in range(40):
            row = {name: (i * 7 + number + j) % 11 for j, name in enumerate(flamby.KEPT)}
            row |= {"cp": 1 + i % 4, "restecg": i % 3, "chol": 0 if swiss else 200 + i}
            row |= {
                "slope": 1,
                "ca": "" if swiss else 0,
                "thal": 3,
                "disease": int(i > 0) if swiss else int(i % 3 == 0),
            }
            rows.append(",".join(str(row[name]) for name in COLUMNS))
        lacks = ["" if name == "chol" else "1" for name in COLUMNS]
        (folder / f"uci_heart_{center}.csv").write_text("\n".join([",".join(COLUMNS), *rows, ",".join(lacks)]) + "\n")
    return folder


def test_rows_and_columns_are_those_that_flamby_keeps(tables: Path) -> None:
    found = flamby.patients(tables)
    assert [tuple(data.x.shape) for data in found.values()] == [(40, 13)] * 4
    x = found["cleveland"].x
    assert torch.equal(x[:5, 8:], torch.tensor([[0, 0, 0, 0, 0], [1, 0, 0, 1, 0], [0, 1, 0, 0, 1], [0, 0, 1, 0, 0],
                                                [0, 0, 0, 1, 0]], dtype=torch.float32))  # fmt: skip
    assert torch.equal(x[:, 3], 200 + torch.arange(40.0))


def test_split_is_sized_and_stratified_as_flambys_and_follows_its_seed(tables: Path) -> None:
    found = flamby.patients(tables)
    train, test = flamby.divided(found["cleveland"], 43)
    assert (len(train), len(test)) == (26, 14)
    assert (int(train.y.sum()), int(test.y.sum())) == (9, 5)
    rows = torch.cat([train.x, test.x])[:, 3]
    assert sorted(rows.tolist()) == [200 + i for i in range(40)]
    again, other = (flamby.divided(found["cleveland"], seed)[1] for seed in (43, 44))
    assert torch.equal(again.x, test.x)
    assert not torch.equal(other.x, test.x)


def test_test_patients_are_normalised_by_training_patients_of_their_centre(tables: Path) -> None:
    train, test = flamby.divided(flamby.patients(tables)["switzerland"], 43)
    x = flamby.normalized(train, train).x
    assert x[:, 3].eq(0).all()  # a constant column
    varies = [0, 1, 2, *range(4, 13)]
    torch.testing.assert_close(x[:, varies].std(0), torch.ones(12))
    torch.testing.assert_close(
        flamby.normalized(test, train).x[:, 0], (test.x[:, 0] - train.x[:, 0].mean()) / train.x[:, 0].std()
    )


def test_second_logit_gives_flambys_loss_and_steps() -> None:
    x, y = torch.randn(4, 13, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 1, 0])
    model = flamby.LogisticRegression(42)
    torch.manual_seed(42)
    theirs = torch.nn.Linear(13, 1)
    ours = torch.nn.functional.cross_entropy(model(x), y)
    loss = torch.nn.functional.binary_cross_entropy(torch.sigmoid(theirs(x)[:, 0]), y.float())
    ours.backward()
    loss.backward()
    torch.testing.assert_close(ours, loss)
    torch.testing.assert_close(model.linear.weight.grad, theirs.weight.grad)


def test_every_row_trains_even_where_a_centre_has_one_class(tables: Path) -> None:
    found = flamby.patients(tables)
    seed = next(s for s in range(100) if flamby.divided(found["switzerland"], s)[0].y.min() == 1)
    rows = []
    for row in (flamby.MAJORITY, flamby.LOCAL, flamby.POOLED, *flamby.federated()):
        for name, figures in flamby.measured(found, seed, 42, row, small=True).items():
            rows += [{"split": split, "initial": 42, "row": name, "figures": figures} for split in (43, 100, 101)]
            assert list(figures) == list(flamby.CENTERS)
            assert all(0 <= value <= 1 for value in figures.values())
    assert rows[0]["figures"]["switzerland"] == pytest.approx(13 / 14)
    assert sum(line.startswith("| majority") for line in flamby.table(rows, found)) == 3


@pytest.mark.skipif("CAVEAT_DATA" not in os.environ, reason="CAVEAT_DATA does not name prepared real data")
def test_real_tables_have_as_many_patients_as_flambys() -> None:
    found = flamby.patients(Path(os.environ["CAVEAT_DATA"]))
    sizes = {center: tuple(map(len, flamby.divided(data, flamby.SPLIT))) for center, data in found.items()}
    assert sizes == {"cleveland": (199, 104), "hungarian": (172, 89), "switzerland": (30, 16), "va": (85, 45)}
