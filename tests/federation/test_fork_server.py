"""The resident process of a silo: every message gets a process of its own from it, or Flower's command without it."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from caveat.federation.silo import forward_message

RESIDENT = """
import os, sys, time
sys.path.insert(0, {modules!r})
import imported_once
from caveat.federation.silo import fork_server as resident

def command():
    imported_once.messages += 1
    words = [os.getpid(), os.getppid(), imported_once.messages, os.getcwd(), os.environ.get("SAID"), *sys.argv]
    print(*words, sep="|", flush=True)
    if sys.argv[-1] == "wait":
        time.sleep(60)
    sys.exit(int(sys.argv[1]))

def imported():
    time.sleep({seconds})
    return command

resident.imported = imported
resident.LOOK = 0.05
resident.main()
"""
"""A resident process that imports a module of the test's and nothing that takes long."""


class Silo:
    """A silo's folder, its node, and its resident process."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.modules = folder / "flower", folder / "modules"
        self.folder.mkdir(mode=0o700)
        self.modules.mkdir()
        (self.modules / "imported_once.py").write_text("messages = 0\n")
        self.command = folder / "command"
        self.command.write_text('#!/bin/sh\necho "command $@"\nexit 7\n')
        self.command.chmod(0o755)
        self.node = subprocess.Popen(["sleep", "600"])
        self.residents = list[subprocess.Popen[bytes]]()

    def start(self, seconds: float = 0.0) -> subprocess.Popen[bytes]:
        code = RESIDENT.format(modules=str(self.modules), seconds=seconds)
        process = subprocess.Popen([sys.executable, "-P", "-c", code, str(self.folder), str(self.node.pid)])
        self.residents.append(process)
        return process

    def started(self) -> subprocess.Popen[bytes]:
        """One that takes messages."""
        process = self.start()
        self.wait_for(self.folder / forward_message.SOCKET)
        return process

    def wait_for(self, path: Path) -> None:
        until = time.monotonic() + 90
        while not path.exists():
            assert time.monotonic() < until, f"no {path.name}"
            time.sleep(0.02)

    def message(self, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        """What Flower starts for a message."""
        line = [sys.executable, "-IS", forward_message.__file__, str(self.folder), str(self.command), *arguments]
        return subprocess.Popen(
            line, cwd=self.modules, env=os.environ | variables, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def carried_out(self, *arguments: str, **variables: str) -> tuple[int, str, str]:
        process = self.message(*arguments, **variables)
        out, err = process.communicate(timeout=60)
        return process.returncode, out.strip(), err

    def end(self) -> None:
        for process in [*self.residents, self.node]:
            process.kill()
            process.wait()


@pytest.fixture
def silo(tmp_path: Path) -> Iterator[Silo]:
    silo = Silo(tmp_path)
    yield silo
    silo.end()


def test_every_message_gets_a_process_of_its_own_that_knows_nothing_of_the_others(silo: Silo) -> None:
    resident, found = silo.started(), []
    for status in ("0", "3"):
        ended, said, err = silo.carried_out(status, "a b", SAID="hello")
        assert (ended, err) == (int(status), "")
        process, parent, *rest = said.split("|")
        assert int(parent) == resident.pid
        assert rest == ["1", str(silo.modules), "hello", "flwr-clientapp", status, "a b"]
        found.append(process)
    assert len({*found, str(resident.pid)}) == 3


def test_only_its_user_reaches_it_and_there_is_one(silo: Silo) -> None:
    silo.started()
    assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in silo.folder.iterdir()} == {
        forward_message.SOCKET: 0o600, forward_message.LOCK: 0o600,
    }  # fmt: skip
    assert silo.start().wait(30) == 0, "a second one that does not end"
    assert silo.carried_out("0")[0] == 0


def test_without_one_flower_s_own_command_carries_the_message_out(silo: Silo) -> None:
    assert silo.carried_out("0", "x") == (
        7, "command 0 x",
        "no daemon processes this message, so it takes longer: no daemon is running (No such file or directory)\n",
    )  # fmt: skip
    silo.started().kill()
    silo.residents[0].wait()
    ended, said, err = silo.carried_out("0", "x")
    assert (ended, said) == (7, "command 0 x")
    assert "no daemon is running (Connection refused)" in err
    silo.start(seconds=0.5)
    silo.wait_for(silo.folder / forward_message.LOCK)
    until = time.monotonic() + 90
    while silo.carried_out("0", "x")[0]:  # once it holds its lock, it is waited for
        assert time.monotonic() < until, "nobody takes a message"


def test_one_that_is_starting_is_waited_for(silo: Silo) -> None:
    silo.start(seconds=1.0)
    until = time.monotonic() + 90
    while not (silo.folder / forward_message.LOCK).exists() or not _starting(silo.folder):
        assert time.monotonic() < until
    assert silo.carried_out("0")[0::2] == (0, "")


def _starting(folder: Path) -> bool:
    with forward_message.inside(str(folder)):
        return forward_message.is_starting()


def test_one_that_hangs_is_ended_and_the_message_is_not_carried_out_twice(
    silo: Silo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forward_message, "PATIENCE", 0.2)
    resident = silo.started()
    resident.send_signal(signal.SIGSTOP)
    with (
        forward_message.connected(str(silo.folder)) as connection,
        pytest.raises(forward_message.NotTaken, match="did not answer for 0 s, and was killed"),
    ):
        forward_message.hand_over(connection, ["0"])
    assert resident.wait(10) == -signal.SIGKILL


def test_one_whose_code_has_changed_ends_and_does_not_take_the_message(silo: Silo) -> None:
    resident = silo.started()
    (silo.modules / "imported_once.py").write_text("messages = 100\n")
    ended, said, err = silo.carried_out("0")
    assert (ended, said) == (7, "command 0")
    assert "imported_once.py has changed since it was imported" in err
    assert resident.wait(10) == 0
    silo.started()
    assert silo.carried_out("0")[1].split("|")[2] == "101"


def test_other_settings_of_what_is_imported_are_for_another_process(silo: Silo) -> None:
    silo.started()
    ended, said, err = silo.carried_out("0", OMP_NUM_THREADS="17")
    assert (ended, said) == (7, "command 0")
    assert "it was started with another OMP_NUM_THREADS" in err
    assert silo.carried_out("0")[0] == 0


def test_it_ends_with_its_node(silo: Silo) -> None:
    resident = silo.started()
    silo.node.kill()
    silo.node.wait()
    assert resident.wait(10) == 0


def test_a_message_whose_process_is_killed_ends_badly_and_the_next_one_does_not(silo: Silo) -> None:
    silo.started()
    waiting = silo.message("0", "wait")
    assert waiting.stdout is not None
    os.kill(int(waiting.stdout.readline().split("|")[0]), signal.SIGKILL)
    waiting.communicate(timeout=10)
    assert waiting.returncode == 1
    assert silo.carried_out("0")[0] == 0


def test_whoever_talks_nonsense_is_left_and_others_are_answered(silo: Silo) -> None:
    silo.started()
    for said in (b"", b"\0\0\0", b"\xff\xff\xff\xff", b"\0\0\0\2[]", b"GET / HTTP/1.1\r\n\r\n"):
        with forward_message.inside(str(silo.folder)), socket.socket(socket.AF_UNIX) as stranger:
            stranger.connect(forward_message.SOCKET)
            socket.send_fds(stranger, [said], [0] if said else [])
    assert silo.carried_out("0")[0] == 0


def test_nothing_is_carried_out_for_somebody_who_is_gone(silo: Silo) -> None:
    resident, marked = silo.started(), silo.folder / "said"
    request = {"arguments": ["0"], "folder": str(silo.folder), "environment": dict(os.environ)}
    resident.send_signal(signal.SIGSTOP)
    with marked.open("w") as out:
        for _ in range(5):
            with forward_message.connected(str(silo.folder)) as connection:
                said = json.dumps(request).encode()
                files = [out.fileno()] * 3
                socket.send_fds(connection, [forward_message.LENGTH.pack(len(said)) + said], files)
    resident.send_signal(signal.SIGCONT)
    assert silo.carried_out("0")[0] == 0
    until = time.monotonic() + 90
    while Path(f"/proc/{resident.pid}/task/{resident.pid}/children").read_text():
        assert time.monotonic() < until, "copies go on"
    assert marked.read_text() == ""


def test_the_door_starts_without_anything_that_takes_long() -> None:
    """Every message starts it: what it imports is all of what a message waits for before the resident process."""
    code = f"import sys; sys.argv = ['', '/nowhere', '/bin/true']; exec(open({forward_message.__file__!r}).read())"
    shown = f"{sys.executable} -IS -X importtime -c {shlex.quote(code)}"
    said = subprocess.run(["bash", "-c", shown], capture_output=True, text=True).stderr
    names = {line.rpartition("|")[2].strip() for line in said.splitlines() if line.startswith("import time:")}
    assert {"socket", "json"} <= names
    assert not {name for name in names if name.split(".")[0] in ("torch", "numpy", "flwr", "caveat", "site")}
