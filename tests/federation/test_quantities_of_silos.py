"""A federation over Flower that predicts a quantity or a time: bars from sums of silos, the bits of one machine, and
what leaves a silo."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from commands import caveat as cli
from federations import assert_same
from hospitals import NAMES, Federation, Notes, losing, summary

import caveat
from caveat.config import load
from caveat.core import ConfigurationError, DataError, Refused, RunError
from caveat.core.silo import SiloInfo
from caveat.data.agreement import own_schema, own_silos, shared_schema
from caveat.data.quantities import checked_sums, kind_of, own_sums, rows_told, summed
from caveat.data.settings import DataSettings
from caveat.federation.refusals import check_grid
from caveat.federation.request_terms import Terms
from caveat.federation.server.app import deliver
from caveat.federation.server.membership import OpenMembership
from caveat.federation.silo.member import SiloSide
from caveat.federation.silo.silo_file import read_silo_file
from caveat.files import read_payload
from caveat.uncertainty import binned_distributions as binned

KINDS = ("quantity", "standardized", "time")


def newest(federation: Federation) -> caveat.Config:
    return load(str(federation.folder / "config.toml"), ["engine.keep_checkpoints=1"])


def side(federation: Federation, name: str) -> SiloSide:
    return SiloSide(read_silo_file(federation.homes[name] / "silo.toml"))


@pytest.mark.long
@pytest.mark.parametrize("method", ["fedavg", "scaffold", "ditto"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_federation_of_separate_silos_is_the_run_of_one_machine(kind: str, method: str, tmp_path: Path) -> None:
    federation = Federation(tmp_path, method, predict=kind)
    run, here = federation.serve(newest(federation)), federation.embedded()
    assert not [note for note in federation.notes if "without" in note or "refused" in note]
    assert_same(read_payload(run / "model" / "model.safetensors"), read_payload(here / "model" / "model.safetensors"))
    assert summary(run) == summary(here)
    assert (run / "rounds.jsonl").read_text() == (here / "rounds.jsonl").read_text()
    assert json.loads((run / "splits.json").read_text()) == json.loads((here / "splits.json").read_text())
    whole = caveat.load(here)
    for name in NAMES:
        there = caveat.load(federation.kept(name))
        x = there.silos.named(name).test.x
        ours, theirs = whole.predictor(name)(x), there.predictor(name)(x)
        assert ours.value.equal(theirs.value)
        assert ours.interval.equal(theirs.interval)
        assert ours.decision.equal(theirs.decision)


@pytest.mark.long
def test_a_server_that_gives_up_continues_with_the_agreed_bars(tmp_path: Path) -> None:
    federation, whole = (Federation(tmp_path / n, "fedavg", quorum=3, predict="time") for n in "ab")
    federation.grid.tamper[federation.node["hill"]] = losing(2)
    with pytest.raises(RunError, match="fewer than the quorum"):
        federation.serve()
    federation.grid.tamper.clear()
    assert "sums" not in (federation.run / "federation.json").read_text()
    assert summary(federation.serve()) == summary(whole.serve())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bounds", [None, (0, 30)])
def test_bars_from_sums_of_silos_are_those_of_one_machine(
    kind: str, bounds: tuple[float, float] | None, tmp_path: Path
) -> None:
    if kind == "standardized" and bounds is not None:
        bounds = (-5, 10)  # standard deviations
    federation = Federation(tmp_path, predict=kind)
    federation.config = replace(federation.config, data=replace(federation.config.data, range=bounds))
    settings = {name: side(federation, name).file.settings(federation.config.data) for name in NAMES}
    schemas = {name: own_schema(each, 3, name, grid=()) for name, each in settings.items()}

    def count(grid: torch.Tensor) -> torch.Tensor:
        edges = tuple(grid.tolist())
        sums = [own_schema(each, 3, name, grid=edges).sums for name, each in settings.items()]
        assert bounds is None or sums == [((each[0][0],),) for each in sums]  # only the number of targets
        return summed(sums, federation.config.data, edges)

    target = kind_of(federation.config.data).counted(count, "outcome", bounds)
    target = replace(target, standardized=kind == "standardized")
    if kind == "time":
        target = replace(target, event="died", horizons=(2.0,))
    shared = shared_schema(schemas, federation.config.data).predicting(target)
    assert type(shared).of_json(shared.to_json()).quantity == target
    sources = ",".join(str(federation.homes[name] / f"{name}.csv") for name in NAMES)
    whole = caveat.data.load(replace(federation.config.data, source=f"csv:{sources}"), 3)
    assert whole.target == target
    for name in NAMES:
        (own,) = own_silos(settings[name], 3, name, shared)
        there = whole.named(name)
        for split in ("train", "validation", "calibration", "test"):
            assert getattr(own, split).x.equal(getattr(there, split).x)
            assert getattr(own, split).y.equal(getattr(there, split).y)
            assert own.values[split].equal(there.values[split])


def test_sums_of_targets_are_checked(tmp_path: Path) -> None:
    data = Federation(tmp_path, predict="quantity").config.data
    good = own_sums(torch.arange(9.0).numpy(), data)
    assert summed([good, good], data, ()).tolist() == [18, 72, 408]
    counts = "sums of targets have counts from {0} to {0}, expected whole numbers from 0 to 1,000,000,000"
    for bad, why in (
        ((), r"sums of targets have shape \(0,\), expected \(1, 3\)"),
        (((1.0, 2),), r"sums of targets have shape \(1, 2\), expected \(1, 3\)"),
        *((((count, 2.0, 3.0),), re.escape(counts.format(f"{count:g}"))) for count in (-1.0, 1.5, 1e12)),
    ):
        with pytest.raises(DataError, match=why):
            summed([good, bad], data, ())


@pytest.mark.parametrize("kind", ["quantity", "time"])
def test_sums_that_no_targets_have_are_refused(kind: str, tmp_path: Path) -> None:
    data = Federation(tmp_path, predict=kind).config.data
    y = torch.arange(9.0)
    y[3] *= -1 if kind == "time" else 1  # censored
    first, edges = own_sums(y.numpy(), data), binned.grid(torch.tensor([9.0, 36.0, 204.0])).tolist()
    cells = torch.tensor(own_sums(y.numpy(), data, edges), dtype=torch.float64)
    assert checked_sums(cells.tolist(), data, edges, first).equal(cells)
    *ahead, n, total, _ = first[0]
    with pytest.raises(DataError, match="the sum of squares does not fit"):
        checked_sums([[*ahead, n, total, 100.0]], data, ())
    if kind == "time":
        with pytest.raises(DataError, match="the sum of times is below 0"):
            checked_sums([[*ahead, n, -total, 204.0]], data, ())
    full = int(cells[0].nonzero()[-1])
    changes = {"does not fit the edges": (1, 50.0), "10 targets, but 9 in the first sums": (0, 2.0)}
    for why, (row, value) in changes.items():
        changed = cells.clone()
        changed[row, full] = value
        changed[1, full] += cells[1, full] * (row == 0)
        with pytest.raises(DataError, match=why):
            checked_sums(changed.tolist(), data, edges, first)
    with pytest.raises(DataError, match="their total differs from the first sums"):
        checked_sums(cells.tolist(), data, edges, ((*ahead, n, 1.0, 204.0),))


def test_bars_come_from_as_many_targets_as_a_silo_trains_on() -> None:
    card = SiloInfo("a", "", {"train": 8, "validation": 1, "calibration": 1, "test": 1}, (6, 2), {"train": 1})
    words = {"card": json.dumps(card.to_json()), "record": "{}"}
    members: Any = SimpleNamespace(
        agreement=SimpleNamespace(classes=("0 to 1", "1 to 2")), silo_infos={}, records={}, note=[].append,
        path=Path("none"),
    )  # fmt: skip
    with pytest.raises(DataError, match="'a' has 9 training examples, but sent sums of 80 targets"):
        OpenMembership.take(members, "a", words, 80)
    assert not members.silo_infos
    y, settings = torch.arange(9.0).numpy(), DataSettings(source="diabetes", predict="quantity")
    assert rows_told(own_sums(y, settings), settings) == 9
    declared = replace(settings, range=(0.0, 10.0))
    assert rows_told(own_sums(y, declared), declared) == 9
    for told in (None, 9):
        OpenMembership.take(members, "a", words, told)
        assert members.silo_infos["a"] == card


@pytest.mark.parametrize("kind", ["quantity", "time"])
@pytest.mark.parametrize("config", [True, False])
@pytest.mark.parametrize("decimal", [".", ","])
def test_a_silo_checks_its_table_before_it_joins(kind: str, config: bool, decimal: str, tmp_path: Path) -> None:
    home = Federation(tmp_path, predict=kind).homes["hill"]
    table, file = home / "hill.csv", home / "silo.toml"
    table.write_text(table.read_text().replace(",", ";").replace(".", decimal))
    file.write_text(file.read_text().replace("[data]\n", f'[data]\nseparator = ";"\ndecimal = "{decimal}"\n'))
    found = cli("data", home / "silo.toml", *(["--config", tmp_path / "config.toml"] if config else []))
    assert found.exit_code == 0, found.output
    assert f"values of {'events' if kind == 'time' and config else 'a quantity'}" in found.output
    assert "all checks of joining a federation passed" in found.output


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "names"), [("quantity", "MAE|without inputs|CRPS"), ("time", "C-index|Brier score|without inputs")]
)
def test_a_delivery_tells_the_figures_of_a_quantity(kind: str, names: str, tmp_path: Path) -> None:
    federation = Federation(tmp_path, "fedavg", predict=kind, start_timeout=60)
    federation.serve()
    progress = Notes()
    deliver(federation.config, federation.grid, federation.run, ["hill"], progress)
    (told,) = [note for note in progress.notes if note.startswith("hill has the model of fedavg: ")]
    assert all(name in told for name in names.split("|")), told


def test_a_grid_of_the_servers_choice_needs_small_counts_even_if_all_counts_are_large(tmp_path: Path) -> None:
    """Counts on two grids that differ in one edge tell single targets."""
    file: Any = SimpleNamespace(small_counts=False, silo="a", path="a/silo.toml")
    with pytest.raises(Refused, match=r"reveals single targets; set data\.small_counts = true in a/silo\.toml"):
        check_grid((0.0, 5.0, 9.0), file)
    check_grid((), file)
    file.small_counts = True
    check_grid((0.0, 5.0, 9.0), file)
    data, edges = Federation(tmp_path, predict="quantity").config.data, torch.linspace(0, 9, 4097).tolist()
    assert sum(own_sums(torch.arange(9.0).numpy(), data, edges)[0]) == 9
    for bad in ((0.0, 5.0, 9.0), edges[::-1], [*edges[:-1], math.inf], [*edges, 10.0]):
        with pytest.raises(DataError, match=r"invalid grid of \d+ edges, expected 4097 finite edges"):
            own_sums(torch.arange(9.0).numpy(), data, bad)


def test_what_a_silo_refuses_to_send_about_its_targets(tmp_path: Path) -> None:
    federation = Federation(tmp_path, predict="quantity")
    terms = Terms("check", federation.config, "scaffold", "", ("coast",))
    assert side(federation, "coast").check_joining(terms).target is not None
    toml = federation.homes["coast"] / "silo.toml"
    toml.write_text(toml.read_text().replace("small_counts = true", ""))
    with pytest.raises(DataError, match="counts of 1 to 4 rows leave the silo only if it allows that"):
        side(federation, "coast").check_joining(terms)
    secure = "secure = true\nrobust = 'off'\n"
    for more in ("[privacy]\nclip_norm = 1\nnoise_multiplier = 1\n", secure):
        there = Federation(tmp_path / more[:6].strip("["), predict="quantity", more=more)
        with pytest.raises(ConfigurationError, match=r"data\.range is missing"):
            there.serve()
        with pytest.raises(DataError, match=r"a quantity needs data\.range"):
            side(there, "coast").introduce(Terms("check", there.config, "scaffold", "", ()))
