"""Values that mean nothing, or that nobody asks for: one line each, with the key and its place, before any work."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from caveat.config import load, loads
from caveat.core import ConfigurationError
from caveat.methods import UEFL, FedAvg
from caveat.training.fit import Training


def told(*sets: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        load(None, sets)
    text = str(caught.value)
    assert "\n" not in text, text
    return text


# Numbers that are none


@pytest.mark.parametrize("value", ["nan", "-nan", "inf", "-inf"])
@pytest.mark.parametrize(
    "key",
    [
        "model.name",
        "method.name",
        "engine.name",
        "data.source",
        "data.partition.scheme",
        "training.lr",
        "rounds",
        "seed",
    ],
)
def test_nan_and_infinity_are_refused_wherever_they_stand(key: str, value: str) -> None:
    assert told(f"{key}={value}").endswith(": must be a finite number")
    assert told(f"{key}={value}").startswith(f"--set: {key} = ")


def test_in_a_file_they_are_named_with_their_line() -> None:
    text = '[method]\nname = "fedavg"\n[model]\nname = nan\nwidth = 4\n'
    with pytest.raises(ConfigurationError, match=r"^own\.toml:4: model\.name = nan: must be a finite number$"):
        loads(text, "own.toml")


def test_in_a_list_they_are_named_with_their_place() -> None:
    assert told("data.shift.angles=[0, nan]") == "--set: data.shift.angles[1] = nan: must be a finite number"


@pytest.mark.parametrize("make", [lambda x: FedAvg(rounds=x), lambda x: UEFL(threshold=x), lambda x: Training(lr=x)])
def test_nor_are_they_settings_in_python(make: object) -> None:
    with pytest.raises(ConfigurationError):
        make(float("nan"))  # type: ignore[operator]


# Sizes


@pytest.mark.parametrize(
    "key",
    [
        "rounds", "seed", "model.width", "model.hidden", "model.second", "data.size", "data.n_silos", "engine.workers",
        "uncertainty.mc_samples", "training.local_steps", "training.local_epochs", "training.batch_size",
        "method.codewords", "method.iterations", "method.extra_rounds",
    ],
)  # fmt: skip
@pytest.mark.parametrize("value", ["1" + "0" * 30, str(2**63 - 1)])
def test_absurd_sizes_have_an_honest_bound(key: str, value: str) -> None:
    if (key, value) == ("seed", str(2**63 - 1)):
        assert load(None, [f"seed={value}"]).seed == 2**63 - 1
        return
    message = told(f"{key}={value}")
    assert message.startswith(f"--set: {key} = {value}: must be")


@pytest.mark.parametrize(
    "setting",
    [
        "training.weight_decay=1e30", "data.shift.noise_std=[1e30]", "data.shift.angles=[1e30]",
        "uncertainty.risk=1e-300", "method.threshold=1e30", "data.normalize.std=[1e-300]",
    ],
)  # fmt: skip
def test_so_do_absurd_weights_and_rates(setting: str) -> None:
    assert ": must be at " in told(setting)


def test_so_does_the_noise_of_privacy() -> None:
    for key in ("clip_norm", "noise_multiplier"):
        sets = ["method.name=fedavg", "privacy.clip_norm=1", f"privacy.{key}=1e30"]
        assert f"privacy.{key} = 1e+30: must be at most 1000000" in told(*sets)


# Texts that are no values


def test_deep_nesting_is_one_line() -> None:
    assert "nested too deeply" in told("training.lr=" + "[" * 2000 + "]" * 2000)
    assert "nested too deeply" in told("training.lr=" + "[" * 50 + "]" * 50)
    assert "nested too deeply" in told(".".join("a" * 1000) + "=1")
    with pytest.raises(ConfigurationError, match="nested too deeply"):
        loads("a = " + "[" * 5000 + "]" * 5000, "own.toml")
    with pytest.raises(ConfigurationError, match="nested too deeply"):
        loads(".".join("a" * 1000) + " = 1", "own.toml")


@pytest.mark.parametrize("setting", ["data.source=\udcff", "training.\udcff=1"])
def test_bytes_that_are_no_text_are_refused(setting: str) -> None:
    assert told(setting).endswith("expected a text in UTF-8")


def test_a_seed_of_thousands_of_digits_is_one_short_line() -> None:
    assert "a number with more than 4,300 digits" in told("seed=" + "9" * 5000)
    assert len(told("seed=" + "9" * 5000)) < 300
    with pytest.raises(ConfigurationError, match=r"^own\.toml: .* more than 4,300 digits$"):
        loads("seed = " + "9" * 5000, "own.toml")


@pytest.mark.parametrize("key", ["model.name", "data.source", "method.name", "training.lr", "nothing"])
def test_long_values_are_cut(key: str) -> None:
    message = told(f"{key}={'long' * 5000}")
    assert len(message) < 1200
    assert "characters)" in message or "available:" in message


def test_an_empty_table_is_no_override() -> None:
    assert told("training.lr={}") == "--set training.lr: an empty table has no effect"


# Lists


@pytest.mark.parametrize(
    "setting",
    ['evaluation.splits=["test","test"]', 'data.ood.held_out_classes=["3","3"]'],
)
def test_a_list_that_names_something_twice_is_refused(setting: str) -> None:
    assert told(setting).endswith(" twice")


def test_a_list_of_wrong_values_is_one_message() -> None:
    assert told("federation.newcomers=[1,2,3]") == "--set: federation.newcomers[0] = 1: must be a valid string"
    assert told('data.normalize.std=["a","b"]').startswith("--set: data.normalize.std[0]")


# Keys


def test_another_key_is_only_proposed_where_it_is_nearly_the_same() -> None:
    assert "method.floor" not in told("foo=1")
    assert told("training.learning_rte=1").startswith("--set: unknown key training.learning_rte")
    assert told("codeword=1").endswith("did you mean method.codewords?")


def test_a_pipe_is_no_configuration(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "own.toml")
    with pytest.raises(ConfigurationError, match="expected a TOML file or the name of a recipe"):
        load(str(tmp_path / "own.toml"))


def test_a_path_that_is_too_long_is_no_file() -> None:
    with pytest.raises(ConfigurationError, match="no such file"):
        load("x" * 5000)
