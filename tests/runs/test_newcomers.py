"""Silos that take no part: nothing of a run but their own figures depends on them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import caveat
from caveat.config import load
from caveat.core import ConfigurationError, Data, Method, Silo
from caveat.data.build import load as load_data
from caveat.data.silo_collection import Silos
from caveat.methods import METHODS, SCAFFOLD, UEFL, FedAvg, FedBN, FedProx
from caveat.nn.models import ModelSettings
from caveat.runs.finished_run import Run
from caveat.runs.resume import resume
from caveat.runs.start import start
from caveat.training.fit import Training
from caveat.wrappers.privacy import Privacy
from caveat.wrappers.uncertainty_settings import Uncertainty

DATA = ["data.source=digits", "data.n_silos=4", "data.shift.angles=[0, 20, 40, 60]"]
SETTINGS = [
    *DATA, "model.name=mlp", "model.width=16", "method.name=fedavg", "rounds=2", "training.batch_size=32",
    "training.lr=0.01", "uncertainty.mc_samples=2", "federation.newcomers=[\"silo-3\"]",
]  # fmt: skip
TIMES = {"seconds": 0, "sha256": ""}
"""What differs when a run is done again: times, and what hashes them."""
NEW = "silo-3"
FAST: dict[str, Any] = {
    "rounds": 2,
    "model": ModelSettings(name="mlp", width=16, norm=True),
    "training": Training(batch_size=32, optimizer="sgd", lr=0.1),
}
EXTENDING = UEFL(codewords=4, threshold=0.0, margin=0.0, iterations=2, extra_rounds=1, mc_samples=2)
METHODS_THAT_HAVE_TO = [FedAvg(mc_samples=2), FedProx(mc_samples=2), FedBN(mc_samples=2), EXTENDING]
ASKING_EVERYONE = Uncertainty(policy="switch", mc_samples=2)
"""Two kinds of rounds, after training, in which calibration data of all silos decide."""

named = pytest.mark.parametrize("method", METHODS_THAT_HAVE_TO, ids=lambda method: type(method).__name__)


@pytest.fixture(scope="module")
def silos() -> Silos:
    whole = load_data(load(None, DATA).data, 0)
    return dataclasses.replace(whole, silos=[short(silo) for silo in whole])


def short(silo: Silo) -> Silo:
    splits = {name: Data(*(part[:64] for part in getattr(silo, name))) for name in ("train", "validation", "test")}
    return dataclasses.replace(silo, **splits, indices={})


def changed(silos: Silos, **splits: Data) -> Silos:
    """The silos with other splits of the newcomer."""
    return dataclasses.replace(silos, silos=[dataclasses.replace(s, **splits) if s.name == NEW else s for s in silos])


def rows(run: Run) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run.folder / "rounds.jsonl").read_text().splitlines()]


def model(run: Run) -> bytes:
    return (run.folder / "model" / "model.safetensors").read_bytes()


def summary(run: Run) -> dict[str, Any]:
    """All figures but times."""
    return {name: value for name, value in run.summary.items() if name not in ("seconds", "sha256", "files")}


def of_participants(found: dict[str, Any]) -> dict[str, Any]:
    """A summary without what it says of newcomers."""
    silos = [silo for silo in found["silos"] if not silo.get("newcomer")]
    return {name: value for name, value in found.items() if name != "newcomers"} | {"silos": silos}


@named
def test_what_newcomers_could_train_and_calibrate_on_decides_nothing(method: Method, silos: Silos) -> None:
    """But for inputs that alarms need: of training, for distances, and of calibration, for p-values."""
    noise = torch.Generator().manual_seed(1)
    silo = silos.named(NEW)
    garbage = {
        name: Data(data.x, data.y.flip(0)) for name, data in [("train", silo.train), ("calibration", silo.calibration)]
    }
    x, y = silo.validation
    garbage["validation"] = Data(1e3 * torch.randn(x.shape, generator=noise), y.flip(0))
    one, other = (
        caveat.run(each, method, newcomers=[NEW], uncertainty=ASKING_EVERYONE, **FAST)
        for each in (silos, changed(silos, **garbage))
    )
    assert model(one) == model(other)
    assert rows(one) == rows(other)
    assert summary(one) == summary(other)


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        (FedBN(mc_samples=2), {"participation": 0.6, "uncertainty": ASKING_EVERYONE}),
        (EXTENDING, {}),
        (SCAFFOLD(mc_samples=2), {"participation": 0.6}),  # whose server counts the silos that there are
        (
            FedAvg(mc_samples=2),
            {"privacy": Privacy(clip_norm=1.0, noise_multiplier=0.1)},
        ),  # whose noise depends on how many are asked
        (FedAvg(mc_samples=2), {"n_silos": 2, "workers": 2}),
    ],
    ids=["fedbn", "uefl", "scaffold", "privacy", "some measured"],
)
def test_the_others_run_is_that_without_them(method: Method, settings: dict[str, Any], silos: Silos) -> None:
    without = dataclasses.replace(silos, silos=silos[:3])
    assert NEW not in without.names
    beside = caveat.run(silos, method, newcomers=[NEW], **FAST, **settings)
    alone = caveat.run(without, method, **FAST, **settings)
    assert model(beside) == model(alone)
    assert [row for row in rows(beside) if row["silo"] != NEW] == rows(alone)
    assert of_participants(summary(beside)) == summary(alone)


@named
def test_newcomers_are_measured_in_the_end_with_what_a_silo_has_that_joins_then(method: Method, silos: Silos) -> None:
    run = caveat.run(silos, method, newcomers=[NEW], **FAST)
    found = run.summary
    entry = found["silos"][-1]
    assert [silo["name"] for silo in found["silos"] if silo.get("newcomer")] == [NEW] == [entry["name"]]
    silo = silos.named(NEW)
    prediction = run.predictor(NEW)(silo.test.x)
    assert entry["test"]["accuracy"] == pytest.approx(float((prediction.label == silo.test.y).double().mean()))
    assert found["newcomers"]["mean"]["accuracy"] == entry["test"]["accuracy"]
    assert found["newcomers"]["mean"].keys() == found["mean"].keys()
    seen = {(row["round"], row["phase"], row["split"]) for row in rows(run) if row["silo"] == NEW}
    assert seen == {(found["rounds_run"], "final", "test")}
    assert not (run.folder / "state" / "silos" / NEW).exists()


def test_the_mean_is_over_all_newcomers(silos: Silos) -> None:
    run = caveat.run(silos, FedAvg(mc_samples=2), newcomers=[NEW, "silo-0", NEW], n_silos=1, **FAST)
    found = run.summary
    assert len([row for row in rows(run) if row["silo"] == NEW]) == 1  # however often it is named
    own, others = ([s for s in found["silos"] if bool(s.get("newcomer")) is new] for new in (False, True))
    assert {silo["name"] for silo in others} == {NEW, "silo-0"}
    accuracy = [silo["test"]["accuracy"] for silo in others]
    assert found["newcomers"]["mean"]["accuracy"] == pytest.approx(sum(accuracy) / 2)
    assert len(own) == 1  # as many as are measured
    assert found["mean"]["accuracy"] == own[0]["test"]["accuracy"]
    assert {domain["domain"] for domain in found["domains"]} == {own[0]["domain"]}


def test_their_test_split_changes_their_own_figures_only(silos: Silos) -> None:
    x, y = silos.named(NEW).test
    one, other = (
        caveat.run(each, FedAvg(mc_samples=2), newcomers=[NEW], **FAST)
        for each in (silos, changed(silos, test=Data(x, (y + 1) % 10)))
    )
    assert model(one) == model(other)
    assert of_participants(summary(one)) == of_participants(summary(other))
    assert one.summary["newcomers"] != other.summary["newcomers"]


def test_a_configured_run_is_continued_and_opened_again(tmp_path: Path) -> None:
    config = load(None, [*SETTINGS, 'baselines=["uefl"]'])
    folder = start(config, tmp_path / "run")
    assert NEW in json.loads((folder / "splits.json").read_text())
    whole = [json.loads((folder / part / "summary.json").read_text()) for part in ("", "baselines/uefl")]
    assert [set(found) >= {"newcomers"} for found in whole] == [True, True]
    lines = (folder / "rounds.jsonl").read_text()
    (folder / "summary.json").unlink()
    resume(folder)
    again = json.loads((folder / "summary.json").read_text())
    assert again | TIMES == whole[0] | TIMES
    assert (folder / "rounds.jsonl").read_text() == lines
    assert len(caveat.load(folder).predictor(NEW)(caveat.load(folder).silos.named(NEW).test.x)) > 0


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.long
def test_methods_that_send_a_whole_model_have_something_to_answer_with(name: str, silos: Silos) -> None:
    settings = FAST | {"rounds": 1}
    if name in ("local", "fedper", "fedrep", "fedproto", "distrans", "fedcr"):
        with pytest.raises(ConfigurationError, match=f"does not fit '{name}': .* stays at its silo"):
            caveat.run(silos, METHODS[name](), newcomers=[NEW], **settings)
    else:
        found = caveat.run(silos, METHODS[name](), newcomers=[NEW], **settings).summary
        assert 0 <= found["newcomers"]["mean"]["accuracy"] <= 1


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        (['federation.newcomers=["silo-9"]'], "no silo 'silo-9', expected names among silo-0, silo-1, silo-2, silo-3"),
        (['federation.newcomers=["silo-0", "silo-1", "silo-2", "silo-3"]'], "contains all 4 silos"),
        (["federation.min_silos=4"], "federation.min_silos = 4, but there are 3 silos without"),
        (["method.name=local"], "does not fit 'local'"),
        (['baselines=["fedper"]'], "does not fit 'fedper'"),
        (["engine.name=flower"], "is not used by engine 'flower'"),
        (["federation.newcomers=[3]"], "federation.newcomers"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_is(sets: list[str], words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=words.replace(".", r"\.")):
        start(load(None, [*SETTINGS, *sets]), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_repeated_names_count_once() -> None:
    config = load(None, [*SETTINGS, f'federation.newcomers=["{NEW}", "silo-0", "{NEW}"]'])
    assert config.federation.newcomers == (NEW, "silo-0")
