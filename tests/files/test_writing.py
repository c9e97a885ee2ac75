"""One holder at a time, in one process or several, and lock files where they have always been."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from threading import Thread

import pytest
from hospitals import NAMES, Federation

from caveat.core import RunError
from caveat.engines.flower_messages import Order
from caveat.federation.request_terms import Terms
from caveat.federation.server import log
from caveat.federation.silo import member
from caveat.federation.silo.silo_file import read_silo_file
from caveat.files import held, locked, nothing_begun

HOLD = """
import sys
from pathlib import Path
from caveat.files.locks import held
with held(Path(sys.argv[1]), "busy"):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "lock"


def holder(lock: Path) -> subprocess.Popen[str]:
    """Another process, which holds a lock until its input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_nobody_else_gets_what_is_held(lock: Path) -> None:
    with held(lock, "busy"), pytest.raises(RunError, match=r"^taken$"), held(lock, "taken"):
        pytest.fail("held twice")
    with holder(lock) as process:
        with pytest.raises(RunError, match=r"^taken$"), held(lock, "taken"):
            pytest.fail("held twice")
        process.communicate()
    with held(lock, "busy"):
        assert lock.exists()


def test_a_lock_is_free_again_after_an_error(lock: Path) -> None:
    with pytest.raises(ValueError, match="work"), held(lock, "busy"):
        raise ValueError("work")
    with held(lock, "busy"):
        pass


@pytest.mark.parametrize("where", ["this process", "another process"])
def test_who_waits_gets_a_lock_when_it_is_let_go(lock: Path, where: str) -> None:
    order = []

    def wait() -> None:
        with held(lock, "busy", 30):
            order.append("second")

    waiting = Thread(target=wait)
    if where == "this process":
        with held(lock, "busy"):
            waiting.start()
            time.sleep(0.3)
            order.append("first")
    else:
        with holder(lock) as process:
            waiting.start()
            time.sleep(0.3)
            order.append("first")
            process.communicate()
    waiting.join(30)
    assert order == ["first", "second"]


def test_a_forked_process_that_is_still_there_does_not_hold_what_its_parent_held(lock: Path) -> None:
    with held(lock, "busy"):
        end, go = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(go)
            os.read(end, 1)
            os._exit(0)
    with held(lock, "busy"):
        os.close(go)
    os.waitpid(child, 0)


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Federation:
    found = Federation(tmp_path_factory.mktemp("federation"), "fedavg", rounds=1)
    found.serve()
    return found


def test_the_files_are_those_of_version_0_1(tmp_path: Path, federation: Federation) -> None:
    with locked(tmp_path / "run" / "state"):
        assert (tmp_path / "run" / "state" / "lock").exists()
    assert log.lock_of(tmp_path / "run") == tmp_path / ".run.lock"
    assert (federation.folder / ".run.lock").exists()
    assert all((federation.kept(name) / "lock").exists() for name in NAMES)


def test_a_silo_whose_folder_is_held_says_so(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member, "BUSY", 0.0)
    folder = federation.kept("coast")
    terms = Terms.of_text(json.loads((folder / "silo.json").read_text())["terms"])
    silo = member.SiloSide(read_silo_file(federation.homes["coast"] / "silo.toml"))
    with held(folder / "lock", ""), pytest.raises(RunError, match="another process has been using it for 0 s"):
        silo.perform(terms, Order(0, "test", 0, "coast"), {})


def test_what_a_process_leaves_that_was_killed_before_it_began_is_no_run(tmp_path: Path) -> None:
    (tmp_path / ".config.toml.7.part").write_text("[da")
    (tmp_path / "state").mkdir()
    assert nothing_begun(tmp_path)
    (tmp_path / "state" / "lock").touch()
    assert nothing_begun(tmp_path)
    (tmp_path / "photos").mkdir()
    assert not nothing_begun(tmp_path)
