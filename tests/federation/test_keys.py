"""Whose name it is: greetings are signed, and a silo's name is bound to one key."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from flwr.app import Message
from hospitals import NAMES, Federation, losing, summary

from caveat.config import load
from caveat.core import ConfigurationError, DataError, RunError
from caveat.engines.flower import silo_app_of
from caveat.engines.flower_messages import Words, words_of
from caveat.federation.keys import KEY, SIGNATURE, UNSIGNED, Asked, NameKeys, signed
from caveat.federation.server.run import StartCommand
from caveat.federation.silo.app import NodeHandler

ASKED = Asked("a1", "introduce", "nonce", 7)
WORDS: Words = {"silo": "hill", "sketch": "{}"}


def make_key(folder: Path, name: str, private: Any = None) -> Path:
    """A pair of keys, as `key.sh` makes it unless a private key is given."""
    folder.mkdir(parents=True, exist_ok=True)
    private = private or ec.generate_private_key(ec.SECP384R1())
    path = folder / name
    path.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    public = private.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    path.with_name(f"{name}.pub").write_bytes(public + b" a comment\n")
    return path


@pytest.fixture
def given(tmp_path: Path) -> NameKeys:
    """An operator's folder with the key of one silo; the silo has the other half."""
    make_key(tmp_path / "keys", "hill")
    (tmp_path / "silos").mkdir()
    shutil.copy(tmp_path / "keys" / "hill.pub", tmp_path / "silos")
    return NameKeys(tmp_path / "silos")


def test_a_greeting_under_a_name_has_the_signature_of_its_key(given: NameKeys, tmp_path: Path) -> None:
    greeting = signed(WORDS, ASKED, tmp_path / "keys" / "hill")
    key = given.check("hill", greeting, ASKED)
    assert key.startswith("SHA256:")
    assert len(key) == 50
    with pytest.raises(DataError, match=r"there is no coast\.pub in"):
        given.check("coast", greeting, ASKED)
    with pytest.raises(DataError, match="sent a greeting without a signature"):
        given.check("hill", WORDS, ASKED)
    other = make_key(tmp_path / "keys", "other")
    with pytest.raises(
        DataError, match=rf"sent a greeting with key SHA256:\S+, but its name is bound to key {re.escape(key)}"
    ):
        given.check("hill", signed(WORDS, ASKED, other), ASKED)


@pytest.mark.parametrize(
    "change",
    [
        lambda words, asked: (words, dataclasses.replace(asked, federation="a2")),
        lambda words, asked: (words, dataclasses.replace(asked, question="join")),
        lambda words, asked: (words, dataclasses.replace(asked, nonce="another")),
        lambda words, asked: (words, dataclasses.replace(asked, node=8)),
        lambda words, asked: (words | {"sketch": "[]"}, asked),
        lambda words, asked: (words | {"more": 1}, asked),
        lambda words, asked: (words | {SIGNATURE: "00"}, asked),
        lambda words, asked: (words | {SIGNATURE: "nothing"}, asked),
        lambda words, asked: (words | {SIGNATURE: "0" * 10**6}, asked),
        lambda words, asked: ({key: value for key, value in words.items() if key != SIGNATURE}, asked),
        lambda words, asked: ({key: value for key, value in words.items() if key != KEY}, asked),
        lambda words, asked: (words | {KEY: "ssh-ed25519 AAAA"}, asked),
        lambda words, asked: (words | {KEY: "\udc80"}, asked),
        lambda words, asked: (words | {KEY: 3}, asked),
    ],
)
def test_a_signature_is_of_one_answer_to_one_question(
    change: Callable[[Words, Asked], tuple[Words, Asked]], given: NameKeys, tmp_path: Path
) -> None:
    words, asked = change(signed(WORDS, ASKED, tmp_path / "keys" / "hill"), ASKED)
    for keys in (given, NameKeys()):
        with pytest.raises(DataError, match="its signature is invalid"):
            keys.check("hill", words, asked)


def test_without_the_operator_s_keys_the_first_one_is_bound(tmp_path: Path) -> None:
    keys, first = NameKeys(), make_key(tmp_path, "first")
    assert keys.check("hill", WORDS, ASKED) == UNSIGNED
    keys.bound["hill"] = keys.check("hill", signed(WORDS, ASKED, first), ASKED)
    for words in (WORDS, signed(WORDS, ASKED, make_key(tmp_path, "second"))):
        with pytest.raises(DataError, match="is bound to key"):
            keys.check("hill", words, ASKED)
    assert keys.check("hill", signed(WORDS, ASKED, first), ASKED) == keys.bound["hill"]


def test_what_is_no_key_is_named(given: NameKeys, tmp_path: Path) -> None:
    keys, other = tmp_path / "keys", ed25519.Ed25519PrivateKey.generate()
    rounded = make_key(keys, "round", other)
    (keys / "empty").touch()
    for path, told in [
        (keys / "hill.pub", "cannot be read"), (keys / "none", "cannot be read"), (keys / "empty", "cannot be read"),
        (rounded, "expected an ECDSA key without a passphrase, made by key.sh"),
    ]:  # fmt: skip
        with pytest.raises(ConfigurationError, match=told) as refused:
            signed(WORDS, ASKED, path)
        assert str(refused.value).startswith(f"{path}: ")
    for place in ("hill", "empty", "round.pub"):
        shutil.copy(keys / place, tmp_path / "silos" / "coast.pub")
        with pytest.raises(ConfigurationError, match=r"coast\.pub: cannot be read as a silo's public key"):
            given.given()
        with pytest.raises(ConfigurationError, match=r"coast\.pub: cannot be read as a silo's public key"):
            given.check("coast", signed(WORDS, ASKED, keys / "hill"), ASKED)
        # A file that is none is for the operator to mend; the others' greetings are admitted all the same.
        assert given.check("hill", signed(WORDS, ASKED, keys / "hill"), ASKED) == given.given_to("hill")


# In a federation


class Keyed(Federation):
    """Three hospitals with keys, and a project with a folder `silos` for the keys that the operator has been given."""

    def __init__(self, folder: Path, rounds: int = 1, quorum: int = 2) -> None:
        super().__init__(folder, "fedavg", rounds, quorum)
        self.project = folder / "project"
        (self.project / "silos").mkdir(parents=True)
        for name in NAMES:
            self.grid.node_config[self.node[name]]["key"] = str(make_key(self.homes[name] / "keys", name))

    def admit(self, name: str, key: Path | None = None) -> None:
        key = key or self.homes[name] / "keys" / name
        shutil.copy(key.with_name(f"{key.name}.pub"), self.project / "silos" / f"{name}.pub")

    def speaks(self, node: int, silo: str) -> Path:
        """Have a node say that it is a silo, with a key of its own; return that."""
        key = make_key(self.folder / "strangers", str(node))
        self.grid.apps[node] = silo_app_of(NodeHandler())
        self.grid.node_config[node] = {"silo": str(self.homes[silo] / "silo.toml"), "key": str(key)}
        return key

    def begin(self, min_available_silos: int = 3) -> dict[str, Any]:
        sets = [
            f"federation.min_available_silos={min_available_silos}",
            "uncertainty.temperature_scaling=false",
            "uncertainty.familiarity=false",
        ]
        config = load(str(self.folder / "config.toml"), sets)
        return summary(self.serve(config, StartCommand(str(self.project), ())))

    def refused(self, node: int) -> list[str]:
        return [note for note in self.notes if f"node {node} is refused" in note]


@pytest.mark.long
def test_a_node_that_takes_the_name_of_an_absent_silo_is_refused(tmp_path: Path) -> None:
    federation = Keyed(tmp_path)
    for name in NAMES:
        federation.admit(name)
    del federation.grid.apps[federation.node["hill"]]
    federation.speaks(1, "hill")
    federation.speaks(2, "hill")
    del federation.grid.node_config[2]["key"]
    assert [silo["name"] for silo in federation.begin(min_available_silos=2)["silos"]] == ["coast", "valley"]
    (signed_wrongly,), (unsigned,) = federation.refused(1), federation.refused(2)
    assert "NameRefused: silo 'hill' sent a greeting with key SHA256:" in signed_wrongly
    assert (
        "NameRefused: silo 'hill' sent a greeting without a signature, but its name is bound to key SHA256:" in unsigned
    )
    assert not list(federation.homes["hill"].glob("state/*/*/ledger.jsonl"))


@pytest.mark.long
def test_a_silo_hears_in_its_own_log_that_its_name_or_key_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its operator sees a node that is connected, and no work. Of other silos and of the server it hears nothing."""
    monkeypatch.setattr("caveat.federation.server.membership.AGAIN", 0.1)
    federation = Keyed(tmp_path)
    federation.admit("coast"), federation.admit("hill")
    del federation.grid.apps[federation.node["hill"]]
    federation.speaks(1, "hill")
    with pytest.raises(RunError, match="3 silos are needed"):
        federation.begin()
    said = set(capsys.readouterr().err.splitlines())
    (named,) = [line for line in said if line.startswith("caveat: the server has refused silo 'valley': ")]
    assert named.endswith("the server has no key for the name 'valley': register it with ./admit.sh valley.pub")
    (keyed,) = [line for line in said if line.startswith("caveat: the server has refused silo 'hill': ")]
    assert "the name 'hill' is not bound to key SHA256:" in keyed
    assert keyed.count("SHA256:") == 1
    assert not any(str(federation.project) in line for line in said)
    assert not [line for line in said if "refused silo 'coast'" in line]


@pytest.mark.long
def test_a_run_that_goes_on_tells_who_took_part_and_is_not_there(tmp_path: Path) -> None:
    """What a silo said at an earlier start is no greeting of this one."""
    federation, hill = Keyed(tmp_path, rounds=2, quorum=3), 8
    federation.grid.tamper[hill] = losing(1)
    with pytest.raises(RunError, match="fewer than the quorum"):
        federation.begin()
    federation.grid.tamper.clear()
    del federation.grid.apps[hill]
    with pytest.raises(RunError, match=r"2 joined \(coast, valley\); took part before but absent: hill$"):
        federation.begin()


@pytest.mark.long
def test_a_name_stays_bound_after_an_interruption_until_the_operator_gives_another_key(tmp_path: Path) -> None:
    federation, hill = Keyed(tmp_path, rounds=2, quorum=3), 8
    federation.grid.tamper[hill] = losing(1)
    with pytest.raises(RunError, match="fewer than the quorum"):
        federation.begin()
    bound = json.loads((federation.run / "federation.json").read_text())["keys"]
    assert list(bound) == NAMES
    assert f"silo hill: its name is bound to key {bound['hill']} by its first greeting" in federation.notes
    federation.grid.tamper.clear()
    del federation.grid.apps[hill]
    key = federation.speaks(1, "hill")
    with pytest.raises(RunError, match="3 silos are needed"):
        federation.begin()
    assert f"its name is bound to key {bound['hill']}" in federation.refused(1)[0]
    federation.admit("hill", key)
    assert [silo["name"] for silo in federation.begin()["silos"]] == NAMES
    assert not federation.refused(1)
    after = json.loads((federation.run / "federation.json").read_text())["keys"]
    assert {name for name in NAMES if after[name] != bound[name]} == {"hill"}


@pytest.mark.long
def test_a_key_that_is_replaced_in_mid_run_takes_its_name_along(tmp_path: Path) -> None:
    federation, stolen = Keyed(tmp_path, rounds=3), 8

    def replace(reply: Message) -> Message:
        if 99 not in federation.grid.apps:
            federation.admit("hill", federation.speaks(99, "hill"))
        return reply

    federation.grid.tamper[stolen] = replace
    federation.begin()
    orders = [node for node, content in federation.grid.sent if words_of(content).get("task", "").endswith("train")]
    assert [node for node in orders if node in (stolen, 99)] == [stolen, 99, 99]
