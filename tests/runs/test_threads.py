"""Threads of one process: predictions and runs are what they are alone."""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread
from typing import Any

import numpy as np
import pytest
import torch

import caveat
from caveat.core import Prediction


def small(method: Any, seed: int = 0) -> caveat.Run:
    silos = caveat.data.rotated(caveat.data.digits(), angles=(0, 90), silos_per_angle=1, seed=0)
    model = caveat.ModelSettings(name="mlp", width=16, hidden=16)
    return caveat.run(silos, method, model=model, seed=seed, every=1000)


def together(work: Callable[[int], None], threads: int) -> None:
    failed: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            failed.append(error)

    every = [Thread(target=guarded, args=(number,)) for number in range(threads)]
    for each in every:
        each.start()
    for each in every:
        each.join()
    assert not failed, failed


@pytest.mark.parametrize("method", [caveat.FedAvg(rounds=2), caveat.FedPN(rounds=2, layers=2, personal_steps=5)])
def test_predictions_of_several_threads_are_those_of_one(method: Any) -> None:
    run = small(method)
    ask = {silo.name: run.predictor(silo.name) for silo in run.silos}
    rows = {silo.name: silo.test.x[:20] for silo in run.silos}
    alone = {name: [ask[name](x[i : i + 1]) for i in range(len(x))] for name, x in rows.items()}
    wrong: list[tuple[str, int]] = []

    def same(found: Prediction, expected: Prediction) -> bool:
        return torch.equal(found.probs, expected.probs) and torch.equal(
            found.p_values["familiarity"], expected.p_values["familiarity"]
        )

    def work(number: int) -> None:
        draws = np.random.default_rng(number)
        for _ in range(50):
            name, i = str(draws.choice([*rows])), int(draws.integers(20))
            if not same(ask[name](rows[name][i : i + 1]), alone[name][i]):
                wrong.append((name, i))

    threads = torch.get_num_threads()
    together(work, 4)
    assert not wrong
    assert torch.get_num_threads() == threads


def test_runs_of_several_threads_have_the_bits_of_runs_alone() -> None:
    alone = [small(caveat.FedAvg(rounds=2), seed).summary["mean"] for seed in (0, 1)]
    found: dict[int, Any] = {}

    def work(seed: int) -> None:
        found[seed] = small(caveat.FedAvg(rounds=2), seed).summary["mean"]

    together(work, 2)
    assert [found[0], found[1]] == alone
