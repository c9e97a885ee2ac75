"""What every method must satisfy: `caveat.testing`. A new method is tested by a line in METHODS in federations.py."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
import torch
from federations import METHODS, WRAPPED, Federation

from caveat import methods
from caveat.testing import CHECKS, CheckedMethod

EVERY = METHODS + WRAPPED
names = [type(method).__name__ for method in EVERY]
IDS = [name + "-options" * names[:i].count(name) for i, name in enumerate(names)]
MANIFEST = tomllib.loads((Path(__file__).parents[1] / "manifest.toml").read_text())


def test_every_method_in_the_table_is_tested_here() -> None:
    assert {type(method) for method in METHODS} == set(methods.METHODS.values())


def test_extension_of_codebooks_is_part_of_what_is_tested_here(tmp_path: Path) -> None:
    federation = Federation(next(m for m in METHODS if isinstance(m, methods.UEFL)), tmp_path)
    federation.run()
    assert sum(int(state["model"]["codebook.used"]) > 0 for state in federation.states().values()) >= 2


@pytest.fixture(scope="module", params=EVERY, ids=IDS)
def trial(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> CheckedMethod:
    """A method, of which all checks share the uninterrupted run, as in `check_method`."""
    return CheckedMethod(request.param, tmp_path_factory.mktemp("trial"), MANIFEST)


@pytest.mark.parametrize("check", CHECKS)
def test_of_every_method(trial: CheckedMethod, check: str) -> None:
    CHECKS[check](trial)


def test_another_seed_gives_another_model(tmp_path: Path) -> None:
    method = METHODS[1]
    one, other = Federation(method, tmp_path / "0"), Federation(method, tmp_path / "1")
    other.place.seed = 1
    assert not torch.equal(one.run()["model"]["head.1.weight"], other.run()["model"]["head.1.weight"])
