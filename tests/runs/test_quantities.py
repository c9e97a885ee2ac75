"""Runs that predict a quantity, from tables and arrays: metrics, intervals, guarantees, files and refusals."""

from __future__ import annotations

import csv
import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import caveat
from caveat import data
from caveat.cli.main import app
from caveat.core import ConfigurationError, DataError, Refused
from caveat.data.settings import DataSettings

NAMES = ("north", "south", "west")


def arrays(rows: int = 160, seed: int = 0) -> dict[str, tuple[Any, Any]]:
    """Silos whose target is a nonlinear function of three features, with noise."""
    rng, found = np.random.default_rng(seed), {}
    for shift, name in enumerate(NAMES):
        x = rng.normal(size=(rows, 3))
        found[name] = x, 10 * np.abs(x[:, 0]) + 3 * x[:, 1] + shift + rng.normal(size=rows)
    return found


def table(folder: Path, target: str = "days", digits: int = 2) -> list[Path]:
    paths = []
    for name, (x, y) in arrays().items():
        rows = [
            f"{','.join(f'{v:.3f}' for v in each)},{round(t, digits) if digits else round(t)}"
            for each, t in zip(x, y, strict=True)
        ]
        (folder / f"{name}.csv").write_text("\n".join([f"a,b,c,{target}", *rows]) + "\n")
        paths.append(folder / f"{name}.csv")
    return paths


def silos(**more: Any) -> data.Silos:
    return data.from_arrays(arrays(), predict="quantity", **more)


TRAINING = caveat.Training(lr=0.01, batch_size=32, local_epochs=2)


@pytest.fixture(scope="module")
def finished() -> caveat.Run:
    return caveat.run(silos(), caveat.FedAvg(rounds=15, training=TRAINING), every=15)


def test_errors_are_below_those_without_inputs(finished: caveat.Run) -> None:
    summary = finished.summary
    assert len(summary["target"]["edges"]) == len(summary["classes"]) + 1
    for silo in summary["silos"]:
        test = silo["test"]
        assert test["mae"] < 0.7 * test["reference_mae"]
        assert test["crps"] < 0.7 * test["reference_crps"]
        assert "accuracy" not in {name for name, value in test.items() if value is not None}
        assert 0.6 <= test["interval_coverage"] <= 1
        assert test["interval_width"] > 0
    assert summary["intervals"]["coverage"] == 0.9
    assert summary["sets"] is None if "sets" in summary else True


def test_metrics_are_those_of_the_predictions(finished: caveat.Run) -> None:
    silo, name = finished.silos["north"], "north"
    y, found = silo.values["test"], finished.predictor(name)(silo.test.x)
    record = next(each for each in finished.summary["silos"] if each["name"] == name)["test"]
    low, high = found.interval.unbind(1)
    wanted = {
        "mae": (found.value - y).abs().mean(), "rmse": (found.mean - y).square().mean().sqrt(),
        "interval_coverage": ((low <= y) & (y <= high)).double().mean(), "interval_width": (high - low).mean(),
    }  # fmt: skip
    assert {key: record[key] for key in wanted} == pytest.approx({key: float(each) for key, each in wanted.items()})
    own = finished.compute({"mae": lambda prediction, y: float((prediction.value - y).abs().mean())})
    assert own["silos"][name]["mae"] == pytest.approx(record["mae"])
    again = finished.evaluate(silo.test.x, y.numpy(), name)
    assert again["mae"] == pytest.approx(record["mae"])
    assert "accuracy" not in again
    assert (found.quantile(0.05) <= found.value).all()
    assert (found.value <= found.quantile(0.95)).all()
    assert torch.equal(found.score("spread"), found.target.spread(found.probs))


def test_splits_have_the_same_distribution_and_do_not_depend_on_bars() -> None:
    one, other = silos(), silos(range=(-100, 100))
    for a, b in zip(one, other, strict=True):
        assert all(torch.equal(a.indices[name], b.indices[name]) for name in a.indices)
        median = torch.cat(list(a.values.values())).median()
        assert all(abs(float((values <= median).double().mean()) - 0.5) < 0.2 for values in a.values.values())
    assert other.target.declared
    assert not one.target.declared


def test_a_loaded_run_predicts_the_same(tmp_path: Path) -> None:
    run = caveat.run(silos(), caveat.Ditto(rounds=3, training=TRAINING), out=tmp_path / "run")
    loaded = caveat.load(tmp_path / "run")
    x = run.silos["west"].test.x
    one, other = run.predictor("west")(x), loaded.predictor("west")(x)
    assert torch.equal(one.value, other.value)
    assert torch.equal(one.interval, other.interval)


def test_workers_and_interruption_change_no_bit(tmp_path: Path) -> None:
    method = caveat.FedAvg(rounds=3, training=TRAINING)
    one, two = (caveat.run(silos(), method, workers=workers) for workers in (1, 2))
    for name in NAMES:
        x = one.silos[name].test.x
        assert torch.equal(one.predictor(name)(x).probs, two.predictor(name)(x).probs)
    vectorized = caveat.run(silos(), method, vectorized="on")
    x = one.silos["north"].test.x
    assert vectorized.predictor("north")(x).value.tolist() == pytest.approx(
        one.predictor("north")(x).value.tolist(), abs=0.01
    )


def test_a_guarantee_is_about_the_tolerance() -> None:
    many = data.from_arrays(arrays(rows=900), predict="quantity")
    asked = caveat.Uncertainty(policy="guaranteed", risk=0.2, tolerance=5.0)
    run = caveat.run(many, caveat.FedAvg(rounds=10, training=TRAINING), uncertainty=asked, every=10)
    guarantee = run.summary["guarantee"]
    assert guarantee["tolerance"] == 5
    assert "errors larger than 5 " in guarantee["statement"]
    wrong = answered = 0
    for name in NAMES:
        silo = run.silos[name]
        found = run.predictor(name)(silo.test.x)
        kept = found.decision != caveat.Decision.ABSTAIN
        answered += int(kept.sum())
        wrong += int(((found.value - silo.values["test"]).abs() > 5)[kept].sum())
    assert guarantee["guaranteed"]
    assert answered > 100
    assert wrong / answered <= 0.25


def apart() -> dict[str, tuple[Any, Any]]:
    """Silos whose targets differ in level and spread."""
    return {name: (x, 100 * k + (1 + k) * y) for k, (name, (x, y)) in enumerate(arrays().items())}


def test_targets_that_each_silo_standardizes(tmp_path: Path) -> None:
    method, found = caveat.FedAvg(rounds=8, training=TRAINING), {}
    for key in ("none", "silo"):
        own = data.from_arrays(apart(), predict="quantity", standardize_target=key)
        found[key] = caveat.run(own, method, every=8, out=tmp_path / key)
    run, loaded = found["silo"], caveat.load(tmp_path / "silo")
    assert run.summary["target"]["standardized"]
    assert max(map(abs, run.summary["target"]["edges"])) < 10
    assert run.summary["mean"]["mae"] < 0.5 * found["none"].summary["mean"]["mae"]
    two = caveat.run(run.silos, method, every=8, workers=2)
    for k, silo in enumerate(run.silos):
        train, y, x = silo.values["train"], silo.values["test"], silo.test.x
        said, test = run.predictor(silo.name)(x), run.summary["silos"][k]["test"]
        assert said.target == run.silos.target.placed(
            {"unit": torch.tensor([train.numpy().mean(), train.numpy().std()]).double()}
        )
        assert test["mae"] == pytest.approx(float((said.value - y).abs().mean()))
        assert test["interval_coverage"] == float(
            ((said.interval[:, 0] <= y) & (y <= said.interval[:, 1])).double().mean()
        )
        assert test["interval_coverage"] > 0.75
        for other in (loaded, two):
            assert said.value.equal(other.predictor(silo.name)(x).value)
            assert said.interval.equal(other.predictor(silo.name)(x).interval)


def test_a_silo_that_took_no_part_has_no_unit(tmp_path: Path) -> None:
    own = data.from_arrays(apart(), predict="quantity", standardize_target="silo")
    run = caveat.run(own, caveat.FedAvg(rounds=1, training=TRAINING), newcomers=["west"], out=tmp_path / "run")
    x = own["west"].test.x
    with pytest.raises(DataError, match=r"'west' did not take part .* its data, which cannot be read"):
        caveat.load(tmp_path / "run").predictor("west")(x)
    joined = caveat.join(run, rounds=1)
    assert joined.predictor("west")(x).mean.mean() > 200


@pytest.mark.parametrize(
    ("uncertainty", "message"),
    [
        ({"set_coverage": 0.9}, "uncertainty.set_coverage needs classes"),
        ({"class_bias": True}, "uncertainty.class_bias needs classes"),
        ({"policy": "guaranteed"}, "uncertainty.tolerance is missing"),
        ({"tolerance": 2.0}, "tolerance"),
    ],
)
def test_settings_that_do_not_fit(uncertainty: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        caveat.run(silos(), caveat.FedAvg(rounds=1, training=TRAINING), uncertainty=caveat.Uncertainty(**uncertainty))


def test_classes_have_no_intervals() -> None:
    labelled = data.from_arrays({name: (x, (y > 8).astype(int)) for name, (x, y) in arrays().items()})
    with pytest.raises(ConfigurationError, match=r"interval = 0.9 applies to quantities"):
        caveat.run(labelled, caveat.FedAvg(rounds=1), uncertainty=caveat.Uncertainty(interval=0.9))


def test_privacy_needs_a_declared_range() -> None:
    private = caveat.Privacy(clip_norm=1.0)
    method = caveat.FedAvg(rounds=1, training=TRAINING)
    with pytest.raises(ConfigurationError, match=r"data\.range is missing"):
        caveat.run(silos(), method, privacy=private)
    assert caveat.run(silos(range=(-40, 80)), method, privacy=private).summary["mean"]["mae"] > 0


def test_class_weights_and_commands_for_classes_are_refused() -> None:
    weighted = caveat.Training(class_weights="balanced", batch_size=32)
    for refused in (
        lambda: caveat.run(silos(), caveat.FedAvg(rounds=1, training=weighted)),
        lambda: caveat.audit(silos(), caveat.FedAvg()),
    ):
        with pytest.raises(ConfigurationError, match="quantity"):
            refused()


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"range": (0.0, 5.0)}, "exceed data.range"),
        ({"predict": "classes", "range": (0.0, 5.0)}, "data.range"),
        ({"range": (5.0, 0.0)}, "expected the lower value first"),
        ({"label_noise": (0.1,)}, "data.label_noise is for classes"),
        ({"classes": ("a", "b")}, "data.classes is for classes"),
        ({"standardize_target": "silo", "range": (0.0, 50.0)}, r"targets from -\d.* exceed data.range"),
        ({"standardize_target": "silo", "predict": "classes"}, "standardize_target = 'silo' needs data.predict"),
        ({"standardize_target": "silo", "predict": "time", "event": "a"}, "the times of all silos begin at 0"),
        ({"source": "on_site"}, "every silo reads its own data"),
    ],
)
def test_keys_that_do_not_fit(tmp_path: Path, keys: dict[str, Any], message: str) -> None:
    paths = table(tmp_path)
    with pytest.raises((ConfigurationError, DataError), match=message):
        data.load(
            DataSettings(**{"source": f"csv:{paths[0]},{paths[1]}", "target": "days", "predict": "quantity", **keys}), 0
        )


def test_a_cell_that_is_no_number_is_refused_by_line(tmp_path: Path) -> None:
    paths = table(tmp_path)
    paths[1].write_text(paths[1].read_text().replace("\n", "\n1,2,3,many\n", 1))
    with pytest.raises(Refused, match=r"south.csv, line 2: 'days' is 'many', expected a number"):
        data.from_files(*paths, target="days", predict="quantity")


@pytest.mark.parametrize("given", [["diabetes"], ["TABLE", "--target", "days", "--set", "data.predict=quantity"]])
def test_a_survey_of_a_quantity(given: list[str], tmp_path: Path) -> None:
    found = CliRunner().invoke(app, ["data", *(str(table(tmp_path)[0]) if each == "TABLE" else each for each in given)])
    assert found.exit_code == 0, found.output
    assert "class" not in found.output


def test_commands_from_table_to_predictions(tmp_path: Path) -> None:
    paths, out = table(tmp_path, digits=0), tmp_path / "run"
    call = CliRunner()
    given = ["run", *map(str, paths), "--target", "days", "--set", "rounds=4", "--out", str(out), "--quiet"]
    refused = call.invoke(app, given)
    assert refused.exit_code != 0
    assert "predict" in refused.output
    done = call.invoke(app, [*given, "--set", 'data.predict="quantity"', "--set", "training.batch_size=16"])
    assert done.exit_code == 0, done.output
    assert "MAE" in done.output
    assert "coverage" in done.output
    assert "accuracy" not in done.output
    page = (out / "report.html").read_text()
    assert "predicted and observed values" in page
    assert "accuracy" not in page.lower().split("configuration")[0]
    made = ["--out", str(tmp_path / "p.csv"), "--report", str(tmp_path / "p.html")]
    told = call.invoke(app, ["predict", str(out), str(paths[0]), "--silo", "north", *made])
    assert told.exit_code == 0, told.output
    rows = list(csv.DictReader((tmp_path / "p.csv").read_text().splitlines()))
    assert list(rows[0])[:6] == ["row", "value", "mean", "low", "high", "spread"]
    assert all(float(row["low"]) <= float(row["value"]) <= float(row["high"]) for row in rows)
    assert {"familiarity", "decision", "reason"} <= rows[0].keys()
    assert "the widest first" in (tmp_path / "p.html").read_text()
    found = call.invoke(app, ["evaluate", str(out), str(paths[0]), "--silo", "north", "--target", "days"])
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout)["mae"] > 0
    given = ["join", str(out), f"csv:{tmp_path / 'east.csv'}", "--rounds", "1", "--out", str(tmp_path / "joined")]
    (tmp_path / "east.csv").write_text(paths[0].read_text())
    joined = call.invoke(app, given)
    assert joined.exit_code == 0, joined.output
    assert "interval_coverage" in joined.output
    assert "epistemic" not in joined.output
    whole, east = caveat.load(out), caveat.load(tmp_path / "joined")
    assert east.summary["target"] == whole.summary["target"]
    x = whole.silos["north"].test.x
    mine, theirs = east.predictor("east")(x).mean, whole.predictor("north")(x).mean
    assert float((mine - theirs).abs().max()) < 0.2  # up to the temperature, since splits depend on names


@pytest.mark.long
def test_the_embedded_example(tmp_path: Path) -> None:
    call = CliRunner()
    done = call.invoke(app, ["run", "diabetes", "--out", str(tmp_path / "run"), "--quiet"])
    assert done.exit_code == 0, done.output
    mean = caveat.load(tmp_path / "run").summary["mean"]
    assert mean["crps"] < 0.9 * mean["reference_crps"]
    refused = call.invoke(app, ["audit", "diabetes"])
    assert refused.exit_code != 0
    assert "caveat ood" in " ".join(refused.output.split()), refused.output


@pytest.mark.long
@pytest.mark.skipif("CAVEAT_DATA" not in os.environ, reason="needs the tables in CAVEAT_DATA")
@pytest.mark.parametrize(
    ("name", "target", "silos"), [("mpg", "mpg", ("usa", "europe", "japan")), ("abalone", "rings", "MFI")]
)
def test_real_tables(name: str, target: str, silos: Any) -> None:
    paths = [Path(os.environ["CAVEAT_DATA"]) / f"{name}_{silo}.csv" for silo in silos]
    if not all(path.exists() for path in paths):
        pytest.skip(f"no {name} tables")
    found = data.from_files(*paths, target=target, predict="quantity")
    training = caveat.Training(lr=3e-3, batch_size=16, local_epochs=2)
    run = caveat.run(found, caveat.FedAvg(rounds=20, training=training), every=20)
    mean = run.summary["mean"]
    assert mean["crps"] < 0.85 * mean["reference_crps"]
    assert mean["mae"] < 0.85 * mean["reference_mae"]
    for silo in run.summary["silos"]:
        few = 3 * math.sqrt(0.09 * (1 / silo["n_test"] + 1 / silo["n_calibration"]))
        assert silo["test"]["interval_coverage"] > 0.9 - few
