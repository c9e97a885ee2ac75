"""What is served: the files that were named, for the silos that were named, and a new version of them."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
from commands import caveat, one_error
from table_runs import table

import caveat as library
from caveat import Run, export_model
from caveat.core import ConfigurationError, RunError
from caveat.serving.opening_models import Deployment
from caveat.serving.served_model import OnnxModel, ServedModel, open_model

pytestmark = [
    pytest.mark.filterwarnings("ignore::caveat.core.DataWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    with warnings.catch_warnings(action="ignore"):
        return table(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def exported(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("onnxruntime")
    return export_model(run, "coast", out=tmp_path_factory.mktemp("onnx") / "model.onnx")


def opened(place: Path, silo: str | None) -> ServedModel:
    return open_model(place, silo, library.load)


def test_a_file_is_of_a_silo_that_was_named(exported: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"--silo hill, cost: .*model.onnx is the model of silo coast"):
        Deployment((exported,), ("hill", "cost"), opened).served()
    for silos in ((), ("coast",), ("hill", "coast")):
        (served,) = Deployment((exported,), silos, opened).served()
        assert (served.name, served.model.silo) == ("model", "coast")


@pytest.mark.parametrize(("name", "value"), [("models", None), ("models", "x"), ("inputs", "[]"), ("promises", None)])
def test_a_file_with_other_metadata_is_refused(exported: Path, tmp_path: Path, name: str, value: str | None) -> None:
    onnx = pytest.importorskip("onnx")
    model = onnx.load(exported)
    (entry,) = (each for each in model.metadata_props if each.key == name)
    entry.key, entry.value = (name, value) if value is not None else ("other", entry.value)
    onnx.save(model, tmp_path / "model.onnx")
    with pytest.raises(ConfigurationError, match="expected an ONNX file written by this version"):
        OnnxModel(tmp_path / "model.onnx")


def test_a_run_of_the_same_weights_with_other_settings_is_a_new_version(run: Run, tmp_path: Path) -> None:
    with warnings.catch_warnings(action="ignore"):
        other = table(tmp_path, false_alarm_rate=0.2)
    link = tmp_path / "heart"
    link.symlink_to(run.folder)
    deployment = Deployment((link,), ("coast",), opened)
    (old,) = before = deployment.served()
    assert deployment.served(before) == [old]
    link.unlink()
    link.symlink_to(other.folder)
    (new,) = deployment.served(before)
    weights = "model/model.safetensors"
    assert (run.folder / weights).read_bytes() == (other.folder / weights).read_bytes()
    assert (old.model.false_alarm_rate, new.model.false_alarm_rate) == (0.05, 0.2)
    assert old.version != new.version


def test_states_are_read_by_who_holds_them(exported: Path, tmp_path: Path) -> None:
    """What another process saves after they were read would be lost."""
    states = tmp_path / "watch"
    deployment = Deployment((exported,), (), opened, states)
    with deployment.alone():
        (served,) = deployment.served()
        assert served.state is not None
        served.state.write_text("damaged")
        with pytest.raises(RunError, match="is used by another process"), deployment.alone():
            pass
        assert "is used by another process" in one_error(caveat("serve", exported, "--watch", states), 4)
    (tmp_path / "file").write_text("")
    assert "expected a folder" in one_error(caveat("serve", exported, "--watch", tmp_path / "file"), 2)
