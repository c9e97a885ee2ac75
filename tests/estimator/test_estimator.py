"""A federation as a classifier of scikit-learn: its conventions, groups as silos, and pickles without training data."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.datasets import make_blobs
from sklearn.model_selection import GroupKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import caveat
from caveat import FederatedClassifier, FederatedRegressor
from caveat.data.user_data import from_arrays

pandas = pytest.importorskip("pandas")  # `make lowest` goes without it


@pytest.fixture(scope="module")
def rows() -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Three groups of two classes far apart; the last one lies elsewhere."""
    x, y = make_blobs(900, centers=[[0, 0, 0], [4, 4, 0]], random_state=0)
    groups = np.array(["north", "east", "south"]).repeat(300)
    x[groups == "south", 2] += 12
    return x, np.array(["ill", "well"])[y], groups


QUICK = [
    pytest.param("fedavg", 4, id="fedavg"),
    pytest.param(caveat.FedPN(personal_steps=0), 5, id="fedpn", marks=pytest.mark.long),
]
"""A method that samples and one that gives evidence, with about as few rounds as they learn with.

scikit-learn asks for the same probabilities of an input alone and among others within 1e-7, which is the precision of
float32. After FedPN's 300 steps densities are so steep that two probabilities of 60 differ by 1.7e-7.
"""


@pytest.mark.parametrize(("method", "rounds"), QUICK)
def test_it_keeps_every_convention_of_scikit_learn(method: str | caveat.Method, rounds: int) -> None:
    found = check_estimator(FederatedClassifier(method, rounds=rounds), on_fail=None, on_skip=None)
    failed = {each["check_name"]: each["exception"] for each in found if each["status"] not in ("passed", "skipped")}
    assert failed == {}
    skipped = {each["check_name"] for each in found if each["status"] == "skipped"}
    assert skipped <= {"check_array_api_input"}  # which scikit-learn tries where SCIPY_ARRAY_API is set
    assert len(found) > 40


def test_groups_are_silos_and_each_answers_for_its_own(rows: Any) -> None:
    x, y, groups = rows
    model = FederatedClassifier(rounds=10).fit(x, y, groups=groups)
    assert model.silos_ == ["east", "north", "south"]
    assert model.score(x, y) > 0.9
    for silo in model.silos_:
        own = model.decide(x[groups == silo], groups=groups[groups == silo])
        assert set(own["silo"]) == {silo}
        assert (own["familiarity"] <= 0.05).mean() <= 0.15
    with_groups, without = model.decide(x, groups=groups), model.decide(x)
    assert (without["typicality"] >= with_groups["typicality"]).all()
    assert set(without["silo"]) <= set(model.silos_)
    assert (model.decide(x + 100)["familiarity"] <= 0.05).all()


def test_it_is_the_run_that_caveat_makes_of_the_same_columns(rows: Any) -> None:
    x, y, _ = rows
    model = FederatedClassifier(rounds=3, random_state=4).fit(x, y)
    scaled = ((x - model.mean_) / model.scale_).astype("float32")
    silos = from_arrays({"silo": (scaled, (y == "well").astype(int))}, seed=4)
    run = caveat.run(silos, caveat.FedAvg(), rounds=3, seed=4, every=3)
    wanted = run.predictor("silo")(silos.inputs(scaled)).probs
    np.testing.assert_allclose(model.predict_proba(x), wanted.numpy(), atol=1e-4)
    np.testing.assert_allclose(silos["silo"].train.x.double().mean(0), 0, atol=1e-6)


def test_decisions_are_columns(rows: Any) -> None:
    x, y, groups = rows
    asked = FederatedClassifier(rounds=5, uncertainty=caveat.Uncertainty(policy="switch"))
    table = asked.fit(x, y, groups=groups).decide(np.concatenate([x[:20], x[:20] * 1e4]))
    p_values = ("familiarity", "nearness", "sureness", "typicality")
    uncertainties = ("total", "aleatoric", "epistemic")
    assert table.dtype.names == ("label", "decision", "reason", "silo", *p_values, *uncertainties)
    assert set(table["decision"][20:]) == {"abstain"}
    assert (table["total"] >= 0).all()


def test_a_pickle_holds_the_run_and_no_training_data(rows: Any) -> None:
    x, y, groups = rows
    model = FederatedClassifier("fedpn", rounds=2).fit(x, y, groups=groups)
    packed = pickle.dumps(model)
    again = pickle.loads(packed)
    np.testing.assert_array_equal(again.decide(x, groups=groups), model.decide(x, groups=groups))
    trained = np.concatenate([silo.train.x.numpy() for silo in model.run_.silos])
    assert not any(row.tobytes() in packed for row in trained)
    assert pickle.loads(pickle.dumps(again)).classes_.tolist() == ["ill", "well"]


def test_it_works_within_pipelines_and_cross_validation(rows: Any) -> None:
    x, y, groups = rows
    known = groups != "south"
    model = make_pipeline(StandardScaler(), FederatedClassifier(rounds=5))
    scores = cross_val_score(model, x[known], y[known], groups=groups[known], cv=GroupKFold(2))
    assert scores.min() > 0.8


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"method": "fedavgg"}, "expected a method or one of local, fedavg"),
        ({"rounds": 0}, "rounds"),
        ({"random_state": -1}, "seed = -1"),
    ],
)
def test_what_cannot_be_is_one_value_error(rows: Any, change: dict[str, Any], text: str) -> None:
    x, y, _ = rows
    with pytest.raises(ValueError, match=text):
        FederatedClassifier(**change).fit(x, y)


def test_small_and_unknown_groups_are_named(rows: Any) -> None:
    x, y, groups = rows
    few = groups.copy()
    few[:3] = "west"
    with pytest.raises(ValueError, match="silo 'west': n_samples = 3, expected at least 6"):
        FederatedClassifier().fit(x, y, groups=few)
    model = FederatedClassifier(rounds=1).fit(x, y, groups=groups)
    with pytest.raises(ValueError, match=r"group 'west': no such silo \(available: east, north, south"):
        model.predict(x, groups=np.full(len(x), "west"))
    deaf = FederatedClassifier(rounds=1, uncertainty=caveat.Uncertainty(familiarity=False)).fit(x, y, groups=groups)
    assert np.isnan(deaf.decide(x, groups=groups)["familiarity"]).all()
    with pytest.raises(ValueError, match="pass groups"):
        deaf.predict(x)
    with pytest.raises(ValueError, match="groups: 2 values for 900 rows"):
        model.predict(x, groups=["east", "north"])


def test_frames_with_text_dates_and_missing_values_are_fitted() -> None:
    draw = np.random.default_rng(0)
    age = draw.normal(60, 12, 300)
    admitted = pandas.Timestamp("2024-01-01") + pandas.to_timedelta(age, unit="D")
    frame = pandas.DataFrame({"age": age, "sex": draw.choice(["M", "F"], 300), "admitted": admitted})
    frame.loc[::7, "age"], frame.loc[::9, "sex"] = np.nan, None
    y, groups = np.where(age > 60, "ill", "well"), np.repeat(["a", "b"], 150)
    model = FederatedClassifier(rounds=5).fit(frame, y, groups=groups)
    found = model.predict_proba(frame, groups=groups)
    assert model.score(frame, y) > 0.8
    assert np.array_equal(model.predict_proba(frame[frame.columns[::-1]], groups=groups), found)
    assert np.array_equal(pickle.loads(pickle.dumps(model)).predict_proba(frame, groups=groups), found)


def test_missing_numbers_of_arrays_are_fitted_and_columns_reordered_by_name() -> None:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(200, 2))
    y = (x[:, 0] > 0).astype(int)
    frame = pandas.DataFrame(x, columns=["a", "b"])
    numeric = FederatedClassifier(rounds=2).fit(frame, y)
    assert np.array_equal(numeric.predict_proba(frame[["b", "a"]]), numeric.predict_proba(frame))
    assert np.array_equal(FederatedClassifier(rounds=2).fit(x, y).predict_proba(x), numeric.predict_proba(frame))
    x[::9, 1] = np.nan
    assert FederatedClassifier(rounds=5).fit(x, y).score(x, y) > 0.8


@pytest.mark.long
def test_a_regressor_keeps_every_convention_of_scikit_learn() -> None:
    method = caveat.FedAvg(training=caveat.Training(lr=0.01, local_epochs=5))
    known = {
        "check_fit2d_1feature": "its target is constant",
        "check_methods_subset_invariance": "medians differ by 3e-7, the precision of float32, instead of 1e-7",
    }
    found = check_estimator(FederatedRegressor(method), on_fail=None, on_skip=None, expected_failed_checks=known)
    failed = {each["check_name"]: each["exception"] for each in found if each["status"] == "failed"}
    assert failed == {}


def test_a_regressor_predicts_medians_quantiles_and_intervals() -> None:
    rng = np.random.default_rng(0)
    x, groups = rng.normal(size=(600, 2)), np.array(["north", "south"]).repeat(300)
    y = 5 * np.abs(x[:, 0]) + (groups == "south") + 0.5 * rng.normal(size=600)
    training = caveat.Training(lr=0.01, batch_size=32, local_epochs=2)
    model = FederatedRegressor(caveat.FedAvg(training=training), rounds=10).fit(x, y, groups=groups)
    assert model.score(x, y, None) > 0.7
    value, (low, high) = model.predict(x, groups), model.predict_interval(x, groups).T
    assert 0.85 < np.mean((low <= y) & (y <= high)) < 0.99
    table = pandas.DataFrame(model.decide(x, groups))
    assert (table["value"] == value).all()
    assert (table["low"] == low).all()
    quantiles = model.predict_quantiles(x, [0.1, 0.5, 0.9], groups)
    assert (np.diff(quantiles) >= 0).all()
    assert np.allclose(quantiles[:, 1], value)
    again = pickle.loads(pickle.dumps(model))
    assert np.array_equal(again.predict(x, groups), value)
