"""A federation with secure aggregation: the bits of the run on one machine, lost silos, what the server gets."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from canaries import Recorded, files_below, is_telling, plant, where
from flower_grid import InProcessGrid
from flwr.app import ArrayRecord, Message, RecordDict
from hospitals import Federation, summary
from safetensors.torch import load_file
from test_keys import make_key

from caveat.config import load
from caveat.core import ConfigurationError, RunError
from caveat.engines.flower import FlowerEngine, silo_app_of
from caveat.engines.flower_messages import words_of
from caveat.engines.flower_secure import GROUP, OpenedSum, SecureServer
from caveat.federation.server.run import serve
from caveat.federation.silo.app import NodeHandler
from caveat.federation.silo.secure import SecureFolder, SignedName
from caveat.runs.progress import Silent
from caveat.secure.fixed_point import decode
from caveat.secure.messages import Opened
from caveat.secure.silo import SecureSilo
from caveat.wrappers.privacy import composed, epsilon

SECURE = """
secure = true
robust = "off"
"""
# Categories of one silo alone.
pytestmark = pytest.mark.filterwarnings("ignore:column 'smoker'")
LONG = [pytest.param(each, marks=pytest.mark.long) for each in ("keys", "temperature", "test")]
LOSSES = ["shares", "train", "agree", "open", *LONG]
"""Phases of secure aggregation, and tasks."""
GUARDED = '[uncertainty]\npolicy = "guaranteed"\nset_coverage = 0.8\n'
MORE = "coast hill lake valley"


class SecureHospitals(Federation):
    """Four hospitals with keys, behind a Grid that loses the messages for which `lost` holds."""

    def __init__(
        self, folder: Path, method: str = "fedavg", rounds: int = 1, more: str = "", names: str = MORE
    ) -> None:
        super().__init__(folder, method, rounds, 3, 0.5, SECURE + more, names.split())
        self.seen: list[RecordDict] = []
        self.sent: list[Message] = []
        self.lost: Callable[[int, Message], bool] = lambda node, message: False
        for name, home in self.homes.items():
            key = make_key(home / "keys", name)
            self.grid.node_config[self.node[name]]["key"] = str(key)
            self.grid.apps[self.node[name]] = self._watched(self.node[name])

    def _watched(self, node: int) -> Any:
        app = silo_app_of(NodeHandler())

        def call(message: Message, context: Any) -> Message:
            self.sent.append(message)
            if self.lost(node, message):
                raise ConnectionError("lost")
            reply = app(message, context)
            self.seen.append(reply.content)
            return reply

        return call


def phase_of(message: Message) -> str:
    words = words_of(message.content)
    return str(words.get("phase", words.get("task", ""))).rpartition(".")[2]


def losing_in(phase: str, node: int, first: int = 0) -> Callable[[int, Message], bool]:
    """Lose a node's messages of a phase, after the first few."""
    calls = iter(range(10**6))
    return lambda at, message: at == node and phase_of(message) == phase and next(calls) >= first


def model(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "model" / "model.safetensors")


def test_a_federation_has_the_bits_of_the_run_on_one_machine(tmp_path: Path) -> None:
    """And its messages hold no numbers of a single silo: neither in the clear, nor in fixed point."""
    federation = SecureHospitals(tmp_path, more=GUARDED)
    run, alone = federation.serve(), federation.embedded()
    one, other = model(run), model(alone)
    assert one.keys() == other.keys()
    assert [name for name, tensor in one.items() if not torch.equal(tensor, other[name])] == []
    found, expected = summary(run), summary(alone)
    assert {key for key in found if found[key] != expected.get(key)} <= {"traffic", "policy"}
    groups = {name for records in federation.seen for name in records.array_records}
    assert groups == {f"group.{GROUP}"}
    masked = [records for records in federation.seen if records.array_records]
    words = [each[f"group.{GROUP}"].to_torch_state_dict()["words"] for each in masked]
    # Every number is masked: zeros, of which histograms are full, are as rare as any other number.
    assert all(len(each.unique()) == len(each) for each in words)
    sessions = [json.loads(path.read_text()) for path in (tmp_path / "silos").glob("*/state/*/*/secure.json")]
    secrets = [text for each in sessions for text in (each["channel"], *each["keys"], *each["seeds"]) if text]
    texts = [str(words_of(records)) for records in federation.seen]
    assert secrets
    assert not [text for text in texts if any(secret in text for secret in secrets)]


@pytest.mark.long
def test_no_canary_of_a_silo_reaches_the_server_and_sums_are_exact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`benchmarks/canaries/check.py` does the same with processes, TLS, Flower's database and the server's memory."""
    monkeypatch.setattr(SecureFolder, "masked", SecureFolder.masked)  # undone after the test
    plant(SecureFolder, tmp_path / "canaries")
    federation, opened, store = SecureHospitals(tmp_path, more=GUARDED), dict[str, OpenedSum](), SecureServer.store

    def stored(self: SecureServer, t: int, task: str, about: bytes, found: OpenedSum) -> None:
        opened[f"{t}-{task}"] = found
        store(self, t, task, about, found)

    monkeypatch.setattr(SecureServer, "store", stored)
    run = federation.serve()
    recorded = {task: Recorded(tmp_path / "canaries", task, MORE.split()) for task in opened}
    compared = {task: each.compare(decode(opened[task].words, opened[task].layout).sums)
                for task, each in recorded.items()}  # fmt: skip
    assert {task.rpartition(".")[2] for task in compared} >= {"train", "temperature", "count", "conform", "5-test"}
    assert max(worst for _, worst in compared.values()) <= 1
    assert min(counts for task, (counts, _) in compared.items() if task.endswith(("count", "conform", "test"))) > 100
    patterns = {each for found in recorded.values() for each in found.patterns()}
    arrays = [(name, array.data) for each in federation.seen for name, found in each.array_records.items()
              for array in found.values()]  # fmt: skip
    texts = [(str(each), str(words_of(each)).encode()) for each in federation.seen]
    assert len(patterns) > 100
    assert where(patterns, [*arrays, *texts, *files_below(run), ("log", str(federation.notes).encode())]) == []
    # The control: the same search finds the model of all silos.
    known = {tensor.numpy().tobytes()[:8] for tensor in model(run).values() if tensor.numel() > 1}
    assert where(filter(is_telling, known), files_below(run)) != []


@pytest.mark.parametrize("phase", LOSSES)
def test_a_silo_that_vanishes_in_any_phase_does_not_stop_the_others(tmp_path: Path, phase: str) -> None:
    federation = SecureHospitals(tmp_path)
    federation.lost = losing_in(phase, federation.node["hill"])
    run = federation.serve()
    found = summary(run)
    there = 4 if phase in ("agree", "open", "temperature") else 3
    assert len(found["secure"]["silos"]) == there
    assert found.get("absent", []) == ([] if there == 4 else ["hill"])


def test_a_silo_that_gives_wrong_shares_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    federation, honest = SecureHospitals(tmp_path), SecureSilo.open

    def wrong(silo: SecureSilo, *about: Any) -> Opened:
        found = honest(silo, *about)
        return found._replace(seeds={**found.seeds, "lake": bytes(33)}) if silo.own.silo == "coast" else found

    monkeypatch.setattr(SecureSilo, "open", wrong)
    federation.serve()
    why = "the shares that silo 'coast' gave of the secrets of lake do not fit those of the other silos"
    assert any(why in note for note in federation.notes)


def test_noise_in_sums_protects_every_opened_sum(tmp_path: Path) -> None:
    more = '[privacy]\nclip_norm = 1.0\nnoise_multiplier = 3.0\nwhere = "sum"\n'
    federation = SecureHospitals(tmp_path, more=more)
    federation.lost = losing_in("train", federation.node["hill"])
    found = summary(federation.serve())["privacy"]
    # Three silos are in the sum, of which two protect the third: as many as the noise is shared among.
    assert found["epsilon"] == found["epsilon_server"] == epsilon(3.0, [3], 2, 1e-5) == composed([3.0], 1e-5)


def test_too_few_silos_fail_by_name(tmp_path: Path) -> None:
    federation = SecureHospitals(tmp_path)
    lost = [losing_in("train", federation.node[name]) for name in ("hill", "lake")]
    federation.lost = lambda node, message: any(each(node, message) for each in lost)
    with pytest.raises(RunError, match=r"2 of 4 silos sent masked vectors, but secure sums need 3.*without hill, lake"):
        federation.serve()


def test_a_silo_that_is_sent_another_model_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    federation = SecureHospitals(tmp_path)
    handler = federation.grid.apps[federation.node["hill"]]

    def other_model(message: Message, context: Any) -> Message:
        if phase_of(message) == "train":
            for name in message.content.array_records:
                tensors = message.content[name].to_torch_state_dict()
                message.content[name] = ArrayRecord(torch_state_dict={n: t + 1 for n, t in tensors.items()})
        return handler(message, context)

    federation.grid.apps[federation.node["hill"]] = other_model
    with pytest.raises(
        RunError, match=r"round 0, task '.*train': the masks do not cancel, so the server learned nothing"
    ):
        federation.serve()
    assert any("no sum: round 0" in note for note in federation.notes)
    assert "1 of 4 silos signed the sum of slot 0" in capsys.readouterr().err


@pytest.mark.parametrize("stored", [True, False], ids=["stored", "lost"])
def test_a_killed_server_goes_on_with_the_sums_that_it_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stored: bool
) -> None:
    """A silo is away after the restart: a second sum without it would reveal its numbers. So silos open none."""
    federation = SecureHospitals(tmp_path)
    opened = []

    def killed(*arguments: Any) -> None:
        opened.append(arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(FlowerEngine, "_opened", killed) if stored else patch.setattr(SecureServer, "store", killed)
        with pytest.raises(KeyboardInterrupt):
            federation.serve()
    assert opened
    trained = sum(phase_of(message) == "train" for message in federation.sent)
    federation.lost = losing_in("train", federation.node["hill"])
    if stored:
        assert len(summary(federation.serve())["secure"]["silos"]) == 4
        assert sum(phase_of(message) == "train" for message in federation.sent) == trained
    else:
        with pytest.raises(
            RunError, match=r"0 of 4 silos sent masked vectors.*already sent shares for a sum of round 0"
        ):
            federation.serve()


@pytest.mark.parametrize("missing", ["key", "slot"])
def test_silos_refuse_what_they_cannot_mask(tmp_path: Path, missing: str, capsys: pytest.CaptureFixture[str]) -> None:
    federation = SecureHospitals(tmp_path)
    if missing == "key":
        for config in federation.grid.node_config.values():
            del config["key"]
        told = "has no key, which secure aggregation needs"
    else:
        ask, told = federation.grid._deliver, "has no valid slot of a session"

        def bare(message: Message) -> str:
            if "secure" in words_of(message.content):
                message.content["order"]["secure"] = ""
            return ask(message)

        federation.grid._deliver = bare  # type: ignore[method-assign]
    with pytest.raises(RunError):
        federation.serve()
    assert any(told in line for line in capsys.readouterr().err.splitlines())


@pytest.mark.parametrize("t", [0, 999])
def test_a_task_of_another_round_is_not_answered_in_the_clear(tmp_path: Path, t: int) -> None:
    """A silo runs a task of an address in any round, so it must mask it in any round, too."""
    federation = SecureHospitals(tmp_path)
    ask, answers = FlowerEngine._ask, []

    def another(self: FlowerEngine, at: int, address: str, payload: Any, silos: Any, until: float, *_: Any) -> Any:
        answers.append(ask(self, t, address, payload, silos, until))
        raise RunError("enough")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FlowerEngine, "_ask", another)
        with pytest.raises(RunError, match="enough"):
            federation.serve()
    ((found, reasons),) = answers
    assert found == {}
    assert len(reasons) == 4
    assert not any(group == "model" for each in federation.seen for group in each.array_records)


def test_a_silo_knows_its_peers_by_their_first_keys(tmp_path: Path) -> None:
    federation = SecureHospitals(tmp_path)
    federation.serve()
    (pins,) = (federation.homes["hill"] / "state").glob("*/peers.json")
    known = json.loads(pins.read_text())["keys"]
    assert sorted(known) == ["coast", "lake", "valley"]
    assert pins.stat().st_mode & 0o077 == 0
    identity = SignedName("hill", federation.homes["hill"] / "keys" / "hill", pins)
    assert identity.count() == 4
    others = SignedName("coast", make_key(tmp_path / "new", "coast"), pins)
    assert re.search("peers.json has SHA256", identity.check("coast", *others.sign(b"x"), b"x"))
    first = SignedName("coast", federation.homes["coast"] / "keys" / "coast", pins)
    assert identity.check("coast", *first.sign(b"x"), b"x") == ""
    assert "invalid signature" in identity.check("coast", *first.sign(b"x"), b"y")
    given = SignedName("hill", None, pins, tmp_path / "new")
    assert given.count() == 2
    assert "there is no lake.pub" in given.check("lake", *first.sign(b"x"), b"x")
    assert given.check("coast", *others.sign(b"x"), b"x") == ""


def test_secure_sums_on_flower_need_silos_of_their_own(tmp_path: Path) -> None:
    config = load(
        "digits", ["engine.name=flower", "federation.secure=true", "federation.robust=off", "engine.workers=1"]
    )
    with pytest.raises(ConfigurationError, match="needs silos with keys, not a simulation on Flower"):
        serve(config, InProcessGrid({}), tmp_path / "run", Silent())
