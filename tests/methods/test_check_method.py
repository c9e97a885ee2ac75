"""`caveat.testing.check_method` sees what breaks the contract, and says in one sentence what that is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from federations import FAST

import caveat
from caveat import ConfigurationError, FedAvg, Update, frozen_settings, register
from caveat.methods import METHODS
from caveat.testing import Violation, check_method

pytestmark = pytest.mark.usefixtures("registry")
MANIFEST = {"Broken": {"model": ["*"]}}


@pytest.fixture
def broken() -> FedAvg:
    """FedAvg in a class of its own, for tests to break."""

    @register
    @frozen_settings
    class Broken(FedAvg):
        """FedAvg under another name."""

    return Broken(rounds=2, training=FAST)


def replace(monkeypatch: pytest.MonkeyPatch, name: str, hook: Any) -> None:
    monkeypatch.setattr(METHODS["broken"], name, hook)


def of_a_process(self: Any, down: Any, state: Any, context: Any) -> Any:
    update, after = FedAvg.train(self, down, state, context)
    update.payload["model"]["head.1.bias"] += 1e-3 * (os.getpid() % 97)
    return update, after


def in_the_workspace(self: Any, down: Any, state: Any, context: Any) -> Any:
    left = sum(float(p.detach().nan_to_num(7).sum()) for p in context.module.parameters())
    update, after = FedAvg.train(self, down, state, context)
    update.payload["model"]["head.1.bias"] += left % 1
    return update, after


def changing_what_was_sent(self: Any, down: Any, state: Any, context: Any) -> Any:
    found = FedAvg.train(self, down, state, context)
    down["model"]["head.1.bias"] += 1
    return found


def sending_more(self: Any, down: Any, state: Any, context: Any) -> Any:
    update, after = FedAvg.train(self, down, state, context)
    return Update(
        update.payload | {"labels": {"y": context.train.y.bincount(minlength=3).float()}}, update.examples
    ), after


def changing_the_server(self: Any, server: Any, replies: Any, context: Any) -> Any:
    server["model"]["head.1.bias"] += 1
    return FedAvg.aggregate(self, server, replies, context)


def beside_each_other(self: Any, down: Any, state: Any, context: Any, x: Any) -> Any:
    return FedAvg.answer(self, down, state, context, x - x.mean(0))


def of_another_length(self: Any, down: Any, state: Any, context: Any, x: Any) -> Any:
    return FedAvg.answer(self, down, state, context, x[:-1])


def failing(self: Any, down: Any, state: Any, context: Any) -> Any:
    raise ValueError("the scanner is broken")


def accuracy(self: Any, server: Any) -> dict[str, object]:
    return {"mean": 1.0}


def drawing_elsewhere(self: Any, down: Any, state: Any, context: Any) -> Any:
    update, after = FedAvg.train(self, down, state, context)
    update.payload["model"]["head.1.bias"] += np.random.default_rng().random()
    return update, after


def answering_by_chance(self: Any, down: Any, state: Any, context: Any, x: Any) -> Any:
    noise = torch.from_numpy(np.random.default_rng().normal(size=x.shape)).float()
    return FedAvg.answer(self, down, state, context, x + noise)


@pytest.mark.parametrize(
    ("name", "hook", "told"),
    [
        ("train", drawing_elsewhere, "repeating a run gives a different result: model/"),
        ("train", drawing_elsewhere, "look for unseeded randomness"),
        (
            "answer",
            answering_by_chance,
            "silo-0 predicts different probabilities the second time; look for unseeded rand",
        ),
        ("train", of_a_process, "two workers give a different result than one: model/"),
        ("train", in_the_workspace, "depends on weights left in context.module or context.own"),
        ("train", changing_what_was_sent, "train mutates what was broadcast: model/head.1.bias"),
        ("train", sending_more, "labels/y leaves the silos in train but is not in the manifest"),
        ("aggregate", changing_the_server, "the aggregation of train mutates the server's state that was passed to it"),
        ("answer", beside_each_other, "the prediction of an input depends on other inputs in the batch"),
        ("answer", of_another_length, "19 predictions for 20 inputs"),
        (
            "models",
            (caveat.Decision.GLOBAL, caveat.Decision.LOCAL),
            "predicts with GLOBAL, `models` declares GLOBAL, LOCAL",
        ),
        (
            "train",
            failing,
            "a run fails in the check 'predictions are well formed': silo 'silo-2' failed",
        ),
        ("outcome", accuracy, "outcome() returns 'mean', a key that every summary has; rename it"),
    ],
)
def test_what_is_violated_is_one_sentence(
    broken: FedAvg, monkeypatch: pytest.MonkeyPatch, name: str, hook: Any, told: str
) -> None:
    replace(monkeypatch, name, hook)
    with pytest.raises(Violation) as caught:
        check_method(broken, MANIFEST)
    assert str(caught.value).startswith("broken: ")
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_method_that_keeps_it_passes(broken: FedAvg, tmp_path: Path) -> None:
    (tmp_path / "broken.toml").write_text('[Broken]\nmodel = ["encoder", "head"]\n')
    check_method(broken, tmp_path / "broken.toml")


def test_what_is_not_declared_is_not_sent(broken: FedAvg) -> None:
    with pytest.raises(
        Violation, match=r"broken: the manifest has no \['Broken'\]; it must list the tensors that leave"
    ):
        check_method(broken, {})


def test_a_method_has_to_be_registered_and_its_settings_documented() -> None:
    @frozen_settings
    class Broken(FedAvg):
        """FedAvg under another name."""

        strength: float = 0.5

    with pytest.raises(Violation, match=r"Broken is not registered: put @caveat\.register above @caveat\.frozen_setti"):
        check_method(Broken(), MANIFEST)
    register(Broken)
    with pytest.raises(Violation, match="broken: the setting strength needs a docstring below it, which is its help"):
        check_method(Broken(), MANIFEST)


def test_a_manifest_that_is_none_is_an_error_that_names_it(broken: FedAvg, tmp_path: Path) -> None:
    (tmp_path / "broken.toml").write_text("[Broken")
    for file in (tmp_path / "broken.toml", tmp_path / "gone.toml"):
        with pytest.raises(ConfigurationError, match=file.name):
            check_method(broken, file)


@pytest.mark.long
def test_it_needs_no_pytest_and_nothing_of_the_tests() -> None:
    code = (
        "import sys, caveat.testing; print([name for name in ('pytest', 'federations', 'flwr') if name in sys.modules])"
    )
    path = {"PYTHONPATH": str(Path(caveat.__file__).parent.parent)}
    done = subprocess.run([sys.executable, "-c", code], env=path, text=True, capture_output=True)
    assert done.stdout == "[]\n", done.stderr
