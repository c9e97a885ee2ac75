"""The contract of `caveat.testing`, which every method must satisfy. A new method needs a line in METHODS of
federations.py.

The checks of one run are made on every method. Those that compare it with other runs test mechanisms which methods
share (workers, resuming, workspaces, participation): `make test` makes them on the methods that differ in these, and
`make test-long` on all others.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from federations import METHODS, WRAPPED, Federation
from sampled import DIFFERENT, sampled

from caveat import methods
from caveat.core import Method
from caveat.testing import CHECKS, CheckedMethod
from caveat.testing.federation import chain

EVERY = METHODS + WRAPPED
MANIFEST = tomllib.loads((Path(__file__).parents[1] / "manifest.toml").read_text())
ONE_RUN = (
    "predictions_are_well_formed",
    "in_the_end_a_silo_can_ask_the_models_that_are_declared",
    "a_prediction_does_not_depend_on_the_inputs_beside_it",
    "a_prediction_needs_no_data_of_the_silo",
    "only_what_the_manifest_names_leaves_a_silo",
    "no_work_of_a_schedule_sees_the_test_split",
    "no_prediction_sees_a_label_of_the_test_split",
    "what_it_reports_has_names_of_its_own",
)
"""The checks that need no run but the uninterrupted one."""


def ids(every: Sequence[Method]) -> list[str]:
    """The names of a method's class and of the classes that wrap it; a second method of such names has options."""
    names = ["-".join(type(each).__name__ for each in chain(method)) for method in every]
    return [name + "-options" * names[:i].count(name) for i, name in enumerate(names)]


IDS = ids(EVERY)


def test_every_method_in_the_table_is_tested_here() -> None:
    assert {type(method) for method in METHODS} == set(methods.METHODS.values())


def test_the_names_of_checks_and_methods_are_known() -> None:
    assert set(ONE_RUN) < set(CHECKS)
    assert set(DIFFERENT) < {type(method).__name__ for method in EVERY}


def test_extension_of_codebooks_is_part_of_what_is_tested_here(tmp_path: Path) -> None:
    federation = Federation(next(m for m in METHODS if isinstance(m, methods.UEFL)), tmp_path)
    federation.run()
    assert sum(int(state["model"]["codebook.used"]) > 0 for state in federation.states().values()) >= 2


@pytest.fixture(scope="module")
def trial(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> CheckedMethod:
    """A method, of which all checks share the uninterrupted run, as in `check_method`."""
    return CheckedMethod(request.param, tmp_path_factory.mktemp("trial"), MANIFEST)


@pytest.mark.parametrize("trial", EVERY, ids=IDS, indirect=True)
def test_of_one_run(trial: CheckedMethod) -> None:
    for check in ONE_RUN:
        CHECKS[check](trial)


@pytest.mark.parametrize("trial", sampled(EVERY), ids=IDS, indirect=True)
@pytest.mark.parametrize("check", [name for name in CHECKS if name not in ONE_RUN])
def test_of_other_runs(trial: CheckedMethod, check: str) -> None:
    CHECKS[check](trial)


def test_another_seed_gives_another_model(tmp_path: Path) -> None:
    method = METHODS[1]
    one, other = Federation(method, tmp_path / "0"), Federation(method, tmp_path / "1")
    other.place.seed = 1
    assert not torch.equal(one.run()["model"]["head.1.weight"], other.run()["model"]["head.1.weight"])
