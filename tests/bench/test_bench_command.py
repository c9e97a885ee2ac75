"""`caveat bench` from end to end: killed and continued, planned, and with an outsider's method."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import caveat, one_error
from own_methods import forget_own

SETTINGS = """
rows = ["fedavg"]
lite = ["fedavg"]
reference = "fedavg/dropout"
alone = "local/one"
seeds = [0]
lite_seeds = [0]
ensemble_size = 2
tests = 1
settings.fedavg.fewer_rounds = 13
settings.local.fewer_rounds = 13
settings.pooled.fewer_rounds = 13
"""
METHOD = '''
from typing import Annotated

import caveat
from pydantic import Field


@caveat.register
@caveat.frozen_settings
class Near(caveat.FedAvg):
    """FedAvg with a term that keeps silos near the global model."""

    mu: Annotated[float, Field(ge=0)] = 0.1
    """Weight of the term."""

    def objective(self, module, down):
        loss = super().objective(module, down)

        def near(x, y):
            gaps = sum((each - down["model"][name]).square().sum() for name, each in module.named_parameters())
            return loss(x, y) + self.mu / 2 * gaps

        return near
'''
NEAR = "settings.near.fewer_rounds = 13\n"
MANIFEST = '[Near]\nmodel = ["*"]\n'


@pytest.fixture(autouse=True)
def _own_methods() -> Iterator[None]:
    forget_own()
    yield
    forget_own()


def asked(folder: Path, *more: Any, own: str = "") -> tuple[Any, ...]:
    path = folder / "tiny.toml"
    path.write_text(SETTINGS + own)
    return ("bench", "--federations", "lite-cancer", "--settings", path, "--workers", "1", "--quiet", *more)


def content(folder: Path) -> dict[str, Any]:
    """The cells without seconds, and the checksum that covers them."""
    found: dict[str, Any] = {}
    for path in sorted((folder / "cells").iterdir()):
        if path.suffix == ".json":
            found[path.name] = {k: v for k, v in json.loads(path.read_text()).items() if k not in ("seconds", "sha256")}
        elif path.suffix == ".npz":
            found[path.name] = path.read_bytes()
    return found


@pytest.mark.parametrize(
    ("own", "told"),
    [(NEAR.replace("near", "fedavgg"), "[settings.fedavgg]: no such method; did you mean fedavg?"),
     ("settings.fedavg.federations.lite-cancr = {}", "no such federation 'lite-cancr'; did you mean lite-cancer?")],
)  # fmt: skip
def test_a_block_of_settings_that_nothing_uses_is_named(own: str, told: str, tmp_path: Path) -> None:
    assert told in one_error(caveat(*asked(tmp_path, "--out", tmp_path / "out", own=own)), 2)
    assert not (tmp_path / "out").exists()


@pytest.mark.long
def test_a_board_that_was_killed_continues_to_the_same_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = caveat(*asked(tmp_path, "--out", tmp_path / "whole"))
    assert whole.exit_code == 0, whole.stderr
    names = {f"lite-cancer.{method}.0" for method in ("majority", "local", "pooled", "fedavg")}
    assert set(content(tmp_path / "whole")) == {f"{name}.{end}" for name in names for end in ("json", "npz")}
    assert {"untempered", "one", "dropout", "laplace", "snapshots", "ensemble"} == set(
        content(tmp_path / "whole")["lite-cancer.fedavg.0.json"]["sources"]
    )

    from caveat.bench import running

    real, left = running.make_cell, [2]

    def killed(*given: Any) -> Any:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return real(*given)

    with monkeypatch.context() as patch:
        patch.setattr(running, "make_cell", killed)
        assert caveat(*asked(tmp_path, "--out", tmp_path / "again")).exit_code == 130
    cells = tmp_path / "again" / "cells"
    first = {path.name: path.read_bytes() for path in cells.glob("*.[jn]*")}
    assert len(first) == 4
    (cells / "lite-cancer.pooled.0.npz").write_bytes(b"half")  # written, but its record was not
    assert caveat(*asked(tmp_path, "--out", tmp_path / "again")).exit_code == 0
    assert content(tmp_path / "again") == content(tmp_path / "whole")
    assert {name: (cells / name).read_bytes() for name in first} == first
    boards = [(tmp_path / name / "board.md").read_text() for name in ("whole", "again")]
    rows = [re.findall(r"^\| (\S+) \|", board, re.MULTILINE) for board in boards]
    assert sorted(rows[0]) == sorted(rows[1])
    assert "fedavg/ensemble" in rows[0]


@pytest.mark.long
def test_an_outsiders_method_is_admitted_by_its_contract_and_stands_on_the_board(tmp_path: Path) -> None:
    (tmp_path / "near.py").write_text(METHOD)
    out = tmp_path / "out"
    options = asked(tmp_path, "--rows", "near", "--plugin", tmp_path / "near.py", "--out", out, own=NEAR)
    refused = one_error(caveat(*options), 2)
    assert "--rows near: the method cannot be a row" in refused
    assert "near.toml: no manifest, which lists all tensors" in refused
    assert not out.exists()
    (tmp_path / "near.toml").write_text(MANIFEST)
    done = caveat(*options)
    assert done.exit_code == 0, done.stderr
    assert "near/ensemble" in (out / "board.md").read_text()
    forget_own()
    (tmp_path / "near.py").write_text(METHOD.replace("self.mu / 2", "self.mu / 4"))
    before = content(out)
    error = one_error(caveat(*options), 2)
    assert "the classes of 'near' have changed" in error
    assert "cells/*.near.* to make them again" in error
    assert content(out) == before
    for path in (out / "cells").glob("*.near.*"):
        path.unlink()
    forget_own()
    assert caveat(*options).exit_code == 0
    assert content(out) != before


@pytest.mark.long
def test_a_plan_makes_a_cell_per_federation_and_estimates_the_others(tmp_path: Path) -> None:
    planned = caveat(*asked(tmp_path, "--plan", "--out", tmp_path / "out"))
    assert planned.exit_code == 0, planned.stderr
    assert re.search(r"lite-cancer +3 +\d+(\.\d)? s\n", planned.stdout), planned.stdout
    assert [path.name for path in (tmp_path / "out" / "cells").glob("*.json")] == ["lite-cancer.fedavg.0.json"]
