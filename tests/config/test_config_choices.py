"""What a configuration carries over when it names another method, and what it refuses because nothing reads it."""

from __future__ import annotations

from pathlib import Path

import pytest

from caveat.config import dump, load
from caveat.core import ConfigurationError
from caveat.data.settings import Partition

PERSONAL = 'personal=[{name = "mlp"}]'


@pytest.mark.parametrize("method", ["scaffold", "feddc", "fedavg"])
def test_a_method_takes_the_learning_rate_of_a_file_whose_optimiser_it_can_use(method: str) -> None:
    """Or the methods of one table would be trained with different rates unnoticed."""
    training = load("trfeddis-digits", [f"method.name={method}"]).training
    assert (training.optimizer, training.lr) == ("sgd", 0.01)


def test_a_method_brings_its_rate_with_its_optimiser() -> None:
    training = load("digits", ["method.name=scaffold"]).training
    assert (training.optimizer, training.lr) == ("sgd", 0.05)
    beside = load("digits", ['baselines=["scaffold"]']).build_method("scaffold").training  # type: ignore[attr-defined]
    assert (beside.optimizer, beside.lr) == ("sgd", 0.05)


def test_a_method_beside_takes_the_learning_rate_too() -> None:
    config = load("trfeddis-digits", ['baselines=["scaffold"]'])
    assert config.build_method("scaffold").training.lr == 0.01  # type: ignore[attr-defined]


# Models of the silos' own


def test_models_for_silos_of_a_method_without_any_are_an_error() -> None:
    with pytest.raises(ConfigurationError, match=r"personal is not used by .* it belongs to fedproto, fml, fmlu"):
        load(None, ["method.name=fedavg", PERSONAL])


def test_they_go_with_the_method_that_they_were_for(tmp_path: Path) -> None:
    file = tmp_path / "f.toml"
    file.write_text('[method]\nname = "fmlu"\n\n[[personal]]\nname = "mlp"\nsilos = ["silo-1"]\n')
    assert load(str(file)).personal[0].silos == ("silo-1",)
    assert load(str(file), ["method.name=fedavg"]).personal == ()
    assert load(str(file), ["method.name=fml"]).personal == load(str(file)).personal


def test_a_method_beside_may_be_the_one_that_has_them() -> None:
    assert load(None, ["method.name=fedavg", 'baselines=["fml"]', PERSONAL]).personal[0].name == "mlp"


def test_they_are_written_and_read_back(tmp_path: Path) -> None:
    config = load("fmlu-mnist", ['personal=[{name = "mlp", width = 8, silos = ["silo-01"]}, {name = "lenet5"}]'])
    (tmp_path / "f.toml").write_text(dump(config))
    assert load(str(tmp_path / "f.toml")) == config


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ('{name = "mlp", widht = 4}', r"unknown key personal\[0\].widht; did you mean personal.width\?"),
        ('{name = "lenet5", width = 4}', r"personal\[0\].width = 4 has no effect for model 'lenet5'"),
        ('{name = "mlp", width = -1}', r"personal\[0\].width = -1: must be greater than 0"),
    ],
)
def test_what_is_wrong_with_one_is_said_of_it(model: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        load("fmlu-mnist", [f"personal=[{model}]"])


# Keys that nothing reads


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (["method.name=fmlu", "method.alpha=0.2"], "alpha = 0.2 .* no effect with method.weigh_loss = true"),
        (["method.name=fmlu", "method.weigh_loss=false", "method.scaled=true"], "scaled = true has no effect"),
        (
            ["method.name=fmlu", "method.weigh_loss=false", "method.weigh_mean=false", "method.shuffled=true"],
            "shuffled = true has no effect",
        ),
        (["data.label_noise=[1.5]"], r"label_noise\[0\] = 1.5: must be at most 1"),
        (["data.label_noise=[-0.1]"], r"label_noise\[0\] = -0.1: must be"),
        (["data.label_noise=0.4"], "label_noise = 0.4: must be"),
        (["data.label_noise=[nan]"], "label_noise.* = nan"),
        (["data.source=on_site", "data.label_noise=[0.4]"], "label_noise = .* needs the data of all silos"),
        (["data.partition.scheme=iid", "data.partition.minimum=20"], "minimum = 20 is not used by partition 'iid'"),
        (
            ["data.partition.scheme=dirichlet", "data.partition.minimum=99", "data.samples_per_silo=50"],
            "minimum = 99, expected at most data.samples_per_silo = 50",
        ),
    ],
)
def test_a_key_without_meaning_is_refused(sets: list[str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        load("fmlu-mnist", sets)


def test_another_partition_leaves_a_recipes_alpha_behind_and_no_wrong_labels(tmp_path: Path) -> None:
    file = tmp_path / "noisy.toml"
    labels = 'scheme = "dirichlet"\nalpha = 0.1'
    file.write_text(
        f'[method]\nname = "fedavg"\n\n[data]\nn_silos = 4\nlabel_noise = [0, 0.4]\n\n[data.partition]\n{labels}\n'
    )
    found = load(str(file), ["data.partition.scheme=iid"])
    assert found.data.partition == Partition()
    assert found.data.label_noise == (0, 0.4)
    (tmp_path / "written.toml").write_text(dump(found))
    assert load(str(tmp_path / "written.toml")) == found
