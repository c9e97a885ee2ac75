"""A silo's own books: it goes on from the state of the round that was counted, or says that it is lost."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from commands import caveat
from federations import FAST, executor, model

from caveat.core import Data, DataError, Method, Payload, RunError, SiloContext
from caveat.engines.executor import Executor
from caveat.engines.flower_messages import NEVER, Order
from caveat.federation.silo.member import check_order
from caveat.federation.silo.store import KEPT, OwnBooks
from caveat.files import StateLost
from caveat.files.schema import KeptState
from caveat.methods import SCAFFOLD, FedAvg
from caveat.wrappers.evaluation import TEST

TRAIN = "base.train"


@dataclass
class Alone:
    """One silo, whose server always sends the same."""

    folder: Path
    method: Method
    place: Executor = field(init=False)
    sent: Payload = field(init=False)
    checkpoints: int = 1

    def __post_init__(self) -> None:
        self.folder.mkdir(exist_ok=True)
        self.place = executor(self.method, self.folder / "states")
        none = Data(torch.zeros(0, 2), torch.zeros(0, dtype=torch.long))
        context = SiloContext("server", none, none, none, self.method.build(model()))
        self.sent = self.method.broadcast(self.method.init_server(context))

    @property
    def books(self) -> OwnBooks:
        return OwnBooks(self.folder)

    @property
    def kept(self) -> list[KeptState]:
        own = self.books.read()
        assert own is not None
        return own.states

    @property
    def versions(self) -> list[int]:
        return self.place.states.versions("silo-0")

    def perform(self, t: int, counted: int, task: str = TRAIN, rollbacks: int = 0) -> None:
        order = Order(t, task, counted, "silo-0", rollbacks=rollbacks)
        self.books.perform(self.place, order, self.sent, lambda update, ledger: None, self.checkpoints)

    def checked(self, t: int, counted: int, task: str = TRAIN, rollbacks: int = 0) -> None:
        """As a node does it."""
        check_order(Order(t, task, counted, "silo-0", rollbacks=rollbacks), self.place, "silo-0", self.books)
        self.perform(t, counted, task, rollbacks)


@pytest.fixture
def silo(tmp_path: Path) -> Alone:
    """Two rounds are counted."""
    silo = Alone(tmp_path / "silo", SCAFFOLD(rounds=9, training=FAST))
    silo.perform(0, NEVER)
    silo.perform(1, 0)
    return silo


def test_a_round_that_was_never_counted_is_done_again_from_the_one_before(silo: Alone) -> None:
    once = silo.kept[-1]
    silo.perform(1, 0)
    assert silo.kept[-1] == once
    assert [each.t for each in silo.kept] == silo.versions == [0, 1]


def test_an_evaluation_forgets_a_round_that_was_never_counted_in_the_books_too(silo: Alone) -> None:
    silo.perform(0, 0, TEST)
    assert [each.t for each in silo.kept] == silo.versions == [0]
    assert silo.place.states.load(silo.kept[-1])


@pytest.mark.parametrize("task", [TRAIN, TEST])
def test_a_round_that_the_books_do_not_know_is_lost_and_the_newest_state_stays(silo: Alone, task: str) -> None:
    before = silo.versions
    with pytest.raises(
        StateLost, match=r"aggregated its update of round 6 of the schedule.*caveat flower reset"
    ) as lost:
        silo.perform(6, 5, task)
    assert lost.value.silo == "silo-0"
    assert silo.versions[-1] == before[-1]


@pytest.mark.parametrize("books", ["lost", "older"])
def test_lost_or_older_books_are_no_state(silo: Alone, books: str) -> None:
    if books == "older":
        older = (silo.folder / KEPT).read_bytes()
        silo.perform(2, 1)
        (silo.folder / KEPT).write_bytes(older)
        with pytest.raises(StateLost):
            silo.perform(3, 2)
    else:
        (silo.folder / KEPT).unlink()
        for path in (silo.folder / "states" / "silo-0").iterdir():
            path.unlink()
        with pytest.raises(StateLost):
            silo.perform(2, 1)
        assert not (silo.folder / KEPT).exists()
        assert silo.versions == []


def test_a_method_that_keeps_nothing_goes_on_without_books(tmp_path: Path) -> None:
    silo = Alone(tmp_path / "silo", FedAvg(rounds=9, training=FAST))
    silo.perform(7, 6)
    assert [(each.t, each.sha256) for each in silo.kept] == [(7, None)]


@pytest.mark.parametrize("damage", ["books", "state"])
def test_a_silo_that_is_reset_begins_afresh(silo: Alone, damage: str) -> None:
    if damage == "books":
        (silo.folder / KEPT).write_text((silo.folder / KEPT).read_text().replace('"t": 1', '"t": 3'))
        error: type[Exception] = DataError
    else:
        (silo.folder / "states" / "silo-0" / "000001.safetensors").write_bytes(b"")
        error = StateLost
    with pytest.raises(error):
        silo.perform(2, 1)
    assert caveat("flower", "reset", silo.folder).exit_code == 0
    silo.perform(2, 1)
    own = silo.books.read()
    assert own is not None
    assert ([each.t for each in own.states], own.afresh) == ([2], False)


# Going back


@pytest.fixture
def far(tmp_path: Path) -> Alone:
    """Six rounds are counted of a silo that took part in all but the fourth, whose server can go back to three."""
    silo = Alone(tmp_path / "silo", SCAFFOLD(rounds=9, training=FAST), checkpoints=3)
    for t, counted in ((0, NEVER), (1, 0), (2, 1), (4, 2), (5, 4)):
        silo.perform(t, counted)
    return silo


def test_the_states_stay_that_the_server_may_go_back_to(far: Alone) -> None:
    assert [each.t for each in far.kept] == far.versions == [1, 2, 4, 5]
    far.perform(5, 5, TEST)
    far.perform(6, 5)
    assert [each.t for each in far.kept] == far.versions == [2, 4, 5, 6]


def test_a_run_that_went_back_is_followed_to_the_same_state(far: Alone) -> None:
    known = {each.t: each for each in far.kept}
    with pytest.raises(RunError, match="for round 5 of the schedule, but the silo already has a state of round 6"):
        far.checked(4, 2)
    assert far.versions[-1] == 5
    far.checked(4, 2, rollbacks=1)
    assert far.kept == [known[1], known[2], known[4]]
    assert far.versions == [1, 2, 4]
    with pytest.raises(RunError, match="for round 3 of the schedule"):  # which has not gone back since
        far.checked(2, 1, rollbacks=1)
    far.checked(3, 2, TEST, rollbacks=2)
    assert far.kept == [known[1], known[2]]


def test_a_silo_that_had_not_joined_yet_begins_afresh_and_one_without_the_state_says_so(far: Alone) -> None:
    with pytest.raises(StateLost, match=r"aggregated its update of round 1 of the schedule"):
        far.checked(1, 0, rollbacks=1)
    far.checked(1, NEVER, rollbacks=1)
    assert [each.t for each in far.kept] == far.versions == [1]
