"""Groups of samples are in one split and count once in every guarantee; samples in time are split in their order."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections import Counter
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from caveat import data
from caveat.core import ConfigurationError, DataError, DataWarning, Refused, Silo
from caveat.data.agreement import own_schema, own_settings, own_silos, shared_schema
from caveat.data.build import load
from caveat.data.groups import numbered, times, unit_labels, whole_groups
from caveat.data.held_out_again import HeldOut, again_held_out, contents, keyed
from caveat.data.raw_samples import Pool
from caveat.data.settings import DataSettings, Partition
from caveat.data.silo_collection import Silos
from caveat.data.sources import read_silo
from caveat.data.splits import NAMES
from caveat.data.survey import survey
from caveat.data.tables.declarations import OwnColumn
from caveat.data.tables.warnings import named_like_id
from caveat.uncertainty import familiarity, typicality
from caveat.uncertainty.histograms import histogram
from caveat.uncertainty.selective_risk import counts, fixed_sequence, ranks, score_edges
from caveat.uncertainty.sets import prediction_sets, surprise, threshold

KEY = b"k"


def visits(path: Path, patients: int = 40, seed: int = 0) -> Path:
    """Write a table with 1 to 7 rows for each patient, in random order."""
    rng = np.random.default_rng(seed)
    rows = []
    for patient in range(patients):
        x, y = rng.normal(), "ill" if patient % 3 == 0 else "well"
        for _ in range(rng.integers(1, 8)):
            day = f"20{rng.integers(10, 20)}-{rng.choice([1, 7]):02d}-01"
            rows.append(f"{path.stem}{patient:03d},{day},{x + rng.normal() / 100:.4f},{y}")
    path.write_text("\n".join(["patient_id,admitted,dose,outcome", *rng.permutation(rows).tolist()]) + "\n")
    return path


def tables(folder: Path, **keys: object) -> DataSettings:
    source = f"csv:{visits(folder / 'a.csv')},{visits(folder / 'b.csv', seed=1)}"
    return DataSettings(source=source, target="outcome", **keys)  # type: ignore[arg-type]


def cells(path: Path, column: int) -> list[str]:
    return [line.split(",")[column] for line in path.read_text().splitlines()[1:]]


def groups_of(silo: Silo, names: list[str]) -> dict[str, list[str]]:
    return {split: [names[i] for i in silo.indices[split].tolist()] for split in NAMES}


def check_apart(found: dict[str, list[str]], names: list[str]) -> None:
    """Check that no group is in two splits, that train and validation have all of a group and the others one of it."""
    sizes = Counter(names)
    for one, other in combinations(NAMES, 2):
        assert not set(found[one]) & set(found[other])
    for split, here in found.items():
        whole = split in ("train", "validation")
        assert Counter(here) == {name: sizes[name] if whole else 1 for name in set(here)}


@pytest.mark.parametrize("seed", range(3))
def test_rows_of_a_group_are_in_one_split_and_a_group_is_promised_and_tested_on_once(tmp_path: Path, seed: int) -> None:
    settings = tables(tmp_path, groups="patient_id", numeric=("dose",), time="admitted" if seed == 2 else None)
    if seed != 2:
        settings = dataclasses.replace(settings, categorical=("admitted",))
    silos = load(settings, seed)
    for silo in silos:
        names = cells(tmp_path / f"{silo.name}.csv", 0)
        found = groups_of(silo, names)
        check_apart(found, names)
        assert {split: len(set(each)) for split, each in found.items()} == {
            "train": 16, "validation": 3, "calibration": 13, "test": 8
        }  # fmt: skip
        assert "patient_id" not in [column.name for column in silos.encoders[silo.name].layout.columns]
    # Where every silo reads its own, too.
    own = {name: own_settings(settings, f"csv:{tmp_path / name}.csv") for name in "ab"}
    shared = shared_schema({name: own_schema(each, seed, name) for name, each in own.items()}, settings)
    for silo in silos:
        (alone,) = own_silos(own[silo.name], seed, silo.name, shared)
        assert all(alone.indices[name].equal(silo.indices[name]) for name in NAMES)


def test_which_row_of_a_group_is_tested_on_is_random(tmp_path: Path) -> None:
    settings = tables(tmp_path, groups="patient_id", categorical=("admitted",))
    names = cells(tmp_path / "a.csv", 0)
    places: Counter[float] = Counter()
    for seed in range(60):
        for i in load(settings, seed)[0].indices["test"].tolist():
            rows = [row for row, name in enumerate(names) if name == names[i]]
            if len(rows) == 4:
                places[rows.index(i)] += 1
    assert len(places) == 4
    assert min(places.values()) > 0.5 * places.total() / 4


def test_one_table_is_dealt_to_silos_by_group(tmp_path: Path) -> None:
    path = visits(tmp_path / "all.csv", 120)
    settings = DataSettings(source=f"csv:{path}", target="outcome", groups="patient_id", categorical=("admitted",),
                            n_silos=3, partition=Partition(scheme="dirichlet", alpha=3), test_per_silo=5)  # fmt: skip
    names = cells(path, 0)
    seen: Counter[str] = Counter()
    for silo in load(settings, 0):
        found = groups_of(silo, names)
        check_apart(found, names)
        seen.update({name for each in found.values() for name in each})
    assert set(seen.values()) == {1}
    assert sum(len(silo.test) for silo in load(settings, 0)) == pytest.approx(15, abs=2)
    with pytest.raises(DataError, match=r"40 silos with 5 test .* 24 \(data.groups is set, so each group counts"):
        load(dataclasses.replace(settings, n_silos=40), 0)


def arrays(m: int, patients: int = 60, seed: int = 0) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray]:
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(patients * m, 3)).astype("float32"), np.repeat(rng.permutation(patients) % 2, m)
    return (x, y), np.repeat(np.arange(patients), m)


def test_groups_of_one_sample_change_nothing() -> None:
    (x, y), names = arrays(1, 200)
    plain, grouped = data.from_arrays({"a": (x, y)}), data.from_arrays({"a": (x, y)}, groups={"a": names})
    assert all(plain[0].indices[name].equal(grouped[0].indices[name]) for name in NAMES)


@pytest.mark.parametrize("values", [list, np.array, lambda g: [f"p{each}" for each in g], torch.tensor])
def test_arrays_take_groups_of_any_kind(values) -> None:  # type: ignore[no-untyped-def]
    xy, names = arrays(4)
    (silo,) = data.from_arrays({"a": xy}, groups={"a": values(names)})
    check_apart(groups_of(silo, list(map(str, names))), list(map(str, names)))


def test_a_test_part_of_its_own_shares_no_group_with_the_rest() -> None:
    (x, y), names = arrays(4)
    (silo,) = data.from_arrays({"a": (x[:200], y[:200], x[200:], y[200:])}, groups={"a": names})
    check_apart(groups_of(silo, list(map(str, names))), list(map(str, names)))
    assert len(silo.test) == 10
    with pytest.raises(DataError, match=r"silo 'a': 1 groups are in both the training and the test part"):
        data.from_arrays({"a": (x[:202], y[:202], x[202:], y[202:])}, groups={"a": names})


def test_the_rarest_label_of_a_group_is_its_stratum() -> None:
    y = np.array([0, 0, 0, 1, 0, 0, 2, 1, -1, -1])
    pool = Pool(np.zeros((10, 1)), y, ("a", "b", "c"), groups=np.array([0, 0, 1, 1, 2, 3, 3, 3, 4, 2]))
    assert unit_labels(pool).tolist() == [0, 1, 0, 2, -1]


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"b": [1]}, r"silo 'a' is in only one of `silos` and `groups`"),
        ({"a": [1, 2]}, r"silo 'a': groups with shape \(2,\), expected \(240,\), one value per sample"),
        ({"a": [math.nan] + 239 * [1.0]}, r"silo 'a': sample 0 has no value in groups"),
        ({"a": 240 * [7]}, r"silo 'a': 1 groups in 240 samples, expected at least 4, one for each split"),
        ([1], r"groups has type list, expected a mapping"),
    ],
)
def test_groups_that_do_not_fit_are_refused(values: object, told: str) -> None:
    with pytest.raises((DataError, ConfigurationError, TypeError), match=told):
        data.from_arrays({"a": arrays(4)[0]}, groups=values)  # type: ignore[arg-type]


def test_columns_that_cannot_be_groups_or_times_are_refused(tmp_path: Path) -> None:
    for key, value, told in (
        ("groups", "patient", r"data.groups = 'patient': .*a.csv has patient_id, admitted, dose, outcome"),
        ("groups", "outcome", r"data.groups and data.target are both 'outcome'"),
        ("time", "patient_id", r"line 2: 'patient_id' is 'a\d+', but the column is data.time: expected dates"),
    ):
        with pytest.raises((DataError, ConfigurationError), match=told):
            load(tables(tmp_path, categorical=("admitted",), **{key: value}), 0)
    with pytest.raises(ConfigurationError, match=r"data.groups = 'p' is not used by source 'digits'"):
        DataSettings(groups="p")
    path = tmp_path / "c.csv"
    path.write_text("patient_id,dose,outcome\n,1,ill\np,2,well\n")
    with pytest.raises(DataError, match=r"c.csv, line 2: 'patient_id' is missing \(''\), expected a value"):
        load(DataSettings(source=f"csv:{path}", target="outcome", groups="patient_id"), 0)


def test_a_group_once_held_out_is_never_trained_on(tmp_path: Path) -> None:
    settings = DataSettings(source=f"csv:{visits(tmp_path / 'a.csv')}", target="outcome", groups="patient_id",
                            categorical=("admitted",))  # fmt: skip
    pool = read_silo(settings, "a")
    assert pool.groups is not None
    drawn = []
    for seed in (0, 1):
        (silo,) = own_silos(settings, seed, "a", shared_schema({"a": own_schema(settings, seed, "a")}, settings))
        drawn.append(whole_groups(pool, {name: index.numpy() for name, index in silo.indices.items()}))
    rows = keyed(contents(pool), KEY)
    columns = tuple(sorted(column.name for column in pool.table))
    test, calibration = (Counter(rows[i] for i in drawn[0][name].tolist()) for name in ("test", "calibration"))
    found = again_held_out(pool, drawn[1], [HeldOut(columns, test, calibration)], KEY)
    at = {name: set(pool.groups[index].tolist()) for name, index in found.items()}
    before = {name: set(pool.groups[index].tolist()) for name, index in drawn[0].items()}
    assert before["test"] <= at["test"]
    assert before["calibration"] <= at["test"] | at["calibration"]
    assert all(not at[one] & at[other] for one, other in combinations(NAMES, 2))
    assert sorted(np.concatenate([*found.values()]).tolist()) == list(range(len(pool.y)))


@pytest.mark.parametrize(
    ("name", "expected"),
    [(name, True) for name in ("patient_id", "PatientID", "patientid", "MRN", "id", "Subject", "subject no", "ID",
                               "device-id", "encounter", "patientNumber", "study.id")]
    + [(name, False) for name in ("patient_age", "dose", "idle", "period", "number", "visits_before", "paid", "")],
)  # fmt: skip
def test_names_of_groups(name: str, expected: bool) -> None:
    assert named_like_id(name) is expected


def told(settings: DataSettings) -> list[str]:
    with warnings.catch_warnings(record=True, action="always") as found:
        load(settings, 0)
    return [str(each.message) for each in found if issubclass(each.category, DataWarning)]


def test_a_column_that_looks_like_groups_is_one_warning_whose_advice_works(tmp_path: Path) -> None:
    settings = tables(tmp_path, categorical=("admitted",))
    (first, *_) = [text for text in told(settings) if "group" in text]
    assert first.startswith("column 'patient_id' looks like a group of rows")
    assert 'data.groups = "patient_id", so that' in first
    assert first.endswith("remove the column, data.rename_columns.patient_id = false")
    assert not [text for text in told(dataclasses.replace(settings, groups="patient_id")) if "group" in text]
    with pytest.warns(DataWarning, match="column 'patient_id' looks like a group of rows"):
        survey(settings.source, "outcome", categorical=("admitted",))
    # An identifier of every row, or of few devices, is none.
    for patients in (range(60), [i % 5 for i in range(60)]):
        path = tmp_path / "c.csv"
        lines = [f"{p},{p % 7}.{i},{'ill' if i % 2 else 'well'}" for i, p in enumerate(patients)]
        path.write_text("\n".join(["device_id,dose,outcome", *lines]))
        source = f"csv:{path},{tmp_path / 'd.csv'}"
        (tmp_path / "d.csv").write_text(path.read_text())
        assert not [text for text in told(DataSettings(source=source, target="outcome")) if "group" in text]


def test_texts_that_look_like_names_are_refused_with_the_key_of_groups(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    rows = [f"p{i // 3 * 2 if i % 3 else i},{i}.5,{'ill' if i % 2 else 'well'}" for i in range(99)]
    path.write_text("\n".join(["patient_id,dose,outcome", *rows]))
    settings = DataSettings(source=f"csv:{path}", target="outcome", n_silos=1)
    with (
        pytest.warns(DataWarning),
        pytest.raises(Refused, match=r"; if rows with one patient_id belong together, set "),
    ):
        load(settings, 0)
    load(dataclasses.replace(settings, groups="patient_id"), 0)


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["2024-03-31", "2024-04-01"], 86400),
        (["2024-03-31 10:00", "2024-03-31T11:00:00"], 3600),
        (["2024-03-31T10:00:00+02:00", "2024-03-31T10:00:00Z"], 7200),
        (["3", "4.5"], 1.5),
    ],
)
def test_times(texts: list[str], expected: float) -> None:
    found = times(texts)
    assert not isinstance(found, int)
    assert found[1] - found[0] == expected


@pytest.mark.parametrize("texts", [["2024-03-31", "31.03.2024"], ["3", "2024-03-31"], ["3", "inf"], ["3", "x"]])
def test_texts_that_are_no_times(texts: list[str]) -> None:
    assert times(texts) == 1


def test_a_column_of_times_tests_on_what_came_last(tmp_path: Path) -> None:
    with pytest.warns(DataWarning, match="looks like a group"):
        silos = load(tables(tmp_path, time="admitted"), 0)
    for silo in silos:
        days = cells(tmp_path / f"{silo.name}.csv", 1)
        parts = [[days[i] for i in silo.indices[split].tolist()] for split in NAMES]
        assert all(max(before) <= min(after) for before, after in pairwise(parts))
    silos = load(tables(tmp_path, time="admitted", groups="patient_id"), 0)
    days, names = cells(tmp_path / "a.csv", 1), cells(tmp_path / "a.csv", 0)
    last = {name: max(day for day, other in zip(days, names, strict=True) if other == name) for name in names}
    parts = [[last[name] for name in each] for each in groups_of(silos[0], names).values()]
    assert all(max(before) <= min(after) for before, after in pairwise(parts))


def test_equal_groups_are_equal_numbers() -> None:
    assert numbered(["7.0", "7", "a", "7.5"]).tolist() == [0, 0, 1, 2]


# Promises: a model that has learned a signal, and its training rows by heart, and 200 populations and resplits.

PROMISED, RESPLITS, ROWS, NEW = 0.1, 200, 6000, 2000


def patients(rng: np.random.Generator, count: int, m: int, noise: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    x = rng.normal(size=(count, 8))
    y = (rng.random(count) < 1 / (1 + np.exp(-4 * x[:, 0]))).astype(int)
    x = np.repeat(x, m, 0) + rng.normal(0, noise, (count * m, 8))
    return x.astype("float32"), np.repeat(y, m), np.repeat(np.arange(count), m)


def answer(silos: Silos, x: Tensor) -> Tensor:
    """Return probabilities (N, 2): of the nearest training row's label if it is near, else of the signal."""
    train = torch.cat([silo.train.x for silo in silos]), torch.cat([silo.train.y for silo in silos])
    distance, nearest = torch.cdist(x, train[0]).min(1)
    known = torch.exp(-((distance / 0.5) ** 2))
    p = (1 - known) * torch.sigmoid(4 * x[:, 0]) + known * (0.02 + 0.96 * train[1][nearest])
    return torch.stack([1 - p, p], 1).double()


def broken(m: int, noise: float, grouped: bool, seed: int) -> tuple[float, float, float, float]:
    """Return for new patients: wrong among answered (NaN: none), answered, set coverage, and false alarms."""
    rng = np.random.default_rng([seed, m])
    drawn = {name: patients(rng, ROWS // m // 2, m, noise) for name in "ab"}
    groups = {name: each[2] for name, each in drawn.items()} if grouped else None
    silos = data.from_arrays({name: each[:2] for name, each in drawn.items()}, groups=groups, seed=seed)
    x, y, _ = patients(rng, NEW, 1, noise)
    new, label = torch.from_numpy(x), torch.from_numpy(y)
    split = {name: [getattr(silo, name) for silo in silos] for name in ("train", "validation", "calibration")}
    probs = {name: [answer(silos, part.x) for part in split[name]] for name in ("validation", "calibration")}
    asked = answer(silos, new)

    def entropy(p: Tensor) -> Tensor:
        return -(p * p.log()).sum(1)

    edges = score_edges("total", torch.stack([histogram("total", entropy(p)) for p in probs["validation"]]).sum(0))
    added = torch.stack([
        counts(ranks(edges, entropy(p)), p.argmax(1) != part.y)
        for p, part in zip(probs["calibration"], split["calibration"], strict=True)
    ]).sum(0)  # fmt: skip
    limit = fixed_sequence(added, PROMISED, 1 - PROMISED, total=sum(map(len, split["calibration"]))).limit
    answered = ranks(edges, entropy(asked)) <= (limit or 0)
    wrong = (asked.argmax(1) != label)[answered].double().mean()
    own = split["calibration"][0]
    within = threshold(surprise(probs["calibration"][0], own.y), 1 - PROMISED)
    covered = prediction_sets(asked, asked.argmax(1), within)[torch.arange(NEW), label].double().mean()
    added_up = familiarity.sums(split["train"][0].x, familiarity.grouped(split["train"][0].y, 2), 2)
    found = familiarity.density(added_up, float(len(split["train"][0])))
    far = [typicality.settled(familiarity.log_distances(found, each))[:, None] for each in (own.x, new)]
    alarms = (typicality.conformal(*far) <= PROMISED).double().mean()
    return float(wrong), float(answered.double().mean()), float(covered), float(alarms)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:silo .* of the rows nearly repeat another")
@pytest.mark.parametrize(("m", "noise"), [(1, 0.01), (2, 0.01), (5, 0.01), (10, 0.05)])
def test_promises_are_broken_no_more_often_than_they_say(m: int, noise: float) -> None:
    for grouped in (True, False):
        found = np.array([broken(m, noise, grouped, seed) for seed in range(RESPLITS)])
        share = float((found[:, 0] > PROMISED).mean())  # a promise that answers nothing is not broken
        error = found.std(0) / math.sqrt(RESPLITS)
        print(
            f"{m} rows, groups {grouped}: guarantee broken in {100 * share:.1f} % of resplits, "
            f"{100 * found[:, 1].mean():.1f} % answered; sets cover {100 * found[:, 2].mean():.1f} %; "
            f"false alarms {100 * found[:, 3].mean():.1f} %"
        )
        if grouped:
            assert share <= PROMISED + 3 * math.sqrt(PROMISED * (1 - PROMISED) / RESPLITS)
            assert found[:, 2].mean() >= 1 - PROMISED - 3 * error[2]
            assert found[:, 3].mean() <= PROMISED + 3 * error[3]
        elif m >= 5:  # what the key is for
            assert share > 0.9
            assert found[:, 2].mean() < 0.88


def test_dates_of_another_form_order_rows_once_their_form_is_declared(tmp_path: Path) -> None:
    days = [f"{1 + row % 28:02d}.{1 + row // 28:02d}.2023" for row in range(60)]
    rows = [f"{day},{row % 7},{row % 2}" for row, day in enumerate(days)]
    (tmp_path / "a.csv").write_text("\n".join(["seen,x,ill", *rows]))
    settings = DataSettings(source=f"csv:{tmp_path / 'a.csv'}", target="ill", time="seen", n_silos=1)
    with pytest.raises(DataError, match=r'set data\.rename_columns\.seen = \{ date = "%d\.%m\.%Y" \}'):
        load(settings, 0)
    own = OwnColumn(own="seen", name="seen", date="%d.%m.%Y")
    (silo,) = load(dataclasses.replace(settings, rename_columns=(own,)), 0)
    assert silo.indices["train"].max() < silo.indices["validation"].min()
    assert silo.indices["calibration"].max() < silo.indices["test"].min() == 60 - len(silo.test)


def test_a_group_is_one_as_a_number_and_a_code_is_not() -> None:
    assert numbered(["7", "7.0", "07", "v1.0", "v1"]).tolist() == [0, 0, 1, 2, 3]
