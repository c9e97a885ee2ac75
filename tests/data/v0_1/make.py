"""Made the folders beside it, with the version of README.md: later versions make other folders, and other imports.

Run it in a checkout of that version: `PYTHONPATH=src:tests python tests/data/v0_1/make.py`
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import conftest  # noqa: F401  Flower's settings, before it is imported
import numpy as np
import old_calls
from commands import caveat as command
from commands import sets
from hospitals import hospital
from old_calls import AUDIT, COMPARE, HERE, HOME, HOSPITALS, METHODS, MODELS, UEFL, figures, predictions

import caveat
from caveat.store import ServerStore

RUN = ["run", "tiny.toml", *sets(*UEFL)]
FOLDERS = ("finished", "interrupted", "call", "comparison", "audit", "federation")
DERIVED = ("report.html", "*.lock", "comparison.json", "tables.md", "runs.csv", "data-*.safetensors")
"""What is written anew whenever it is asked for, and copies of tables, which a silo only uses where they were made."""


def asked(*arguments: str) -> str:
    """Call the command line as a shell would."""
    sys.argv = ["caveat", *arguments]
    result = command(*arguments)
    assert result.exit_code == 0, (arguments, result.stderr)
    return result.stdout


def killed(act: Callable[[], object], number: int, where: str = "") -> None:
    """Kill what an act starts, in a folder if one is named, just before a round's checkpoint is there."""
    if (child := os.fork()) == 0:
        os.setsid()
        save = ServerStore.save

        def save_or_die(self: ServerStore, t: int, server: Any, books: Any) -> None:
            if books["number"] == number and where in str(self.root):
                os.killpg(0, signal.SIGKILL)
            save(self, t, server, books)

        ServerStore.save = save_or_die  # type: ignore[method-assign]
        act()
        os._exit(1)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status), "it was not killed"


def both(name: str, killed_at: Callable[[], None], again: Callable[[], object]) -> Path:
    """What was killed stays in its folder, as it was; return a folder with the same, not interrupted.

    Continued, it has to come to the same.
    """
    killed_at()
    shutil.copytree(name, f"{name}.killed")
    again()
    os.rename(name, f"{name}.continued")
    again()
    os.rename(name, f"{name}.whole")
    os.rename(f"{name}.killed", name)
    for path in Path(f"{name}.whole").rglob("summary.json"):
        other = Path(f"{name}.continued") / path.relative_to(f"{name}.whole")
        assert figures(path.parent) == figures(other.parent), path
    shutil.rmtree(f"{name}.continued")
    return Path(f"{name}.whole")


def finished() -> dict[str, Any]:
    asked("run", "tiny.toml", "--out", "finished", "--quiet")
    images = np.random.default_rng(0).integers(0, 256, (5, 8, 8, 1), dtype=np.uint8)
    np.savez_compressed("inputs.npz", x=images)
    run = caveat.load("finished")
    return {
        "figures": figures(Path("finished")), "predict": asked("predict", "finished", "inputs.npz", "--silo", "silo-1"),
        "predictions": {silo.name: predictions(run, silo.name) for silo in run.silos},
    }  # fmt: skip


def interrupted() -> dict[str, Any]:
    def again() -> None:
        begun = Path("interrupted").exists()
        asked(*(["resume", "interrupted"] if begun else [*RUN, "--out", "interrupted"]), "--quiet")

    whole = both("interrupted", lambda: killed(again, 3), again)
    return {"figures": figures(whole)}


def called() -> dict[str, Any]:
    out = Path("call")
    whole = both("call", lambda: killed(lambda: old_calls.call(out), 3), lambda: old_calls.call(out))
    return {"figures": figures(whole)}


def compared() -> dict[str, Any]:
    draw = np.random.default_rng(0)
    y = np.arange(120) % 3
    np.savez_compressed("table.npz", x=draw.integers(-8, 9, (120, 4)) / 4 + y[:, None], y=y)
    whole = both("comparison", lambda: killed(lambda: asked(*COMPARE), 3, "slow"), lambda: asked(*COMPARE))
    return {"figures": {name: figures(whole / "runs" / "hidden=8" / name / "seed-0") for name in ("fedavg", "slow")}}


def audited() -> dict[str, Any]:
    whole = both("audit", lambda: killed(lambda: asked(*AUDIT), 2, "share-1-seed-0"), lambda: asked(*AUDIT))
    return {"runs": json.loads((whole / "audit.json").read_text())["runs"]}


def federated() -> dict[str, Any]:
    home = Path("federation").absolute()
    for seed, name in enumerate(HOSPITALS):
        hospital(home / "silos", name, seed, rows=50)
    asked("flower", "init", "federation/project", "federation.toml")
    os.environ["FEDERATION"] = f"{HOME}/project"
    for path in (home / "project").iterdir():
        if path.name not in ("config.toml", "pyproject.toml", "federation"):
            path.unlink()

    def again() -> None:
        if not home.exists():  # the hospitals as they were
            shutil.copytree("federation.killed", home)
            shutil.rmtree(home / "run")
            for name in HOSPITALS:
                shutil.rmtree(home / "silos" / name / "state")
        old_calls.federate(home)

    whole = both("federation", lambda: killed(again, 3), again)
    found = {"figures": figures(whole / "run")}
    found["predictions"] = {  # at home, where the paths in their files lead
        name: predictions(caveat.load(old_calls.kept(home, name)), name) for name in HOSPITALS
    }
    for path in home.rglob("*.json"):
        path.write_text(path.read_text().replace(str(home), HOME))
    return found


def main() -> None:
    os.chdir(HERE)
    for name in FOLDERS:
        for path in Path().glob(f"{name}*/"):
            shutil.rmtree(path)
    made = (finished, interrupted, called, compared, audited, federated)
    expected = {make.__name__: make() for make in made}
    for pattern in DERIVED:
        for path in [*Path().rglob(pattern), *Path().rglob(f".{pattern}")]:
            path.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as out:
        place = Path(out)
        calls = {name: old_calls.described(name, place / name) for name in METHODS}
        tensors = {name: old_calls.tensors_of_method(name, place / f"{name}.run") for name in METHODS}
        tensors |= {name: old_calls.tensors_of_model(name, place / f"{name}.model") for name in MODELS}
    for name, value in (("expected", expected), ("calls", calls), ("tensors", tensors)):
        lines = (f"{json.dumps(key)}: {json.dumps(each)}" for key, each in value.items())
        Path(f"{name}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
    for path in Path().glob("*.whole"):
        shutil.rmtree(path)
    print(shlex.join([str(path) for path in sorted(Path().iterdir())]))


if __name__ == "__main__":
    main()
