"""Federations with models of one's own: the code travels in the app, frozen weights do not and are compared."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from commands import caveat, one_error
from federations import assert_same
from flwr.app import Context, RecordDict
from hospitals import CONFIG, NAMES, Federation, summary
from torch import Tensor, nn

import caveat as library
from caveat.core import ConfigurationError, DataError, RunError
from caveat.federation import make_known
from caveat.federation.silo.app import NodeHandler
from caveat.files import read_ledger, read_payload
from caveat.nn.custom_model import KNOWN

pytestmark = pytest.mark.long

CODE = """from torch import nn


def body(shape):
    return nn.Sequential(nn.Linear(shape[0], 6), nn.ReLU())
"""
MORE = '[uncertainty]\npolicy = "guaranteed"\nrisk = 0.5\n'
MODEL = Path("model", "model.safetensors")


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("CAVEAT_CACHE", str(tmp_path / "cache"))
    before = dict(KNOWN)
    KNOWN.clear()
    yield
    KNOWN.clear()
    KNOWN.update(before)


def body(shape: tuple[int, ...]) -> nn.Module:
    return nn.Sequential(nn.Linear(shape[0], 6), nn.BatchNorm1d(6), nn.ReLU())


class Scaled(nn.Sequential):
    """Computes something else of the same parts."""

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = super().forward(1.5 * x)
        return out

    def _get_name(self) -> str:
        return "Sequential"


def federation(folder: Path, method: str, model: str) -> Federation:
    """Hospitals with another model than the one that their configuration has."""
    found = Federation(folder, method)
    file = folder / "config.toml"
    before, rest = file.read_text().split("[model]")
    file.write_text(f"{before}[model]\n{model}[method]{rest.split('[method]')[1]}")
    found.config = library.config.load(str(file))  # type: ignore[attr-defined]
    return found


@pytest.mark.parametrize("method", ["fedavg", "fml", "fedpn"])
@pytest.mark.parametrize("frozen", ["true", "false"])
def test_a_federation_with_own_code_is_the_run_of_one_machine(method: str, frozen: str, tmp_path: Path) -> None:
    make_known("net.py:body", body)
    there = federation(tmp_path, method, f'encoder = "net.py:body"\nfrozen = {frozen}\nhidden = 8\n')
    run, here = there.serve(), there.embedded()
    assert_same(read_payload(run / MODEL), read_payload(here / MODEL))
    assert summary(run) == summary(here)
    names = {name for form in read_ledger(run / "ledger.jsonl").forms.values() for name in form}
    assert any(name.startswith("model/encoder") and "weight" in name for name in names) == (frozen == "false")
    for name in NAMES:
        silo = library.load(there.kept(name))
        x = silo.silos.named(name).test.x
        assert silo.predictor(name)(x).probs.equal(library.load(here).predictor(name)(x).probs)


def test_what_a_silo_keeps_is_opened_with_its_code_alone(tmp_path: Path) -> None:
    make_known("net.py:body", body)
    there = federation(tmp_path, "fedavg", 'encoder = "net.py:body"\nfrozen = true\n')
    there.serve()
    kept = there.kept("hill")
    KNOWN.clear()
    with pytest.raises(ConfigurationError, match="a folder cannot make caveat import code"):
        library.load(kept)
    assert library.load(kept, model=body).silos.names == ["hill"]
    with pytest.raises(ConfigurationError, match="builds a different model here than at the server"):
        library.load(kept, model=lambda shape: nn.Sequential(nn.Linear(shape[0], 6), nn.BatchNorm1d(6), nn.Tanh()))
    with pytest.raises(ConfigurationError, match=r"builds a different model here .* or outputs differ"):
        library.load(kept, model=lambda shape: Scaled(*body(shape)))


def test_a_silo_with_other_frozen_weights_is_not_admitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_known("net.py:body", body)
    there = federation(tmp_path, "fedavg", 'encoder = "net.py:body"\nweights = "body.pt"\nfrozen = true\n')
    monkeypatch.setenv("CAVEAT_DATA", str(tmp_path))
    torch.manual_seed(0)
    weights = body((9,)).state_dict()
    app = there.grid.apps[there.node["hill"]]

    def elsewhere(*given: object) -> object:
        other = {name: tensor + 1 if tensor.is_floating_point() else tensor for name, tensor in weights.items()}
        torch.save(other, tmp_path / "body.pt")
        try:
            return app(*given)  # type: ignore[arg-type]
        finally:
            torch.save(weights, tmp_path / "body.pt")

    there.grid.apps[there.node["hill"]] = elsewhere  # type: ignore[assignment]
    shape = _shape(tmp_path / "probe")
    weights = body(shape).state_dict()
    torch.save(weights, tmp_path / "body.pt")
    run = there.serve()
    assert [note for note in there.notes if "is refused" in note and "see the log at the silo" in note]
    assert [silo["name"] for silo in summary(run)["silos"]] == ["coast", "valley"]


def _shape(folder: Path) -> tuple[int, ...]:
    """Of the hospitals' inputs, once they have agreed."""
    run = Federation(folder, "fedavg", rounds=1).serve()
    return (read_payload(run / MODEL)["model"]["encoder.1.weight"].shape[1],)


def test_a_server_without_its_code_says_so(tmp_path: Path) -> None:
    there = federation(tmp_path, "fedavg", 'encoder = "net.py:body"\n')
    with pytest.raises((ConfigurationError, RunError), match=r"net\.py:body' is custom code"):
        there.serve()


def test_nodes_that_are_given_the_app_and_do_not_import_it_know_its_code() -> None:
    """As those of a simulation are."""
    make_known("net.py:body", body)
    handler = NodeHandler()
    KNOWN.clear()
    with pytest.raises(DataError, match="invalid terms of a federation"):
        handler.greet(Context(1, 1, {}, RecordDict(), {}), {"terms": "nothing"})
    assert {"net.py:body": body} == KNOWN


# The project


@pytest.mark.parametrize("plugin", [False, True])
def test_the_code_goes_along_and_the_app_imports_it_where_everybody_sees_it(
    plugin: bool, nowhere: Path, tmp_path: Path
) -> None:
    (nowhere / "net.py").write_text(CODE)
    text = CONFIG.format(method="fedavg", rounds=2, quorum=2, start_timeout=3, silos=3)
    before, rest = text.split("[model]")
    model = '[model]\nencoder = "net.py:body"\nweights = "body.pt"\nfrozen = true\n[method]'
    (nowhere / "fed.toml").write_text(before + model + rest.split("[method]")[1])
    more = ["--plugin", "net.py"] if plugin else []
    done = caveat("flower", "init", "project", "fed.toml", *more)
    assert done.exit_code == 0, done.stderr
    assert "model.weights: the server and every silo need body.pt, at this path or in $CAVEAT_DATA" in done.stdout
    assert (nowhere / "project" / "federation" / "net.py").read_text() == CODE
    app = (nowhere / "project" / "federation" / "__init__.py").read_text()
    assert app.count("from . import net") == 1
    assert 'make_known("net.py:body", net.body)' in app
    code = (
        "import federation.client_app; from caveat.nn.custom_model import KNOWN; print(KNOWN['net.py:body'].__module__)"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(["project", *sys.path]), "FLWR_HOME": str(tmp_path)}
    told = subprocess.run([sys.executable, "-c", code], env=environment, text=True, capture_output=True)
    assert told.stdout == "federation.net\n", told.stderr
    assert "exists and is not empty" in one_error(caveat("flower", "init", "project", "fed.toml"), 2)


def test_a_file_that_cannot_be_a_module_of_the_project_is_refused(nowhere: Path) -> None:
    for name in ("client_app.py", "my-net.py"):
        (nowhere / name).write_text(CODE)
        arguments = ["--set", f"model.encoder={name}:body", "--set", "method.name=fedavg"]
        said = one_error(caveat("flower", "init", "project", *arguments), 2)
        assert f"{name} cannot be a module of the project; rename the file" in said
    said = one_error(caveat("flower", "init", "project", "--set", "model=gone.py:net"), 2)
    assert "gone.py:net': no such file" in said
    assert not (nowhere / "project").exists()
