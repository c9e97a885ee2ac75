"""Runs on a device: interrupted, gone on with, opened elsewhere; own models, frozen encoders, bfloat16, refusals."""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import TINY, one_error, sets
from commands import caveat as command
from own_models import Unusual
from own_runs import FAST, model_of, run, three_silos
from shadow import SEEDS, on_shadow
from shadow_models import Learning
from torch import Tensor

import caveat
from caveat.core import ConfigurationError
from caveat.core.devices import find_device, find_devices
from caveat.engines.worker_process import can_fork
from caveat.federation.silo.silo_file import read_silo_file
from caveat.files import read_payload
from caveat.runs.progress import Silent
from caveat.testing.federation import assert_same

on_shadow()
SILOS = three_silos()


class Stop(Silent):
    """Interrupts a run after its first round."""

    def round(self, *told: object) -> None:
        raise KeyboardInterrupt


MLP = caveat.ModelSettings(name="mlp", width=4, hidden=6)
WAYS: dict[str, dict[str, Any]] = {
    "own model, balanced": {
        "model": Unusual,
        "training": dataclasses.replace(FAST, class_weights="balanced", clip_norm=1.0),
    },
    "frozen encoder, laplace": {
        "model": caveat.ModelSettings(encoder=Learning, frozen=True, hidden=0),
        "uncertainty": caveat.Uncertainty(source="laplace"),
    },
    "bfloat16, moments": {
        "training": dataclasses.replace(FAST, precision="bfloat16", optimizer_state="average"),
        "server": caveat.ServerOptimizer(optimizer="adam"),
    },
    "privacy, guaranteed": {
        "privacy": caveat.Privacy(clip_norm=1.0, noise_multiplier=0.1),
        "uncertainty": caveat.Uncertainty(policy="guaranteed", risk=0.5, set_coverage=0.8),
    },
    "newcomers, ensemble": {"newcomers": ["s2"], "uncertainty": caveat.Uncertainty(source="ensemble", ensemble_size=2)},
    "own models": {"method": caveat.FML(), "personal": [caveat.PersonalModel(name="mlp", width=4)]},
}


def assert_same_prediction(one: caveat.Prediction, other: caveat.Prediction) -> None:
    for field in dataclasses.fields(one):
        mine, yours = getattr(one, field.name), getattr(other, field.name)
        if isinstance(mine, Tensor):
            assert torch.equal(mine, yours), field.name
    assert one.uncertainty.keys() == other.uncertainty.keys()
    assert all(torch.equal(each, other.uncertainty[name]) for name, each in one.uncertainty.items())


def without_device(folder: Path) -> dict[str, Any]:
    """What a summary says, but for times, sums of files and where it was computed."""
    found = json.loads((folder / "summary.json").read_text())
    return {key: value for key, value in found.items() if key not in ("seconds", "files", "sha256", "device")}


@pytest.mark.parametrize("way", WAYS)
def test_a_run_that_goes_on_comes_to_what_the_cpu_comes_to(way: str, tmp_path: Path) -> None:
    given = {"model": MLP} | WAYS[way]
    here = run(SILOS, tmp_path / "here", **given)
    with pytest.raises(KeyboardInterrupt):
        run(SILOS, tmp_path / "there", progress=Stop(), device="shadow", **given)
    there = run(SILOS, tmp_path / "there", device="shadow", **given)
    assert_same(model_of(here), model_of(there))
    assert without_device(here.folder) == without_device(there.folder)
    assert here.rounds == there.rounds
    assert here.summary.get("device") is None
    assert there.summary["device"] == {
        "names": ["shadow:0"], "kind": "shadow", "versions": {"torch": torch.__version__}
    }  # fmt: skip
    code = {Unusual: Unusual}.get(given["model"], given["model"].encoder if "frozen" in way else None)
    for opened in (
        there,
        caveat.load(there.folder, device="shadow", model=code),
        caveat.load(there.folder, model=code),
    ):
        for silo in (SILOS[1], SILOS[2]):  # of whom one may be a newcomer, whose data are asked
            if silo.name in given.get("newcomers", []) and opened is not there:
                continue
            expected = here.predictor(silo.name)(silo.test.x)
            assert_same_prediction(opened.predictor(silo.name)(silo.test.x), expected)
    if "ensemble" not in way:
        assert {p.device.type for p in there.module("s1").parameters()} == {"cpu"}


@pytest.mark.parametrize("change", ["flip", "crop", "rotate", "erase", "brightness"])
def test_inputs_are_changed_alike_everywhere(change: Any) -> None:
    from caveat.data.augmentation import CHANGES

    x = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    found = []
    for device in ("cpu", "shadow"):
        torch.manual_seed(1)
        found.append(CHANGES[change](x.to(device)).cpu())
    assert torch.equal(*found)
    assert not torch.equal(found[0], x)


def test_a_command_runs_and_predicts_on_a_device(tmp_path: Path) -> None:
    for device in ("cpu", "shadow"):
        done = command("run", *sets(*TINY), "--out", tmp_path / device, "--device", device, "--quiet")
        assert done.exit_code == 0, done.output
    assert without_device(tmp_path / "cpu") == without_device(tmp_path / "shadow")
    np.savez(tmp_path / "x.npz", x=np.zeros((2, 8, 8, 1), np.uint8))
    asked = ("predict", tmp_path / "shadow", tmp_path / "x.npz", "--silo", "silo-0", "--device")
    assert command(*asked, "shadow").stdout == command(*asked, "cpu").stdout
    assert 'device = "shadow"' in (tmp_path / "shadow" / "config.toml").read_text()


@pytest.mark.parametrize("name", ["gpu", "cuda:7", "mps", "cuda", "meta"])
def test_a_device_that_is_not_there_is_one_sentence_before_anything_is_written(name: str, tmp_path: Path) -> None:
    kind, _, number = name.partition(":")
    count = torch.get_device_module(kind).device_count() if kind in ("cuda", "mps") else 0
    if count > int(number or 0):
        pytest.skip(f"this machine has {name}")
    found = one_error(command("run", *sets(*TINY), "--out", tmp_path / "run", "--device", name), 2)
    assert found.startswith(f"error: engine.device = '{name}': ")
    assert ("this machine has " if count else "expected cpu, auto, cuda, cuda:N or mps") in found
    assert len(found.splitlines()) == 1
    with pytest.raises(ConfigurationError, match=f"^device = '{name}': "):
        run(SILOS, tmp_path / "run", device=name)
    assert not (tmp_path / "run").exists()


def test_a_number_that_is_too_large_and_a_name_that_is_none_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"^engine.device = 'shadow:7': this machine has shadow:0$"):
        find_device("shadow:7")
    for name in ("", "CUDA", "cuda:", "cuda:-1", "cpu:0", "cuda 1"):
        with pytest.raises(ConfigurationError, match="expected cpu, auto, cuda, cuda:N or mps"):
            caveat.config.EngineSettings(device=name)


def test_a_device_that_does_not_start_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*size: object, **more: object) -> Tensor:
        raise RuntimeError("CUDA error: out of memory\nCompile with DSA")

    monkeypatch.setattr(torch, "zeros", broken)
    with pytest.raises(ConfigurationError, match="cannot be initialized: RuntimeError: CUDA error: out of memory"):
        find_device("shadow")


def test_workers_take_turns_with_all_devices_unless_one_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("caveat.core.devices.device_count", lambda kind: 2)
    first, second = torch.device("shadow", 0), torch.device("shadow", 1)
    assert find_devices("shadow", 3) == (first, second)
    assert find_devices("shadow", 1) == (first,)
    assert find_devices("shadow:1", 3) == (second,)
    assert find_devices("cpu", 3) == (torch.device("cpu"),)


def test_auto_is_the_first_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"cuda": 0, "mps": 1}
    monkeypatch.setattr("caveat.core.devices.device_count", lambda kind: there[kind])
    assert find_device("auto", start=False) == torch.device("mps", 0)
    there["cuda"] = 1
    assert find_device("auto", start=False) == torch.device("cuda", 0)
    there |= {"cuda": 0, "mps": 0}
    assert find_device("auto") == torch.device("cpu")


def test_workers_begin_anew_where_a_process_cannot_be_forked(tmp_path: Path) -> None:
    """As this one cannot, on the device or on the CPU, since it has trained on the device."""
    plugin = Path(__file__).parents[1] / "helpers" / "shadow_models.py"
    given = [*sets(*TINY, "baselines=['local']"), "--device", "shadow", "--plugin", plugin, "--quiet"]
    for workers in (1, 2):
        done = command("run", *given, "--workers", workers, "--out", tmp_path / str(workers))
        assert done.exit_code == 0, done.output
    assert not can_fork(torch.device("shadow", 0))
    assert not can_fork(torch.device("cpu"))
    for part in (Path(), Path("baselines", "local")):
        assert without_device(tmp_path / "1" / part) == without_device(tmp_path / "2" / part)


def test_a_worker_that_cannot_begin_anew_says_why(tmp_path: Path) -> None:
    plugin = tmp_path / "gone.py"
    plugin.write_text("import pathlib\nimport shadow_models\npathlib.Path(__file__).unlink()\n")
    given = [*sets(*TINY), "--device", "shadow", "--plugin", plugin, "--quiet", "--workers", 2]
    done = command("run", *given, "--out", tmp_path / "run")
    assert done.exit_code == 4
    assert f"a worker process cannot reconstruct the run: --plugin {plugin}: no such file" in done.stderr


def test_a_run_that_no_other_process_can_make_again_has_one_worker_there(tmp_path: Path) -> None:
    run(SILOS, tmp_path / "1", model=MLP, device="shadow")
    with pytest.raises(ConfigurationError, match="this process has used a GPU"):
        run(SILOS, tmp_path / "2", model=MLP, workers=2, device="shadow")


WORKERS = """
import own_runs, shadow, torch, sys
from caveat.engines.worker_process import can_fork
shadow.on_shadow()
assert can_fork(torch.device("shadow", 0))
own_runs.run(own_runs.three_silos(), sys.argv[1], workers=2, device="shadow")
"""


def test_workers_are_forked_where_a_process_has_not_used_the_device(tmp_path: Path) -> None:
    here = run(SILOS, tmp_path / "here")
    found = {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", WORKERS, tmp_path / "there"]
    done = subprocess.run(command, text=True, capture_output=True, env=os.environ | found)
    assert done.returncode == 0, done.stderr
    assert without_device(here.folder) == without_device(tmp_path / "there")


def test_a_classifier_trains_on_a_device_and_is_opened_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = SILOS[0].train.x.numpy(), SILOS[0].train.y.numpy()
    there = caveat.FederatedClassifier(rounds=1, device="shadow").fit(x, y)
    expected = caveat.FederatedClassifier(rounds=1).fit(x, y).predict_proba(x)
    assert np.array_equal(there.predict_proba(x), expected)
    packed = pickle.dumps(there)
    monkeypatch.setattr("caveat.core.devices.device_count", lambda kind: 0)
    assert np.array_equal(pickle.loads(packed).predict_proba(x), expected)


def test_a_silo_names_its_own_device(tmp_path: Path) -> None:
    file = tmp_path / "silo.toml"
    text = 'silo = "ward"\nstate = "state"\ndevice = "{}"\n[data]\nsource = "npz:ward.npz"\n'
    file.write_text(text.format("shadow"))
    assert read_silo_file(file).device == "shadow"
    file.write_text(text.format("cuda:9"))
    with pytest.raises(ConfigurationError, match=r"silo.toml: device = 'cuda:9': "):
        read_silo_file(file)
    with pytest.raises(ConfigurationError, match=r"set `device` in silo.toml"):
        caveat.config.load(None, ["engine.name=flower", "data.source=on_site", "engine.device=cuda"])


def test_a_simulation_by_flower_computes_there(tmp_path: Path) -> None:
    """`engine.device` is of its processes: the bits are the CPU's, and a device that is not there is one sentence."""
    from flower_grid import InProcessGrid

    from caveat.engines.flower import silo_app_of
    from caveat.federation.server.run import serve
    from caveat.federation.silo.app import NodeHandler

    folders, more = {}, [*TINY, "engine.name=flower", "method.name=scaffold"]
    for device in ("cpu", "shadow"):
        config = caveat.config.load("digits", [*more, f"engine.device={device}"])
        grid = InProcessGrid({node: silo_app_of(NodeHandler()) for node in (1, 2, 3)})
        for number, node in enumerate(grid.apps):
            grid.node_config[node] = {"partition-id": number}
        before = len(SEEDS)
        folders[device] = serve(config, grid, tmp_path / device, Silent())
        assert (len(SEEDS) > before) == (device == "shadow")
    one, other = (read_payload(folder / "model" / "model.safetensors") for folder in folders.values())
    assert_same(one, other)
    assert without_device(folders["cpu"])["silos"] == without_device(folders["shadow"])["silos"]
    assert json.loads((folders["shadow"] / "summary.json").read_text())["device"]["names"] == ["shadow:0"]
    config = caveat.config.load("digits", [*more, "engine.device=shadow:7"])
    with pytest.raises(ConfigurationError, match=r"^engine\.device = 'shadow:7': this machine has shadow:0$"):
        serve(config, grid, tmp_path / "other", Silent())
    assert not (tmp_path / "other").exists()
