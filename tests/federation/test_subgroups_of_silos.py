"""Promises by subgroup in a federation whose silos read their own tables, and what a silo refuses to tell of them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hospitals import Federation, summary

from caveat import data, load
from caveat.config import load as load_config
from caveat.core import Refused
from caveat.federation.refusals import check_counts

UNCERTAINTY = """
[uncertainty]
policy = "guaranteed"
guarantee_scope = "{scope}"
risk = 0.4
set_coverage = 0.9
"""


@pytest.mark.parametrize("scope", ["federation", "silo"])
def test_promises_by_subgroup_are_the_same_over_flower_as_on_one_machine(scope: str, tmp_path: Path) -> None:
    federation = Federation(tmp_path, "fedavg", more=UNCERTAINTY.format(scope=scope))
    config = tmp_path / "config.toml"
    wanted = 'target = "outcome"\nsubgroups = "age"\nsubgroup_edges = [1.0]\n'
    config.write_text(config.read_text().replace('target = "outcome"\n', wanted))
    federation.config = load_config(str(config))
    there, here = summary(federation.serve()), summary(federation.embedded())
    assert [each["name"] for each in there["subgroups"]] == ["age < 1", "age >= 1"]
    for key in ("guarantee", "sets", "subgroups", "pooled"):
        assert there[key] == here[key]
    run = load(federation.kept("coast"))
    found = data.noted_inputs(federation.homes["coast"] / "coast.csv", run.preparation, "coast")
    assert found.subgroup is not None
    ages = [float(row.split(",")[0]) for row in (federation.homes["coast"] / "coast.csv").read_text().splitlines()[1:]]
    assert found.subgroup.tolist() == [int(age >= 1) for age in ages]
    prediction = run.predictor("coast")(found)
    assert prediction.subgroup is not None


def test_few_rows_of_a_subgroup_leave_only_where_the_silo_allows_it() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(400, 2)).astype(np.float32), np.arange(400) % 2
    rare = np.where(np.arange(400) < 12, "x", "y")
    silos = data.from_arrays({"a": (x, y)}, subgroups={"a": rare})
    file: Any = SimpleNamespace(small_counts=False, silo="a", path="a/silo.toml")
    with pytest.raises(
        Refused, match=r"fewer than 5 rows of subgroup 'subgroup = x'; set data.small_counts = true in a/"
    ):
        check_counts(silos, file)
    file.small_counts = True
    check_counts(silos, file)
    file.small_counts = False
    check_counts(data.from_arrays({"a": (x, y)}), file)
