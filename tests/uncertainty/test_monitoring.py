"""False alarms of monitors are as rare as promised, and changes are noticed."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from caveat.uncertainty.monitoring import ColumnMonitor, KnownValues, OutcomeMonitor, RankMonitor, weight

RATE = 0.05


def ever(n: int, inputs: int, redraws: int, rate: float, seed: int = 0) -> float:
    """The share of redraws of n calibration inputs and a stream like them in which there is ever an alarm."""
    rng = np.random.default_rng(seed)
    known, monitor, alarmed = (
        np.sort(rng.random((redraws, n)), 1),
        RankMonitor(n, rate, redraws),
        np.zeros(redraws, bool),
    )
    for _ in range(inputs):
        new = rng.random((redraws, 1))
        monitor.add(1 + (known < new).sum(1))
        alarmed |= monitor.evidence >= 1 / rate
    return float(alarmed.mean())


def largest(rate: float, redraws: int) -> float:
    """The share of alarms that true promises exceed once in 1,000 tests."""
    return rate + 3.1 * math.sqrt(rate * (1 - rate) / redraws)


def test_the_weights_of_all_beginnings_are_less_than_one() -> None:
    assert sum(map(weight, range(10**5))) + 0.93 / math.log(10**5) < 1


@pytest.mark.parametrize("n", [20, 50, 200])
def test_clean_inputs_hardly_ever_raise_an_alarm(n: int) -> None:
    assert ever(n, 400, 1000, RATE) <= largest(RATE, 1000)


@pytest.mark.long
@pytest.mark.parametrize("n", [20, 200])
def test_nor_do_ten_thousand(n: int) -> None:
    """`benchmarks/watch.py` has 100,000, with real p-values."""
    assert ever(n, 10**4, 1000, 0.01) <= 0.02


def delay(n: int, clean: int, share: float, *, redraws: int = 40, most: int = 1000) -> np.ndarray:
    """Inputs until the alarm, after `clean` clean ones, if a share of them has the lowest rank; `most` for none."""
    rng = np.random.default_rng(1)
    known, monitor = np.sort(rng.random((redraws, n)), 1), RankMonitor(n, 0.01, redraws)
    found = np.full(redraws, most)
    for t in range(clean + most):
        ranks = 1 + (known < rng.random((redraws, 1))).sum(1)
        foreign = (rng.random(redraws) < share) & (t >= clean)
        monitor.add(np.where(foreign, 1, ranks))
        alarmed = monitor.evidence >= 100
        found = np.where(alarmed & (found == most) & (t >= clean), t + 1 - clean, found)
        if (found < most).all():
            break
    return found


def test_foreign_inputs_are_noticed_soon() -> None:
    assert np.median(delay(50, 0, 1.0)) <= 8
    assert np.median(delay(50, 1000, 0.5)) <= 20
    assert np.median(delay(200, 1000, 0.1)) <= 250


def test_a_change_from_the_first_input_on_is_not_absorbed() -> None:
    """With few calibration inputs it is; bets against a fixed bound need more of them."""
    assert (delay(200, 0, 0.1) < 1000).mean() >= 0.9


def known(rows: np.ndarray) -> list[KnownValues]:
    present = [column[~np.isnan(column)] for column in rows.T]
    return [KnownValues(tuple(np.sort(each)), len(rows) - len(each)) for each in present]


def draw(rng: np.random.Generator, count: int) -> np.ndarray:
    """Rows of a number, a number that is often missing, one of few values, and a flag."""
    x = np.stack(
        [rng.normal(50, 9, count), rng.normal(5, 1, count), rng.integers(0, 4, count), rng.random(count) < 0.1]
    )
    x[1, rng.random(count) < 0.1] = np.nan
    return x.T


def first_alarm(monitor: ColumnMonitor, rows: np.ndarray, rate: float) -> int:
    for t, row in enumerate(rows):
        monitor.add(row)
        if monitor.evidence >= 1 / rate:
            return t + 1
    return 0


def test_columns_raise_few_false_alarms_with_ties_and_missing_values() -> None:
    rng = np.random.default_rng(2)
    alarms = [first_alarm(ColumnMonitor(known(draw(rng, 40)), seed), draw(rng, 100), 0.2) > 0 for seed in range(60)]
    assert np.mean(alarms) <= largest(0.2, 60)


@pytest.mark.parametrize(("column", "values"), [(0, True), (1, True), (1, False)])
def test_the_column_that_changed_is_named_with_the_time(column: int, values: bool) -> None:
    rng, found = np.random.default_rng(3), []
    for seed in range(10):
        monitor = ColumnMonitor(known(draw(rng, 97)), seed)
        rows = draw(rng, 160)
        rows[100:, column] = rows[100:, column] / 38.67 if values else np.nan
        at = first_alarm(monitor, rows, 0.01)
        right = (int(monitor.by_column.argmax()), monitor.of_values(column)) == (column, values)
        found.append(100 < at <= 140 and right and abs(monitor.change(column) - 100) <= 15)
    assert sum(found) >= 9


def test_more_errors_than_promised_are_noticed_and_as_many_are_not() -> None:
    rng = np.random.default_rng(4)
    alarms, delays = [], []
    for _ in range(100):
        monitor = OutcomeMonitor(0.05)
        wrong = rng.random(200) < 0.05
        alarms.append(any(monitor.add(bool(each)) or monitor.evidence >= 20 for each in wrong))
        monitor, t = OutcomeMonitor(0.05), 0
        while monitor.evidence < 100:
            monitor.add(bool(rng.random() < 0.2))
            t += 1
        delays.append(t)
    assert np.mean(alarms) <= largest(0.05, 100)
    assert np.median(delays) <= 60


def test_a_monitor_continues_from_its_state_with_the_same_bits() -> None:
    rng = np.random.default_rng(5)
    ranks = rng.integers(1, 122, 60)
    whole, first, second = (RankMonitor(120, 0.01) for _ in range(3))
    for rank in ranks:
        whole.add(rank)
    for rank in ranks[:30]:
        first.add(rank)
    second.restore(json.loads(json.dumps(first.state())))
    for rank in ranks[30:]:
        second.add(rank)
    assert second.state() == whole.state()
    with pytest.raises(ValueError, match="expected t, counts, urn"):
        RankMonitor(20, 0.01).restore(first.state())


@pytest.mark.parametrize("rank", [0, 22])
def test_an_impossible_rank_is_refused(rank: int) -> None:
    with pytest.raises(ValueError, match="expected a rank from 1 to 21"):
        RankMonitor(20, 0.01).add(rank)


def test_the_mean_time_between_false_alarms_is_at_least_as_promised() -> None:
    rng, between, alarms, inputs = np.random.default_rng(6), 100, 0, 0
    for _ in range(60):
        known, monitor = np.sort(rng.random(30)), RankMonitor(30, 0.01, endless=True)
        for _ in range(300):
            monitor.add(1 + int((known < rng.random()).sum()))
            inputs += 1
            if monitor.evidence >= between:
                alarms += 1
                monitor.begin_anew()
                assert monitor.evidence == 0
    assert inputs / max(alarms, 1) >= between


def test_intervals_of_few_calibration_inputs_are_watched_on_average_over_these() -> None:
    """The misses of some calibration samples exceed the promise, which is one on average over them."""
    rng, n, risk = np.random.default_rng(0), 20, 0.1
    alarms = {"urn": 0, "fixed": 0}
    for _ in range(100):
        limit = np.sort(rng.random(n))[n - 2]  # two of 21 are above it
        monitors = {"urn": OutcomeMonitor(risk, n), "fixed": OutcomeMonitor(risk)}
        for miss in rng.random(300) > limit:
            for monitor in monitors.values():
                monitor.add(bool(miss))
        for name, monitor in monitors.items():
            alarms[name] += int(monitor.evidence >= 20)
    assert alarms["urn"] <= 5 < alarms["fixed"]
    monitor = OutcomeMonitor(risk, n)
    for miss in rng.random(100) < 0.7:
        monitor.add(bool(miss))
    assert monitor.evidence > 100
