"""Runs that predict the time to an event: censored rows, metrics, bounds, files and refusals."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sampled import sampled
from typer.testing import CliRunner

import caveat
from caveat import data
from caveat.cli.main import app
from caveat.core import ConfigurationError, DataError, Refused
from caveat.core.quantity import Times, observed
from caveat.data.settings import DataSettings
from caveat.metrics.survival import at, brier, concordance, kaplan_meier
from caveat.runs.progress import Silent
from caveat.uncertainty import sets

NAMES = ("north", "south", "west")
TRAINING = caveat.Training(lr=0.01, batch_size=32, local_epochs=2)


def arrays(rows: int = 240, seed: int = 0) -> dict[str, tuple[Any, Any]]:
    """Silos with exponential times, whose rate a feature determines, and independent censoring of two thirds."""
    rng, found = np.random.default_rng(seed), {}
    for name in NAMES:
        x = rng.normal(size=(rows, 3))
        event, censored = rng.exponential(100 * np.exp(-1.2 * x[:, 0])), rng.uniform(0, 120, rows)
        found[name] = x, np.column_stack([np.minimum(event, censored), event <= censored])
    return found


def silos(**more: Any) -> data.Silos:
    return data.from_arrays(arrays(), predict="time", horizons=(20, 60), **more)


def table(folder: Path) -> list[Path]:
    paths = []
    for name, (x, y) in arrays().items():
        rows = [f"{a:.3f},{b:.3f},{c:.3f},{t:.2f},{int(e)}" for (a, b, c), (t, e) in zip(x, y, strict=True)]
        paths.append(folder / f"{name}.csv")
        paths[-1].write_text("\n".join(["a,b,c,days,died", *rows]) + "\n")
    return paths


@pytest.fixture(scope="module")
def finished() -> caveat.Run:
    return caveat.run(silos(), caveat.FedAvg(rounds=15, training=TRAINING), every=15)


def test_censored_rows_are_used(finished: caveat.Run) -> None:
    """Predicted survival agrees with that of test inputs; without censored rows it is far too low."""
    target = finished.silos.target
    assert isinstance(target, Times)
    differences = []
    for name in NAMES:
        silo = finished.silos[name]
        times, event = observed(silo.values["test"])
        assert 0.2 < float(event.double().mean()) < 0.6
        predicted = target.survival(finished.predictor(name)(silo.test.x).probs.double(), torch.tensor([60.0])).mean()
        differences.append(float(predicted - at(*kaplan_meier(times, event), torch.tensor([60.0]))))
        assert (silo.train.y >= len(target.means)).any()
    assert abs(float(np.mean(differences))) < 0.1
    kept = {name: (x[y[:, 1] > 0], y[y[:, 1] > 0]) for name, (x, y) in arrays().items()}
    dropped = data.from_arrays(kept, predict="time").target
    assert isinstance(dropped, Times)
    curves = [float(each.survival(each.reference, torch.tensor([60.0]))) for each in (target, dropped)]
    assert curves[0] > curves[1] + 0.2


def test_metrics_are_better_than_without_inputs(finished: caveat.Run) -> None:
    assert finished.summary["target"]["event"] == "event"
    for silo in finished.summary["silos"]:
        test, name = silo["test"], silo["name"]
        assert test["c_index"] > 0.65
        assert test["c_index_uno"] > 0.65
        assert test["integrated_brier"] < test["reference_integrated_brier"]
        assert test["interval_low"] > 0
        assert "mae" not in {key for key, value in test.items() if value is not None}
        assert sum(silo["pit"]) == pytest.approx(silo["n_test"])
        own = finished.silos[name]
        times, event = observed(own.values["test"])
        found = finished.predictor(name)(own.test.x)
        right, total = concordance(times, event, -found.mean)
        assert test["c_index"] == pytest.approx(float(right / total))
        assert (found.risk(20) <= found.risk(60)).all()
        assert test["interval_coverage"] == pytest.approx(float((found.interval[:, 0] <= times).double().mean()))
        again = finished.evaluate(own.test.x, torch.stack([times, event.double()], 1), name)
        assert again["c_index"] == pytest.approx(test["c_index"])


def test_lower_bounds_hold_for_the_time_itself() -> None:
    """At the true times, which censoring hides: coverage over resplits is at least the level."""
    rng, covered = np.random.default_rng(1), []
    target = Times.of([torch.from_numpy(rng.exponential(50, 200))])
    probs = target.reference.expand(1000, -1)
    for _ in range(200):
        time, censored = (torch.from_numpy(rng.exponential(scale, 1000)) for scale in (50, 40))
        y = torch.where(time <= censored, time, -censored)
        limit = sets.threshold(target.nonconformity(probs[:60], y[:60]), 0.9)
        low = target.interval(probs, torch.tensor(limit, dtype=torch.float64))[60:, 0]
        covered.append(float((low <= time[60:]).double().mean()))
    assert 0.9 <= float(np.mean(covered)) <= 0.98


@pytest.mark.parametrize("method", [caveat.Ditto, caveat.FedBN, caveat.Local, caveat.SCAFFOLD])
def test_workers_and_folders_change_no_bit(method: Any, tmp_path: Path) -> None:
    training = caveat.Training(batch_size=32, optimizer="sgd") if method is caveat.SCAFFOLD else TRAINING
    made = method(rounds=2, training=training)
    one = caveat.run(silos(), made, out=tmp_path / "run", every=2)
    two, loaded = caveat.run(silos(), made, workers=2, every=2), caveat.load(tmp_path / "run")
    assert isinstance(loaded.preparation.target, Times)
    for name in NAMES:
        x = one.silos[name].test.x
        found, *others = (run.predictor(name)(x) for run in (one, two, loaded))
        for other in others:
            assert torch.equal(found.probs, other.probs)
            assert torch.equal(found.interval, other.interval)
            assert torch.equal(found.risk(20), other.risk(20))


@pytest.mark.parametrize("kind", ["time", "quantity"])
def test_a_held_out_silo_joins_with_the_bars_of_the_federation(kind: Any, tmp_path: Path) -> None:
    given = arrays() if kind == "time" else {name: (x, y[:, 0]) for name, (x, y) in arrays().items()}
    made = data.from_arrays(given, predict=kind)
    run = caveat.run(made, caveat.FedBN(rounds=2, training=TRAINING), out=tmp_path / "run", every=2, newcomers=["west"])
    joined = caveat.join(run, out=tmp_path / "joined", rounds=1)
    found = joined.predictor("west")(made["west"].test.x)
    assert found.target == made.target
    assert found.interval is not None
    assert joined.summary["silos"][0]["test"]["crps"] > 0
    new = data.from_arrays({"new": given["west"]}, predict=kind)
    assert new.target != made.target
    other = caveat.join(run, new, rounds=1)
    assert other.predictor("new")(new["new"].test.x).target == made.target
    assert other.silos["new"].train.y.equal(made.target.bar(new["new"].values["train"]))
    with pytest.raises(DataError, match=f"the targets of new: found classes, expected {kind} as in"):
        caveat.join(run, data.from_arrays({"new": (given["west"][0], given["west"][0][:, 0] > 0)}))


@pytest.mark.parametrize("kind", ["time", "quantity"])
def test_an_interrupted_run_continues_to_the_same_bits(kind: Any, tmp_path: Path) -> None:
    given = arrays() if kind == "time" else {name: (x, y[:, 0]) for name, (x, y) in arrays().items()}
    made, method = data.from_arrays(given, predict=kind), caveat.Ditto(rounds=3, training=TRAINING)

    class Cut(Exception):
        pass

    class Cuts(Silent):
        def round(self, *_: object) -> None:
            raise Cut

    whole = caveat.run(made, method)
    with pytest.raises(Cut):
        caveat.run(made, method, out=tmp_path / "run", progress=Cuts())
    again = caveat.run(made, method, out=tmp_path / "run")
    for name in NAMES:
        one, other = (run.predictor(name)(made[name].test.x) for run in (whole, again))
        assert torch.equal(one.probs, other.probs)
        assert torch.equal(one.interval, other.interval)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"event": None}, "data.event is missing"),
        ({"predict": "quantity"}, "data.event = 'died' needs data.predict = 'time'"),
        ({"horizons": (1e6,)}, "no training event is later"),
        ({"range": (1.0, 200.0)}, "expected 0 as the lowest time"),
        ({"event": "dead"}, "data.event = 'dead'"),
        ({"event": "a"}, r"line 2: 'a' is .*, expected 1, or 0 if censored"),
    ],
)
def test_keys_that_do_not_fit(tmp_path: Path, keys: dict[str, Any], message: str) -> None:
    paths = table(tmp_path)
    given = {"source": f"csv:{paths[0]},{paths[1]}", "target": "days", "event": "died", "predict": "time"}
    with pytest.raises((ConfigurationError, DataError, Refused), match=message):
        data.load(DataSettings(**given | keys), 0)


@pytest.mark.parametrize("bounds", [None, (0.0, 200.0)])
def test_data_without_events_are_refused(bounds: tuple[float, float] | None) -> None:
    given = {name: (x, y * np.array([1, 0])) for name, (x, y) in arrays().items()}
    with pytest.raises(DataError, match="no events"):
        data.from_arrays(given, predict="time", range=bounds)


def test_a_declared_range_is_no_baseline(tmp_path: Path) -> None:
    run = caveat.run(silos(range=(0.0, 5000.0)), caveat.FedAvg(rounds=1, training=TRAINING), out=tmp_path / "run")
    assert CliRunner().invoke(app, ["report", str(tmp_path / "run")]).exit_code == 0
    page = (tmp_path / "run" / "report.html").read_text()
    assert run.silos.target is not None
    assert run.silos.target.declared
    assert "that of uniform times" in page
    assert "Kaplan-Meier curve is" not in page
    assert "useless" not in page
    card = CliRunner().invoke(app, ["card", str(tmp_path / "run"), "--silo", "north"]).output
    assert "without inputs (a uniform distribution over data.range)" in card
    assert "Kaplan-Meier" not in card


def test_predictions_of_no_number_have_the_lowest_bound() -> None:
    target = Times.of([torch.from_numpy(np.random.default_rng(0).exponential(50, 200))])
    none = torch.full((2, len(target.means)), torch.nan, dtype=torch.float64)
    assert target.nonconformity(none, torch.tensor([3.0, -4.0])).isinf().all()
    assert target.interval(none, torch.tensor(0.5)).tolist() == [[0.0, np.inf]] * 2


def test_a_horizon_without_times_is_refused() -> None:
    given = {name: (x, (y[:, 1]).astype(int)) for name, (x, y) in arrays().items()}
    with pytest.raises(ConfigurationError, match=r"data\.horizons"):
        data.from_arrays(given, horizons=(20,))


@pytest.mark.parametrize("name", sampled(sorted(caveat.METHODS)))
def test_every_method_counts_classes_or_takes_times(name: str) -> None:
    """Labels of censored times are no bars."""
    made, method = silos(), caveat.METHODS[name](rounds=1)
    if method.counts_classes:
        with pytest.raises(ConfigurationError, match="censored times lack"):
            caveat.run(made, method)
    else:
        assert 0 < caveat.run(made, method, every=1).summary["mean"]["integrated_brier"] < 1


def test_settings_and_methods_that_do_not_fit() -> None:
    for settings, method, message in (
        ({"policy": "guaranteed", "tolerance": 2.0}, caveat.FedAvg, "unknown for censored times"),
        ({"set_coverage": 0.9}, caveat.FedAvg, "set_coverage needs classes"),
        ({}, caveat.FedRoD, "censored times lack"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            caveat.run(silos(), method(rounds=1, training=TRAINING), uncertainty=caveat.Uncertainty(**settings))
    with pytest.raises(DataError, match=r"expected \(N, 2\), that is, times and events"):
        data.from_arrays({name: (x, y[:, 0]) for name, (x, y) in arrays().items()}, predict="time")
    with pytest.raises(DataError, match="time -1 and event 1"):
        data.from_arrays({"a": (np.zeros((9, 2)), np.tile([-1.0, 1.0], (9, 1)))}, predict="time")


def test_npz_files_have_an_array_of_events(tmp_path: Path) -> None:
    for name, (x, y) in arrays().items():
        np.savez(tmp_path / f"{name}.npz", x=x, y=y[:, 0], died=y[:, 1])
    source = "npz:" + ",".join(str(tmp_path / f"{name}.npz") for name in NAMES)
    found = data.load(DataSettings(source=source, kind="features", predict="time", event="died"), 0)
    values = torch.cat(list(found[0].values.values()))
    times, events = arrays()["north"][1].T
    assert sorted(values.tolist()) == sorted(np.where(events > 0, times, -times).tolist())


def test_commands_from_table_to_predictions(tmp_path: Path) -> None:
    paths, out, call = table(tmp_path), tmp_path / "run", CliRunner()
    keys = ["data.predict=time", "data.event=died", "data.horizons=[20, 60]", "training.batch_size=16"]
    keys += ["data.subgroups=b", "data.subgroup_edges=[0]"]
    given = ["run", *map(str, paths), "--target", "days", "--set", "rounds=4", "--out", str(out), "--quiet"]
    done = call.invoke(app, [*given, *(part for key in keys for part in ("--set", key))])
    assert done.exit_code == 0, done.output
    assert "Brier" in done.output
    assert max(len(line) for line in done.output.splitlines() if "/" not in line) <= 80
    page = (out / "report.html").read_text()
    assert "Kaplan-Meier" in page
    assert "D-calibration has" in page
    assert "whatever the censoring" in page
    told = call.invoke(app, ["predict", str(out), str(paths[0]), "--silo", "north", "--out", str(tmp_path / "p.csv")])
    assert told.exit_code == 0, told.output
    rows = list(csv.DictReader((tmp_path / "p.csv").read_text().splitlines()))
    assert list(rows[0])[:6] == ["row", "median", "low", "risk_20", "risk_60", "spread"]
    assert all(0 <= float(row["risk_20"]) <= float(row["risk_60"]) <= 1 for row in rows)
    assert all(float(row["low"]) <= float(row["median"]) for row in rows)
    found = call.invoke(app, ["evaluate", str(out), str(paths[0]), "--silo", "north", "--target", "days"])
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout)["c_index"] > 0.5
    surveyed = call.invoke(app, ["data", *map(str, paths), "--target", "days", "--set", keys[0], "--set", keys[1]])
    assert surveyed.exit_code == 0, surveyed.output
    assert "events" in surveyed.output
    wrong = tmp_path / "wrong.csv"
    wrong.write_text(paths[0].read_text().replace(",0\n", ",lost\n", 1))
    surveyed = call.invoke(app, ["data", str(wrong), "--target", "days", "--set", keys[0], "--set", keys[1]])
    assert "'lost', expected 1, or 0 if censored" in " ".join(surveyed.output.split())
    card = call.invoke(app, ["card", str(out), "--silo", "north", "--format", "json"])
    assert card.exit_code == 0, card.output
    figures = json.loads(card.output)["figures"]
    record = next(each for each in json.loads((out / "summary.json").read_text())["silos"] if each["name"] == "north")
    assert figures["integrated Brier score"]["value"] == record["test"]["integrated_brier"]
    curve = figures["integrated Brier score, without inputs (the Kaplan-Meier curve of all training targets)"]
    assert curve["value"] == record["test"]["reference_integrated_brier"]
    low, high = json.loads(card.output)["groups"]
    assert (low["group"], high["group"]) == ("b < 0", "b >= 0")
    known = json.loads((out / "summary.json").read_text())["subgroups"][0]
    assert low["integrated Brier score"]["value"] == known["integrated_brier"]
    assert low["share of intervals with the true value"]["value"] == pytest.approx(known["interval_coverage"])
    assert "Subgroups" in page
    moved = call.invoke(app, ["ood", str(out), "--out", str(tmp_path / "ood")])
    assert moved.exit_code == 0, moved.output


@pytest.mark.long
@pytest.mark.skipif("CAVEAT_DATA" not in os.environ, reason="needs the tables in CAVEAT_DATA")
def test_tcga_brca() -> None:
    """FLamby's split of Fed-TCGA-BRCA (du Terrail et al., NeurIPS 2022), ten seeds: C-index per center and of all test
    inputs, and the integrated Brier score until ten years beside Kaplan and Meier's."""
    folder = Path(os.environ["CAVEAT_DATA"])
    if not (folder / "tcga_brca_test_0.csv").exists():
        pytest.skip("no TCGA-BRCA tables")
    figures = []
    parts = {f"center {k}": [_center(folder / f"tcga_brca_{part}_{k}.csv") for part in ("train", "test")]
             for k in range(6)}  # fmt: skip
    every = np.concatenate([x for (x, _), _ in parts.values()])  # of training rows
    mean, std = every.mean(0), every.std(0) + 1e-9
    scaled = {
        name: tuple(each for x, y in both for each in (((x - mean) / std).clip(-5, 5).astype(np.float32), y))
        for name, both in parts.items()
    }
    training = caveat.Training(local_epochs=1, batch_size=16, lr=3e-3, weight_decay=1e-2, optimizer="adamw")
    grid = torch.linspace(0, 3650, 101, dtype=torch.float64)
    for seed in range(10):
        made = data.from_arrays(scaled, predict="time", seed=seed)  # type: ignore[arg-type]
        run = caveat.run(made, caveat.FedAvg(rounds=30, training=training), seed=seed, every=30)
        target = made.target
        assert isinstance(target, Times)
        own = {silo.name: run.predictor(silo.name)(silo.test.x) for silo in made}
        times, event = observed(torch.cat([silo.values["test"] for silo in made]))
        right, total = concordance(times, event, -torch.cat([found.mean for found in own.values()]))
        probs, censoring = torch.cat([found.probs.double() for found in own.values()]), kaplan_meier(times, event, True)
        scores = [
            torch.trapezoid(brier(times, event, target.survival(each, grid), grid, censoring), grid) / 3650
            for each in (probs, target.reference.expand(len(probs), -1))
        ]
        centers = [silo["test"]["c_index"] for silo in run.summary["silos"] if silo["test"].get("c_index") is not None]
        figures.append([float(np.mean(centers)), float(right / total), *map(float, scores)])
    center, pooled, score, reference = np.mean(figures, 0)
    print(f"C {center:.3f} per center, {pooled:.3f} pooled; Brier {score:.4f}, Kaplan-Meier {reference:.4f}")
    assert center >= 0.77
    assert pooled >= 0.80
    assert score < reference


def _center(path: Path) -> tuple[Any, Any]:
    rows = np.array(list(csv.reader(path.read_text().splitlines()))[1:], float)
    return rows[:, 2:], rows[:, [1, 0]]
