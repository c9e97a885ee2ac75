"""`benchmarks/tune_board.py`: every rate is tried, also for rows whose rates the package's settings contain."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

from tune_board import deal, rates, validation_nll

from caveat.bench.settings import SETTINGS, read_settings


def test_rates_from_an_earlier_tuning_are_not_used_for_the_rates_to_try() -> None:
    settings, name = read_settings(SETTINGS), "lite-cancer"
    assert "lr" in settings.settings["fedavg"].federations[name].training
    federation = deal(name, Path("."), 100, 1)
    found = [validation_nll(settings, name, federation, "fedavg", rate, 100) for rate in rates(federation)]
    assert len(set(found)) == len(found) == 3
