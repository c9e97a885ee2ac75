"""Folders that act as machines: each has a copy of the project, and the processes that its scripts start."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

EXPECTED = {
    "code": "expected one of data.classes (",
    "labels": "labels must be in data.classes",
    "target": "the column to predict must be the one that the silo names",
    "dictionary": "the data dictionary must be the same as the silo's own copy",
    "impostor": "sent a greeting with key ",
    "stranger": "exited with status ",
    "relabeled": " with another label",
    "bounded": "its update was ",
    "set aside": " is set aside",
}
"""Parts of what servers and silos log."""
GRACE = 30.0
"""Seconds for processes to exit when asked to."""


class Failed(Exception):
    """A step that did not go as it should."""


def wait_for(what: str, seconds: float, found: Callable[[], bool], pause: float = 1.0) -> None:
    """Raises Failed unless it is so within the time."""
    end = time.monotonic() + seconds
    while not found():
        if time.monotonic() > end:
            raise Failed(f"{what}: not within {seconds:.0f} s")
        time.sleep(pause)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def processes(home: Path) -> list[int]:
    """Processes of Flower whose FLWR_HOME is the folder or below it; what has ended and was not waited for is none."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            variables = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        homes = [os.fsdecode(variable[10:]) for variable in variables if variable.startswith(b"FLWR_HOME=")]
        if homes and Path(homes[0]).is_relative_to(home):
            found.append(int(entry.name))
    return found


def open_to_others(folder: Path) -> list[Path]:
    """Files at any depth that others than their owner could read, were the way to the folder open to them."""
    mode = folder.stat().st_mode if folder.exists() else 0
    if not stat.S_ISDIR(mode):
        return [folder] if mode & 0o044 else []
    return [path for entry in folder.iterdir() for path in open_to_others(entry)] if mode & 0o011 else []


def kill(pids: list[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


@dataclass
class Machine:
    """A folder with a copy of the project, and what was started in it."""

    folder: Path
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    """Of its environment, beside or in place of this process's."""

    @property
    def home(self) -> Path:
        """Flower's folder, by which its processes are known."""
        return self.folder / ".flower"

    @property
    def environment(self) -> Mapping[str, str]:
        """Without what the project's environment.sh sets, so that only what a script starts counts as Flower's."""
        return {name: value for name, value in os.environ.items() if name != "FLWR_HOME"} | dict(self.variables)

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def call(self, *command: str) -> str:
        """Run a command in the project to its end, and return what it prints. Raises Failed unless it ends well."""
        done = subprocess.run(command, cwd=self.folder, env=self.environment, capture_output=True, text=True)
        if done.returncode:
            raise Failed(f"{' '.join(command)}: status {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def start(self, name: str, *command: str) -> None:
        """Start a script of the project in a session of its own."""
        with self.log(name).open("ab") as log:
            self.running[name] = subprocess.Popen(
                command, cwd=self.folder, env=self.environment, stdout=log, stderr=log, start_new_session=True
            )

    def ended(self, name: str) -> int | None:
        """How it ended; None while it runs."""
        return self.running[name].poll()

    def flwr(self, *arguments: str) -> dict[str, Any]:
        """Flower's answer to a command about this server."""
        script = '. ./environment.sh; exec flwr "$@" --format json'
        command = ["bash", "-c", script, "flwr", *arguments]
        done = subprocess.run(command, cwd=self.folder, env=self.environment, capture_output=True, text=True)
        start = done.stdout.find("{")
        if done.returncode or start < 0:
            raise Failed(f"flwr {' '.join(arguments)}: status {done.returncode}\n{done.stdout}{done.stderr}")
        answer: dict[str, Any] = json.loads(done.stdout[start:])
        return answer

    def said(self, run: str) -> str:
        """What the server's app has said in a run so far."""
        script = '. ./environment.sh; exec flwr log "$1" deploy --show'
        command = ["bash", "-c", script, "flwr", run]
        return subprocess.run(command, cwd=self.folder, env=self.environment, capture_output=True, text=True).stdout

    def stop(self, name: str) -> None:
        """Ask it to end."""
        process = self.running.pop(name)
        process.terminate()
        try:
            process.wait(GRACE)
        except subprocess.TimeoutExpired:
            raise Failed(f"{self.folder.name}: {name} did not end within {GRACE:.0f} s") from None

    def destroy(self) -> None:
        """End whatever is left, without asking."""
        for process in self.running.values():
            for pid in (process.pid, *_session(process.pid)):
                kill([pid])
            process.wait()
        self.running.clear()
        kill(processes(self.folder))


def _session(leader: int) -> Iterator[int]:
    """The processes of a session."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == leader:
            yield int(entry.name)


def copy_of(project: Path, folder: Path) -> Machine:
    """Another machine: it gets the project and the authority's certificate, and no key."""
    shutil.copytree(
        project, folder, ignore=lambda path, names: {"certificates", "keys", ".flower", "runs"} & set(names)
    )
    (folder / "certificates").mkdir()
    shutil.copy(project / "certificates" / "ca.crt", folder / "certificates")
    return Machine(folder)
