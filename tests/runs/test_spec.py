"""One specification of a run: the same value from a file, a call in Python, and what a federation sends."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

import caveat
from caveat.config import Config, load
from caveat.core import ConfigurationError
from caveat.data.silo_collection import Silos
from caveat.federation.request_terms import Terms
from caveat.files import write_record
from caveat.files.schema import SCHEMA, RunFile
from caveat.runs import call_arguments
from caveat.runs.spec import RunSpec, spec_of
from caveat.runs.spec_file import deciding, described, differences, engine_in, run_file, spec_in

SETS = [
    "method.name=apfl", "rounds=3", "seed=4", "training.lr=0.02", "model.name=mlp", "model.hidden=8",
    "federation.participation=0.5", "federation.min_silos=2", 'federation.newcomers=["silo-2"]', "evaluation.every=2",
    "evaluation.n_silos=1", "uncertainty.policy=switch", "uncertainty.mc_samples=7", "privacy.clip_norm=0.5",
    "baselines=[]",
]  # fmt: skip


@pytest.fixture
def config() -> Config:
    return load("digits", SETS)


@pytest.fixture(scope="module")
def silos() -> Silos:
    draw = np.random.default_rng(0)
    return caveat.data.from_arrays({f"silo-{k}": (draw.normal(size=(60, 4)), np.arange(60) % 3) for k in range(3)})


def called(silos: Silos, config: Config) -> RunSpec:
    """What a call in Python says that means the same."""
    method = caveat.APFL(**config.method.parameters)
    arguments = {
        "rounds": 3, "seed": 4, "training": config.training, "model": config.model, "participation": 0.5,
        "min_silos": 2, "newcomers": ["silo-2"], "every": 2, "n_silos": 1, "splits": config.evaluation.splits,
        "uncertainty": config.uncertainty, "privacy": config.privacy,
    }  # fmt: skip
    return call_arguments.spec_of_call(silos, method, arguments, call_arguments.RunArguments)


def test_a_file_and_a_call_specify_the_same(silos: Silos, config: Config) -> None:
    """But for where the data come from."""
    in_python, configured = called(silos, config), spec_of(config)
    assert configured.data == config.data
    assert in_python == dataclasses.replace(configured, data=None)
    was, now = described(configured), described(in_python)
    assert [each.key for each in differences(was, now)] == ["data"]


def test_a_description_is_read_as_what_was_described(tmp_path: Path, config: Config) -> None:
    beside = load("digits", [*SETS[:-1], 'baselines=["fedbn", "local"]'])
    for each in (config, beside):
        record = RunFile(schema=SCHEMA, spec=described(spec_of(each)), engine=vars(each.engine))
        write_record(tmp_path / "run.json", record)
        found = run_file(tmp_path)
        assert spec_in(tmp_path, found) == spec_of(each)
        assert engine_in(found) == each.engine


@pytest.mark.parametrize(
    ("sets", "key"),
    [
        (["training.lr=0.5"], "training.lr"), (["rounds=7"], "rounds"), (["method.alpha=0.3"], "method.alpha"),
        (["federation.min_silos=1"], "federation.min_silos"), (["data.n_silos=5"], "data.n_silos"),
        (["method.name=fedbn"], "method.name"), (['baselines=["local"]'], "baselines.local"),
    ],
)  # fmt: skip
def test_a_difference_is_named_by_the_key_of_a_configuration(config: Config, sets: list[str], key: str) -> None:
    found = list(differences(described(spec_of(config)), described(spec_of(load("digits", [*SETS, *sets])))))
    assert found[0].key == key


def test_where_the_data_are_makes_no_difference(config: Config) -> None:
    was = described(spec_of(config))
    now = {**was, "data": {**was["data"], "source": "npz:elsewhere.npz"}}
    assert deciding(was) == deciding(now)
    assert [each.key for each in differences(was, now)] == ["data.source"]


def test_a_federation_carries_it_whole(config: Config) -> None:
    terms = Terms.of_text(Terms("f", config, "apfl", "", ()).to_text())
    assert spec_of(terms.config, terms.method) == spec_of(config)


def test_what_a_run_is_made_of_is_built_once(silos: Silos, config: Config) -> None:
    spec = spec_of(load("digits", [*SETS, "method.name=fedavg"]))
    assert spec.complete_method(3) is spec.complete_method(3)
    assert spec.complete_method(3) is not spec.complete_method(
        100
    )  # the noise of each silo depends on how many are asked


def test_settings_that_cannot_go_together_are_refused_at_once() -> None:
    personal = (caveat.PersonalModel(name="mlp"),)
    with pytest.raises(ConfigurationError, match="personal is not used by this method"):
        RunSpec(method=caveat.FedAvg(), model=caveat.ModelSettings(name="mlp"), personal=personal)
