"""What a run will cost is known before it: exactly where it can be, and without leaving anything behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import TINY, caveat, files, one_error, sets
from own_runs import three_silos
from torch import Tensor, nn

import caveat as library
from caveat.core import ConfigurationError, Data, Silo
from caveat.data.silo_collection import Silos, population
from caveat.files import read_sent
from caveat.runs.plan.counts import Fit, Sizes, phases
from caveat.runs.plan.estimate import Estimate, MethodCost, makespan
from caveat.runs.plan.rehearsal import Bytes, Measuring, Rehearsal, Rehearsed
from caveat.runs.spec import RunSpec
from caveat.training.fit import _WATCHER, Training

ADAM = Training(batch_size=8, lr=0.01)
SMALL = library.ModelSettings(name="mlp", width=4, features=4, hidden=4)
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "moments from the second round on": (
        library.FedPN(rounds=3, training=ADAM, layers=2, personal_epochs=2, personal_steps=5),
        {},
    ),
    "members that begin one after the other": (
        library.FedAvg(rounds=2, training=ADAM),
        {"uncertainty": library.Uncertainty(source="ensemble", ensemble_size=3), "every": 2},
    ),
    "models of silos' own": (
        library.FML(rounds=2, training=ADAM),
        {
            "personal": [library.PersonalModel(name="mlp", width=8)],
            "uncertainty": library.Uncertainty(set_coverage=0.9),
        },
    ),
    "a share of the silos": (
        library.SCAFFOLD(rounds=4, training=Training(batch_size=8, local_epochs=1.5, optimizer="sgd", lr=0.1)),
        {"participation": 0.5, "n_silos": 2, "splits": ("validation", "test")},
    ),
}


@pytest.fixture(scope="module")
def silos() -> Silos:
    return three_silos()


def sent_in(cost: MethodCost) -> list[float]:
    """Bytes of rounds from silos and to them, and of figures, at the most."""
    rounds = ("training", "after training")
    totals = cost.total("total_up", *rounds), cost.total("total_down", *rounds), cost.total("total_up", "evaluation")
    return [total.most for total in totals]


# What a run then takes


@pytest.mark.parametrize("case", CASES)
def test_bytes_are_those_of_the_run(silos: Silos, tmp_path: Path, case: str) -> None:
    method, given = CASES[case]
    cost = library.plan(silos, method, model=SMALL, **given).methods[0]
    run = library.run(silos, method, model=SMALL, out=tmp_path / "run", **given)
    traffic, ledger = run.summary["traffic"], read_sent(run.folder / "ledger.jsonl")
    assert ledger is not None
    assert sent_in(cost) == [traffic["bytes_up"], traffic["bytes_down"], ledger.total.measuring]
    assert cost.total("rounds", "training") == (run.summary["rounds_run"],) * 2


def test_a_run_that_may_end_early_is_a_range(silos: Silos, tmp_path: Path) -> None:
    method = library.UEFL(
        rounds=2, extra_rounds=1, iterations=3, codewords=4, segments=2, until="certain", threshold=9, training=ADAM
    )
    cost = library.plan(silos, method, model=SMALL).methods[0]
    run = library.run(silos, method, model=SMALL, out=tmp_path / "run")
    assert run.summary["rounds_run"] == 2
    assert cost.total("rounds", "training") == (2, 4)
    assert cost.total("total_up", "training", "after training").least == run.summary["traffic"]["bytes_up"]
    assert cost.seconds.least < cost.seconds.most


def test_so_is_one_that_stops_when_it_learns_no_more(silos: Silos) -> None:
    method = library.FedAvg(rounds=20, training=ADAM)
    cost = library.plan(silos, method, model=SMALL, early_stopping_patience=2, every=3).methods[0]
    assert cost.total("rounds", "training") == (9, 20)


@pytest.mark.parametrize(
    "given", [{}, {"local_epochs": 3}, {"local_epochs": 2.3}, {"local_epochs": 0.1}, {"local_steps": 7}]
)
def test_steps_are_counted_as_training_has_batches(given: dict[str, Any]) -> None:
    training = Training(batch_size=4, **given)
    fit = Fit(training.local_epochs, training.local_steps, 4, done=1, seconds=0)
    for examples in range(2, 30):
        assert fit.count(examples) == len(list(training.batches(examples)))


# What it leaves behind, and what it carries out


class Counted(nn.Module):
    """Counts the batches that it trains on."""

    batches = 0

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 6)

    def forward(self, x: Tensor) -> Tensor:
        Counted.batches += self.training
        out: Tensor = self.linear(x)
        return out


def test_few_steps_are_carried_out_and_all_are_counted(silos: Silos) -> None:
    training = Training(batch_size=8, local_steps=200_000)
    model = library.ModelSettings(encoder=Counted, hidden=0)
    cost = library.plan(silos, library.FedAvg(rounds=1, training=training), model=model).methods[0]
    assert cost.total("total_steps") == (600_000, 600_000)
    assert 0 < Counted.batches < 200_000  # fewer than those of one call, however fast the machine is
    assert _WATCHER.get() is None  # a run after it trains on all


def test_few_silos_of_a_population_are_made() -> None:
    made = set[int]()

    def make(number: int, name: str) -> Silo:
        made.add(number)
        x = torch.randn(12, 2, generator=torch.Generator().manual_seed(number))
        data = Data(x, torch.arange(12) % 2)
        return Silo(name, "", data, data, data, data)

    many = population(100_000, make, ["no", "yes"])
    training = Training(batch_size=4)
    cost = library.plan(
        many, library.FedAvg(rounds=3, training=training), model=SMALL, participation=0.0005, n_silos=20
    ).methods[0]
    assert (cost.silos, cost.looked_at, cost.examples) == (100_000, 50, (12, 12, 12))
    assert [each.silos for each in cost.phases if each.name in ("train", "evaluate test")] == [50, 20]
    assert len(made) < 100


def test_rows_of_a_frozen_encoder_are_not_kept(silos: Silos, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAVEAT_CACHE", str(tmp_path / "cache"))

    def encoder() -> nn.Module:
        return nn.Sequential(nn.Linear(2, 6), nn.ReLU())

    model = library.ModelSettings(encoder=encoder, frozen=True, hidden=0)
    cost = library.plan(silos, library.FedAvg(rounds=2, training=ADAM), model=model).methods[0]
    assert cost.seconds_encoding > 0
    assert cost.total("total_steps").most > 0
    assert not (tmp_path / "cache").exists()


# The command


def test_the_command_writes_nothing_and_fits_80_columns(nowhere: Path) -> None:
    own = ["method.name=uefl", "method.codewords=4", 'method.until="certain"', "method.iterations=2", "rounds=12"]
    result = caveat("plan", *sets(*TINY, *own))
    assert result.exit_code == 0, result.stderr
    assert files(nowhere) == set()
    assert all(len(line.rstrip()) <= 80 for line in result.stdout.splitlines())
    for word in ("train", "temperature", "familiarity", "evaluate test", "total", "memory"):
        assert word in result.stdout


def test_json_holds_all_methods_with_the_rounds_of_the_first(nowhere: Path) -> None:
    own = ["method.name=uefl", "method.codewords=4", "method.iterations=2", "method.extra_rounds=1", "rounds=2"]
    result = caveat("plan", *sets(*TINY, *own, 'baselines=["fedavg"]'), "--json")
    found = json.loads(result.stdout)
    rounds = [[each["rounds"] for each in method["phases"] if each["name"] == "train"] for method in found["methods"]]
    assert rounds == [[[3, 3]], [[3, 3]]]
    assert found["seconds"][1] == pytest.approx(sum(method["seconds"][1] for method in found["methods"]))


@pytest.mark.parametrize(
    "bad", ["model.name=lenet6", "federation.min_silos=9", "data.n_silos=2000", "engine.name=flower"]
)
def test_what_a_run_refuses_is_refused_alike(nowhere: Path, bad: str) -> None:
    run, plan = (caveat(command, *sets(*TINY, bad)) for command in ("run", "plan"))
    assert one_error(plan, run.exit_code) == one_error(run, run.exit_code)
    assert files(nowhere) == set()


def test_so_is_a_bad_call(silos: Silos) -> None:
    with pytest.raises(ConfigurationError, match="min_silos"):
        library.plan(silos, library.FedAvg(training=ADAM), model=SMALL, min_silos=4)


# Sums


def estimate(method: library.FedAvg, gain: float | None = None) -> Estimate:
    """Four silos of 10, 10, 20 and 40 examples on two workers; a step takes 1 s, a silo 2 s more, an evaluation 3 s."""
    (train,) = phases(method)
    fit = Fit(None, None, 10, done=3, seconds=2)
    message = Bytes(down=8, up=4)
    found = Rehearsed(
        phase=train, first=Bytes(2, 1), message=message, seconds=1, fits=(fit, fit), asked=2, extra=0, server=0.5,
        books=0.25, measuring={"validation": Measuring(3, message)},
    )  # fmt: skip
    whole = Rehearsal(
        phases=(found,), final={"test": Measuring(5, message)}, end=0, once=7, workers=2, parameters=1,
        parent=100, worker=10, server=8, kept=6, gain=gain,
    )  # fmt: skip
    sizes = Sizes({name: {"train": n} for name, n in zip("abcd", (10, 10, 20, 40), strict=True)}, 4, bytes=20)
    return Estimate(RunSpec(method=method, model=SMALL), whole, sizes)


def test_seconds_are_those_of_the_last_worker() -> None:
    # Steps 1, 1, 2, 4 of which the first one is within a silo's own second; the largest first: 4 | 2 + 1 + 1.
    assert makespan([1, 1, 2, 4], 2) == 4
    found = estimate(library.FedAvg(rounds=6)).cost(2)
    train, validation, test = found.phases
    assert train.seconds.most == 6 * (4 + 4 * 0.5 + 0.25)
    assert train.steps == (1, 1, 4)
    assert train.total_steps.most == 6 * 8
    assert train.total_up.most == 4 * (1 + 5 * 4)
    assert train.total_down.most == 4 * (2 + 5 * 8)
    assert (validation.seconds.most, test.seconds.most) == (6 * 2 * 3, 2 * 5)
    assert found.seconds.most == train.seconds.most + 36 + 10 + 7


def test_memory_is_that_of_all_processes_and_disk_that_of_two_rounds() -> None:
    needs = estimate(library.FedAvg(rounds=6)).cost(2).needs
    assert needs.replies == 4 * 4 + 2 * 4  # all four replies, and their sums
    assert needs.total == 100 + 2 * 10 + needs.replies
    assert needs.disk == 2 * 6 * 4 + 2 * 8
    assert needs.data == 20


# Vectorized silos


def test_rounds_of_training_take_as_much_less_as_vectorized_silos_are_faster() -> None:
    train, *measured = estimate(library.FedAvg(rounds=6)).phases()
    less, *others = estimate(library.FedAvg(rounds=6), gain=4.0).phases()
    assert others == measured
    server = 6 * (4 * 0.5 + 0.25)  # which no silo is faster by
    assert less.seconds.most == pytest.approx(server + (train.seconds.most - server) / 4)


@pytest.mark.parametrize("vectorized", ["off", "auto"])
def test_few_silos_are_planned_one_by_one(vectorized: Any, silos: Silos) -> None:
    assert library.plan(silos, library.SCAFFOLD(), model=SMALL, rounds=5, vectorized=vectorized).methods[0].gain is None


@pytest.mark.parametrize(("method", "vectorized"), [(library.SCAFFOLD(), True), (library.FedRoD(), False)])
def test_silos_are_planned_as_they_are_trained(method: Any, vectorized: bool, silos: Silos, nowhere: Path) -> None:
    gain = library.plan(silos, method, model=SMALL, rounds=2, vectorized="on").methods[0].gain
    assert (gain is not None and gain > 0) == vectorized
    assert files(nowhere) == set()


def test_the_command_takes_what_run_takes(nowhere: Path) -> None:
    done = caveat("plan", *sets(*TINY), "--device", "cpu", "--vectorized", "on")
    assert done.exit_code == 0, done.output
    assert "vectorized training rounds are " in done.stdout
    assert 'engine.vectorized = "some"' in one_error(caveat("plan", *sets(*TINY), "--vectorized", "some"), 2)
    assert "engine.device = 'meta'" in one_error(caveat("plan", *sets(*TINY), "--device", "meta"), 2)
