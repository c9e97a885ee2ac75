"""`admit.sh`: which key is let in under which name, as which node, and what is said where it is not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from silo_files import key_of

from caveat.core import CaveatError, ConfigurationError
from caveat.federation.keys import NameKeys, admit, admitted, fingerprint_in
from caveat.federation.project import write_project

FLWR = """#!/usr/bin/env python3
import json, sys
from pathlib import Path
place = Path(__file__).with_name("nodes.json")
nodes = json.loads(place.read_text()) if place.exists() else {}
what, *rest = sys.argv[2:]
if place.with_name("gone").exists():
    print('{"success": false, "error-message": "' + place.with_name("gone").read_text() + '"}')
elif what == "ls":
    print(json.dumps({"nodes": [{"node-id": str(7 + k), "status": s} for k, s in enumerate(nodes.values())]}))
elif (key := Path(rest[0]).read_text()) in nodes:
    print('{"success": false, "error-message": "Using\\\\n[code: 23] Public key already in use."}')
else:
    nodes[key] = "registered"
    place.write_text(json.dumps(nodes))
    print(json.dumps({"success": True, "node-id": 6 + len(nodes)}))
"""
"""Flower's command as 1.41 answers it: with status 0 whatever has become of what it was asked."""


class Server:
    """A server's project, and Flower's command in front of nodes that are in a file."""

    def __init__(self, folder: Path) -> None:
        write_project(folder / "project", 'rounds = 2\n\n[engine]\nname = "flower"\n', None)
        self.project, self.silos, self.bin = folder / "project", folder / "project" / "silos", folder / "bin"
        self.bin.mkdir()
        (self.bin / "flwr").write_text(FLWR)
        (self.bin / "flwr").chmod(0o755)

    def admit(self, key: Path) -> tuple[int, str]:
        """Status, and what is said: in this process, as the script's own takes seconds to import."""
        try:
            return 0, admit(key, self.silos)
        except CaveatError as error:
            return 2 if isinstance(error, ConfigurationError) else 1, str(error)

    def script(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        command = [self.project / "admit.sh", *words]
        return subprocess.run(command, cwd=self.project, capture_output=True, text=True, timeout=120)

    def exclude(self, number: int) -> None:
        place = self.bin / "nodes.json"
        nodes = json.loads(place.read_text())
        place.write_text(json.dumps(nodes | {list(nodes)[number - 7]: "unregistered"}))


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    made = Server(tmp_path)
    monkeypatch.setenv("PATH", f"{made.bin}:{Path(sys.executable).parent}:{os.environ['PATH']}")
    return made


def test_the_script_admits_a_key_and_ends_as_that_does(server: Server, tmp_path: Path) -> None:
    key_of(tmp_path, "va")
    done = server.script("../va.pub")
    assert (done.returncode, done.stdout, done.stderr) == (0, "va is registered: its node is 7\n", "")
    server.exclude(7)
    done = server.script(tmp_path / "va.pub")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("va is not registered: ")
    for wrong, told in (("nothere.pub", "nothere.pub: no such file"), ("va", "usage: admit.sh NAME.pub")):
        done = server.script(wrong)
        assert (done.returncode, done.stderr[: len(told)]) == (2, told)


def test_a_key_is_bound_to_its_name_and_its_node_is_kept(server: Server, tmp_path: Path) -> None:
    """Flower's own list has numbers alone: this is where an operator finds whose they are."""
    key_of(tmp_path, "va")
    key = tmp_path / "va.pub"
    assert server.admit(key) == (0, "va is registered: its node is 7")
    assert (server.silos / "va.pub").read_bytes() == key.read_bytes()
    assert (server.silos / "va.node").read_text() == f"7 {fingerprint_in(key)}\n"
    assert list(NameKeys(server.silos).given()) == ["va"]
    for again in (key, server.silos / "va.pub"):
        assert server.admit(again) == (0, "va is already registered: its node is 7")


def test_a_key_in_place_of_a_lost_one_names_the_node_that_is_to_be_excluded(server: Server, tmp_path: Path) -> None:
    key_of(tmp_path, "va"), server.admit(tmp_path / "va.pub")
    key_of(tmp_path, "va")
    status, said = server.admit(tmp_path / "va.pub")
    assert (status, said.splitlines()[0]) == (0, "va is registered: its node is 8")
    assert said.splitlines()[1].endswith(
        "to exclude this node, run: . ./environment.sh; flwr supernode unregister 7 deploy"
    )
    assert [each.node for each in admitted(server.silos)] == ["7", "8"]
    assert (server.silos / "va.pub").read_bytes() == (tmp_path / "va.pub").read_bytes()
    server.exclude(7)
    key_of(tmp_path, "va")
    assert server.admit(tmp_path / "va.pub")[1].splitlines()[1].endswith("unregister 8 deploy")


def test_a_key_whose_node_was_excluded_is_used_up_and_nothing_is_written(server: Server, tmp_path: Path) -> None:
    """Flower says of it what it says of one that is let in: it is in use."""
    key_of(tmp_path, "va"), server.admit(tmp_path / "va.pub")
    server.exclude(7)
    before = {path: path.read_bytes() for path in server.silos.iterdir()}
    status, said = server.admit(tmp_path / "va.pub")
    assert status == 1
    assert said.startswith("va is not registered: node 7, which had this key, was excluded; its key cannot be used")
    assert "make another key with ./key.sh va" in said
    assert {path: path.read_bytes() for path in server.silos.iterdir()} == before


@pytest.mark.parametrize("excluded", [False, True])
def test_a_key_that_an_earlier_version_let_in_stays_so(server: Server, tmp_path: Path, excluded: bool) -> None:
    """Whose node it is was written down nowhere: where none was excluded, it cannot have been this one."""
    key_of(tmp_path, "va"), server.admit(tmp_path / "va.pub")
    for path in server.silos.iterdir():
        path.unlink()
    if excluded:
        server.exclude(7)
    status, said = server.admit(tmp_path / "va.pub")
    assert status == excluded
    assert ("If the node was excluded, its key cannot be used again" in said) == excluded
    assert (server.silos / "va.pub").exists() != excluded
    assert not (server.silos / "va.node").exists()


def test_two_silos_have_no_key_together(server: Server, tmp_path: Path) -> None:
    key_of(tmp_path, "va"), server.admit(tmp_path / "va.pub")
    (tmp_path / "hill.pub").write_bytes((tmp_path / "va.pub").read_bytes())
    status, said = server.admit(tmp_path / "hill.pub")
    assert (status, said.partition(":")[0]) == (1, "hill is not registered")
    assert "va has this key (node 7)" in said
    assert not (server.silos / "hill.pub").exists()


@pytest.mark.parametrize(
    ("flower", "told"),
    [
        ("SuperLink connection 'deploy' not found in the Flower", "has not been started yet: start ./server.sh"),
        ("Connection to the SuperLink is unavailable.", "the server does not answer: start ./server.sh"),
        ("Something else.", "unexpected answer of the server: Something else."),
    ],
)
def test_a_server_that_does_not_take_the_key_is_a_sentence(
    server: Server, tmp_path: Path, flower: str, told: str
) -> None:
    key_of(tmp_path, "va")
    (server.bin / "gone").write_text(flower)
    status, said = server.admit(tmp_path / "va.pub")
    assert (status, len(said.splitlines())) == (1, 1)
    assert told in said
    assert not server.silos.exists()


def test_what_is_no_public_key_is_named(server: Server, tmp_path: Path) -> None:
    (tmp_path / "va.pub").write_bytes(key_of(tmp_path / "keys", "va").read_bytes())
    status, said = server.admit(tmp_path / "va.pub")
    assert (status, said.partition(":")[0]) == (2, str(tmp_path / "va.pub"))
    assert "cannot be read as a silo's public key" in said
    server.silos.mkdir()
    (server.silos / "va.node").write_text("hello\n")
    with pytest.raises(ConfigurationError, match=r"va\.node: invalid line 'hello', expected a node's number"):
        list(admitted(server.silos))
