"""`benchmarks/tune_board.py`: every rate is tried, also for rows whose rates the package's settings contain."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

import pytest
from tune_board import MARK, deal, keep_untuned, rates, validation_nll

from caveat.bench.settings import SETTINGS, read_settings


def test_rates_from_an_earlier_tuning_are_not_used_for_the_rates_to_try() -> None:
    settings, name = read_settings(SETTINGS), "lite-cancer"
    assert "lr" in settings.settings["fedavg"].federations[name].training
    federation = deal(name, Path("."), 100, 1)
    found = [validation_nll(settings, name, federation, "fedavg", rate, 100) for rate in rates(federation)]
    assert len(set(found)) == len(found) == 3


def test_a_folder_has_trials_of_one_file_of_settings_whose_rates_may_change(tmp_path: Path) -> None:
    settings, out = tmp_path / "mine.toml", tmp_path / "out"
    out.mkdir()
    settings.write_text(f"rows = []\n\n{MARK}\nlr = 1\n")
    keep_untuned(settings, out)
    settings.write_text(f"rows = []\n\n{MARK}\nlr = 2\n")
    keep_untuned(settings, out)
    settings.write_text(f'rows = ["fedavg"]\n\n{MARK}\nlr = 2\n')
    with pytest.raises(SystemExit, match="has trials with other settings"):
        keep_untuned(settings, out)
