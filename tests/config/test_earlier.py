"""Configurations that version 0.1 wrote in full: what it left out is as it was by default then."""

from __future__ import annotations

from pathlib import Path

import pytest

from caveat.config import Config, dump, load, load_kept, loads_kept
from caveat.config.earlier import completed, wrote

OLD = Path(__file__).parents[1] / "fixtures" / "v0_1"
KEPT = OLD / "interrupted" / "config.toml"


def both(config: Config) -> tuple[bool, bool]:
    return config.uncertainty.temperature, config.uncertainty.familiarity


def test_what_a_folder_keeps_is_read_by_the_defaults_of_the_version_that_wrote_it(tmp_path: Path) -> None:
    assert both(load()) == (True, True)
    assert both(load_kept(KEPT)) == (False, False)
    assert both(loads_kept(KEPT.read_text(), "terms")) == (False, False)
    assert both(load_kept(KEPT, ["uncertainty.familiarity=true"])) == (False, True)
    measured = KEPT.read_text().replace("temperature = false", "temperature = true")
    assert both(loads_kept(measured, "terms")) == (True, False)
    (tmp_path / "config.toml").write_text(dump(load()))
    assert both(load_kept(tmp_path / "config.toml")) == (True, True)
    assert [wrote(file) for file in (KEPT, tmp_path / "config.toml", tmp_path / "none.toml")] == [True, False, False]
    assert loads_kept(dump(load_kept(KEPT)), "what was written again") == load_kept(KEPT)


@pytest.mark.parametrize(("sets", "found"), [([], (False, False)), (["uncertainty.temperature=true"], (True, False))])
def test_what_leaves_keys_out_has_them_by_the_rules_of_what_is_to_go_on(
    sets: list[str], found: tuple[bool, bool]
) -> None:
    assert both(load(str(OLD / "table.toml"), sets, earlier=True)) == found


def test_what_is_kept_of_uncertainty_is_completed_where_keys_were_not_known() -> None:
    assert completed({"temperature": True, "risk": 0.1}) | {"alarm": 0, "mc_samples": 0} == {
        "mc_samples": 0, "source": None, "members": None, "temperature": True, "familiarity": False, "alarm": 0,
        "policy": None, "score": None, "outliers": None, "abstain": None, "ambiguous": None, "risk": 0.1,
        "confidence": None, "per": None, "familywise": None, "sets": None,
    }  # fmt: skip
    assert completed({"familiarity": True}) == {"familiarity": True}
