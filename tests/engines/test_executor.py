"""Rounds declare their names: what Python functions are called is in no random number, row, ledger or order."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from federations import ADAM, FAST, METHODS, WRAPPED, Federation, assert_same, assert_same_states, executor
from flower_grid import Silos
from sampled import sampled
from test_flower import run as run_flower

import caveat
from caveat.core import (
    ConfigurationError,
    Method,
    Payload,
    Round,
    RunError,
    SiloContext,
    State,
    Update,
    evaluation,
    key,
)
from caveat.methods import FedAvg, FedBABU
from caveat.wrappers.base import Wrapper
from caveat.wrappers.choice_policies import Switched
from caveat.wrappers.evaluation import TEST, VALIDATION, Evaluated
from caveat.wrappers.privacy import Private
from caveat.wrappers.temperature_scaling import TemperatureScaled

SOURCE = Path(caveat.__file__).parent
EVERY = METHODS + WRAPPED
names = [type(method).__name__ for method in EVERY]
each = pytest.mark.parametrize(
    "method", sampled(EVERY), ids=[name + "-options" * names[:i].count(name) for i, name in enumerate(names)]
)


def nameless(step: Round) -> Round:
    """The round with a work that is neither a method nor has the name of the old one."""
    return replace(step, task=lambda down, state, context: step.task(down, state, context))


@dataclass(frozen=True)
class Renamed(FedAvg):
    """FedAvg of which the work is called otherwise."""

    def schedule(self) -> Iterable[Round]:
        return (replace(step, task=self.something_else) for step in super().schedule())

    def something_else(self, down: Payload, state: State, context: SiloContext) -> tuple[Update, State]:
        return self.train(down, state, context)

    name = "fedavg"


def orders(silos: Silos) -> list[tuple[object, ...]]:
    said = [records.config_records["order"] for _, records in silos.grid.sent]
    return [(each["t"], each["task"], each["silo"]) for each in said]


# The names of functions change nothing


@each
def test_other_functions_under_the_same_names_give_the_same_bits(
    method: Method, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Federation(method, tmp_path / "plain")
    plain.run(stop=2)

    def unnamed(schedule: Callable[[Method], Iterable[Round]], self: Method) -> Iterable[Round]:
        return (nameless(step) if getattr(step.task, "__self__", None) is self else step for step in schedule(self))

    for kind in {type(part) for part in chain(method)}:
        monkeypatch.setattr(kind, "schedule", partial_method(unnamed, kind.schedule))
    renamed = Federation(method, tmp_path / "renamed")
    assert {getattr(step.task, "__name__", "<lambda>") for step in method.schedule()} == {"<lambda>"}
    assert_same(plain.server, renamed.run(stop=2))
    assert_same_states(plain.states(), renamed.states())


def chain(method: Method) -> list[Method]:
    return [method, *chain(method.base)] if isinstance(method, Wrapper) else [method]


def partial_method(function: Callable[..., object], schedule: Callable[..., object]) -> Callable[[Method], object]:
    return lambda self: function(schedule, self)


def test_a_renamed_work_gives_the_same_orders_and_bits_by_flower(tmp_path: Path) -> None:
    silos = {kind: Silos(kind(rounds=3, training=ADAM), tmp_path / kind.__name__) for kind in (FedAvg, Renamed)}
    assert_same(*map(run_flower, silos.values()))
    assert orders(silos[FedAvg]) == orders(silos[Renamed])
    assert {task for _, task, _ in orders(silos[Renamed])} == {"base.train"}


def test_a_renamed_work_leaves_the_same_rows_and_the_same_ledger(tmp_path: Path) -> None:
    x = np.sin(np.arange(2 * 90 * 4)).reshape(2, 90, 4).astype(np.float32)
    data = caveat.data.from_arrays({f"ward-{k}": (x[k], (x[k].sum(1) > 0).astype(int)) for k in range(2)})
    for kind in (FedAvg, Renamed):
        caveat.run(
            data, kind(rounds=2, training=FAST), out=tmp_path / kind.__name__,
            privacy=caveat.Privacy(clip_norm=1.0, noise_multiplier=0.1),
            uncertainty=caveat.Uncertainty(policy="switch"),
        )  # fmt: skip
    for file in ("rounds.jsonl", "ledger.jsonl"):
        assert (tmp_path / "FedAvg" / file).read_text() == (tmp_path / "Renamed" / file).read_text()
    lines = map(json.loads, (tmp_path / "Renamed" / "ledger.jsonl").read_text().splitlines())
    phases = ["train", "temperature", "familiarity", "calibrate", "final"]
    assert [*dict.fromkeys(line["phase"] for line in lines if "phase" in line)] == phases
    private = [json.loads((tmp_path / kind / "summary.json").read_text())["privacy"] for kind in ("FedAvg", "Renamed")]
    assert private[0] == private[1]
    assert private[0]["covers"] == ["train"]


@pytest.mark.parametrize("look", [VALIDATION, TEST])
def test_renamed_evaluations_are_ordered_by_the_declared_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, look: str
) -> None:
    place = executor(FedAvg(rounds=1, training=ADAM), tmp_path)
    down = place.method.broadcast(place.method.init_server(place.context("silo-0")))
    plain = place.perform(0, look, down, "silo-0", None).update
    measure = getattr(Evaluated, look)
    monkeypatch.setattr(Evaluated, look, lambda *given: measure(*given))
    assert_same(plain.payload, place.perform(0, look, down, "silo-0", None).update.payload)
    assert not place.states.versions("silo-0")


# Names


def test_every_round_of_a_method_here_names_itself() -> None:
    rounds = [
        (file.name, node)
        for folder in ("methods", "wrappers")
        for file in (SOURCE / folder).glob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Round"
    ]
    assert len(rounds) >= 9
    for file, call in rounds:
        assert "name" in {keyword.arg for keyword in call.keywords}, f"{file}, line {call.lineno}"


def test_no_name_of_a_function_is_used_by_what_orders_or_records() -> None:
    for folder in ("engines", "wrappers", "runs", "federation"):
        for file in (SOURCE / folder).rglob("*.py"):
            for word in ("work.__name__", "test.__name__", "validation.__name__", "attrgetter"):
                assert word not in file.read_text(), file


def test_a_round_without_a_name_has_that_of_its_work_from_then_on() -> None:
    method = FedAvg()
    step = Round(method.broadcast, method.train)
    assert step.name == step.address == "train"
    assert replace(step, task=method.answer).name == "train"


def test_a_work_without_a_name_needs_one() -> None:
    method = FedAvg()
    task = partial(method.train)
    for nameless in (task, lambda down, state, context: task(down, state, context)):
        with pytest.raises(ConfigurationError, match=r"Round.name = .*expected an identifier such as 'train'"):
            Round(method.broadcast, nameless)
        assert Round(method.broadcast, nameless, name="fit").name == "fit"
    with pytest.raises(ConfigurationError, match=r"Round.name = 'base.train'"):
        Round(method.broadcast, method.train, name="base.train")


def test_a_method_of_version_0_1_works_as_it_is_and_draws_as_it_did(tmp_path: Path) -> None:
    """Its rounds have no names, and its wrapper hands on those of its base."""
    drawn = []

    @dataclass(frozen=True)
    class Old(FedAvg):
        def schedule(self) -> Iterable[Round]:
            for _ in range(self.rounds):
                yield Round(self.broadcast, self.fit, self.aggregate)

        def fit(self, down: Payload, state: State, context: SiloContext) -> tuple[Update, State]:
            drawn.append(int(caveat.core.random.torch.default_generator.initial_seed()))
            return self.train(down, state, context)

    @dataclass(frozen=True)
    class Around(Wrapper):
        def schedule(self) -> Iterable[Round]:
            yield from self.base.schedule()

    federation = Federation(Around(Old(rounds=2, training=ADAM)), tmp_path)
    federation.run()
    assert [done.step.name for done in federation.done] == ["fit", "fit"]
    assert drawn == [key(0, "fit", t, silo) for t in range(2) for silo in ("silo-2", "silo-1", "silo-0")]


# Orders


def test_orders_say_the_same_words_as_in_version_0_1() -> None:
    """A silo's app, and its ledger, may be of that version. Temperatures are found otherwise since, by another word."""
    method = Evaluated(Switched(TemperatureScaled(FedBABU(rounds=2))))
    words = ["base.base.base.train"] * 2 + ["base.base.base.personalise"] + ["base.base.temperature"]
    assert [step.address for step in method.schedule()][: len(words)] == words
    assert [*method.schedule()][-1].address == "base.calibrate"
    private = Evaluated(Private(FedBABU(rounds=2), clip_norm=1.0, noise_multiplier=1.0, silos=3))
    assert [step.address for step in private.schedule()] == ["base.train"] * 2 + ["base.base.personalise"]
    assert [*method.evaluations] == ["validation", "test"]


@pytest.mark.parametrize("address", ["train", "base.base.train", "base.answer", "base.validation", "", "__class__"])
def test_only_works_of_rounds_and_evaluations_can_be_ordered(tmp_path: Path, address: str) -> None:
    place = executor(Private(FedAvg(rounds=2, training=ADAM), clip_norm=1.0, noise_multiplier=0.1, silos=3), tmp_path)
    with pytest.raises(RunError, match="neither a task of a round nor an evaluation"):
        place.perform(0, address, {}, "silo-0", None)


def test_rounds_of_one_name_may_have_works_of_their_own(tmp_path: Path) -> None:
    """An order is of a round: its work is taken, and that of another one only where there is no such round."""
    asked = []

    @dataclass(frozen=True)
    class Counting(FedAvg):
        def schedule(self) -> Iterable[Round]:
            for t in range(self.rounds):
                yield Round(self.broadcast, partial(self.note, t), self.aggregate, name="train")

        def note(self, t: int, down: Payload, state: State, context: SiloContext) -> tuple[Update, State]:
            asked.append(t)
            return self.train(down, state, context)

    federation = Federation(Counting(rounds=3, training=ADAM), tmp_path)
    federation.run()
    assert asked == [0] * 3 + [1] * 3 + [2] * 3
    federation.place.perform(7, "base.train", federation.method.broadcast(federation.server), "silo-0", None)
    assert asked[-1] == 0


def test_no_evaluation_can_be_in_a_schedule(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Peeking(FedAvg):
        def schedule(self) -> Iterable[Round]:
            yield Round(self.broadcast, self.peek, self.aggregate, name="train")

        @evaluation
        def peek(self, down: Payload, state: State, context: SiloContext) -> tuple[Update, State]:
            raise NotImplementedError

    with pytest.raises(ConfigurationError, match="task 'train' is in the schedule, but accesses the test split"):
        Federation(Peeking(), tmp_path).run()
