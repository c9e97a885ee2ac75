"""The figures of the leaderboard, its statistics, its rule for defaults, and what its files refuse."""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import caveat as command
from commands import one_error
from scipy.stats import binom, permutation_test
from sklearn.metrics import log_loss, roc_auc_score

from caveat.bench.board import Board, CellFigures, improvements, over_federations, sign_flips
from caveat.bench.cell_files import CellPlace, cell_files, read_cell, write_cell
from caveat.bench.cell_metrics import figures
from caveat.bench.federations import FEDERATIONS, FURTHER, LITE, TABLE, BoardFederation, Dealt, deal, made
from caveat.bench.images import skewed
from caveat.bench.page import markdown, write_board
from caveat.bench.plan import plan_table
from caveat.bench.rule import chosen_default, recommendations
from caveat.bench.running import Bench
from caveat.bench.settings import SETTINGS, BoardSettings, read_settings
from caveat.core import DataError
from caveat.terminal.tables import written

N = 40
"""Test inputs of a silo."""


def random_arrays(seed: int, skill: float, sources: Sequence[str] = ("one", "dropout")) -> dict[str, Any]:
    """Scores of two silos; probabilities favour the label by `skill`."""
    rng, arrays = np.random.default_rng(seed), {}
    for silo in ("a", "b"):
        y = rng.integers(3, size=N)
        arrays |= {f"{silo}/y": y.astype(np.int16), f"{silo}/id": np.arange(N) + 1000 * (silo == "b")}
        for source in sources:
            logits = rng.normal(size=(N, 3)) + skill * np.eye(3)[y]
            probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
            place = f"{source}/{silo}/own"
            arrays |= {f"{place}/probs": probs.astype(np.float32), f"{place}/epistemic": np.zeros(N, np.float32)}
            for name in ("typicality", "familiarity", "nearness", "sureness"):
                arrays[f"{place}/{name}"] = rng.random(N).astype(np.float32)
                arrays[f"{source}/{silo}/new/{name}"] = (rng.random(N) / 4).astype(np.float32)
            arrays |= {f"{source}/{silo}/new/{name}": arrays[f"{place}/{name}"] for name in ("probs", "epistemic")}
            arrays |= {f"{place}/answered": rng.random(N) < 0.5, f"{place}/label": probs.argmax(1).astype(np.int16)}
    return arrays


def federation() -> BoardFederation:
    rng = np.random.default_rng(0)
    rows = {name: (rng.normal(size=(200, 4)), rng.integers(3, size=200)) for name in ("a", "b")}
    return made({name: Dealt(x, y, N, {}) for name, (x, y) in rows.items()}, TABLE)


FEDERATION = federation()
COST = {"trainings": 1.0, "up": 10, "down": 20}


def put(
    folder: Path, place: CellPlace, arrays: Mapping[str, Any], seconds: float = 1.0, failed: str | None = None
) -> None:
    (folder / "cells").mkdir(parents=True, exist_ok=True)
    sources = {key.split("/")[0] for key in arrays if key.endswith("own/probs")}
    spent = {"train": 1.0, **dict.fromkeys(sources, seconds)}
    write_cell(place, {}, FEDERATION, folder, dict(arrays), dict.fromkeys(sources, COST), spent, failed)


def settings(**more: Any) -> BoardSettings:
    given = {"rows": ["fedavg"], "lite": ["fedavg"], "reference": "fedavg/dropout", "alone": "local/one", "seeds": [0],
             "lite_seeds": [0], "ensemble_size": 2, "tests": 1}  # fmt: skip
    return BoardSettings(**given | more)


# Figures


def test_the_figures_of_a_silo_are_those_of_independent_computations() -> None:
    arrays = random_arrays(0, 1.0)
    found = figures(arrays)["one"]["silos"]["a"]
    probs, y = arrays["one/a/own/probs"].astype(float), arrays["a/y"]
    probs /= probs.sum(1, keepdims=True)
    wrong, entropy = probs.argmax(1) != y, -(probs * np.log(probs)).sum(1)
    assert found.accuracy == pytest.approx(1 - wrong.mean())
    assert found.nll == pytest.approx(log_loss(y, probs, labels=[0, 1, 2]), rel=1e-6)
    assert found.error_auroc == pytest.approx(roc_auc_score(wrong, entropy))
    # Traub et al., 2024: the mean over thresholds of the share that is answered and wrong; ties and the half of an
    # input's own threshold as in caveat.metrics.
    order = np.argsort(entropy)
    generalized = np.cumsum(wrong[order]) / N
    assert found.augrc == pytest.approx(generalized.mean() - wrong.mean() / 2 / N, abs=1e-9)


def test_alarms_and_promises_are_counted() -> None:
    arrays = random_arrays(1, 1.0)
    found = figures(arrays)["dropout"]["silos"]["b"]
    place = "dropout/b/new"
    alarm = arrays[f"{place}/typicality"] <= 0.05
    first = np.argmin([arrays[f"{place}/{name}"] for name in ("familiarity", "nearness", "sureness")], 0)
    shares = [(alarm & (first == k)).mean() for k in range(3)]
    told = found.alarms["new"]
    assert (told.unfamiliar, told.novel, told.unsure) == pytest.approx(tuple(shares))
    assert "far" not in found.alarms
    answered = arrays["dropout/b/own/answered"]
    wrong = answered & (arrays["dropout/b/own/label"] != arrays["b/y"])
    assert found.guarantee is not None
    assert (found.guarantee.answered, found.guarantee.wrong) == (answered.sum(), wrong.sum())


def test_the_calibration_error_is_over_all_silos_and_beside_that_of_chance() -> None:
    arrays = random_arrays(2, 1.0)
    found = figures(arrays)["one"]["ece"]
    probs = np.concatenate([arrays[f"one/{silo}/own/probs"] for silo in "ab"]).astype(float)
    right = probs.argmax(1) == np.concatenate([arrays[f"{silo}/y"] for silo in "ab"])
    top = probs.max(1)
    bins = np.minimum((top * 15).astype(int), 14)
    gaps = [abs(top[bins == b].sum() - right[bins == b].sum()) for b in range(15)]
    assert found.value == pytest.approx(sum(gaps) / len(top), abs=1e-6)
    rng = np.random.default_rng(5)
    drawn = []
    for _ in range(2000):
        fake = rng.random(len(top)) < top
        drawn.append(sum(abs(top[bins == b].sum() - fake[bins == b].sum()) for b in range(15)) / len(top))
    assert found.chance95 == pytest.approx(np.quantile(drawn, 0.95), rel=0.06)


# Statistics


def test_sign_flips_are_the_exact_permutation_test() -> None:
    means = [3.0, -1.0, 2.5, 4.0, 0.5, 1.0, -0.2]
    expected = permutation_test((means,), np.mean, permutation_type="samples", n_resamples=10**6).pvalue
    assert sign_flips(means) == pytest.approx(expected)
    assert sign_flips([1.0] * 8) == pytest.approx(2 / 2**8)
    assert np.isnan(sign_flips([1.0]))


def test_with_many_federations_the_interval_is_a_bootstrap_over_federations_and_within_them_seeds() -> None:
    rng = np.random.default_rng(3)
    values = {f"f{k}": list(rng.normal(rng.normal(0, 3), 2, size=4)) for k in range(60)}
    found = over_federations(values)
    names, drawn = list(values), []
    for _ in range(5_000):
        chosen = rng.choice(names, len(names))
        drawn.append(np.mean([rng.choice(values[name], 4).mean() for name in chosen]))
    assert found.mean == pytest.approx(np.mean([np.mean(each) for each in values.values()]))
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(drawn, [0.025, 0.975])), abs=0.1)
    assert np.isnan(over_federations({}).mean)


@pytest.mark.parametrize("federations", [3, 10])
def test_intervals_over_few_federations_contain_the_mean_over_all_federations(federations: int) -> None:
    rng, contained = np.random.default_rng(7), 0
    for _ in range(500):
        values = {f"f{k}": list(rng.normal(rng.normal(1, 3), 1, size=5)) for k in range(federations)}
        found = over_federations(values)
        contained += found.low <= 1 <= found.high
    assert contained >= binom.ppf(0.001, 500, 0.95)


def test_a_partition_is_drawn_again_if_a_silo_cannot_fill_a_batch() -> None:
    y = np.repeat(np.arange(4), 100)  # 400 labels for silos of about 120: the last silo has what is left
    drawn = [skewed(y, 3, 120, np.random.default_rng(seed), 0.1) for seed in range(30)]
    enough = [skewed(y, 3, 120, np.random.default_rng(seed), 0.1, fewest=60) for seed in range(30)]
    few = [min(map(len, each)) < 60 for each in drawn]
    assert 0 < sum(few) < 30
    assert all(min(map(len, each)) >= 60 for each in enough)
    for was_few, old, new in zip(few, drawn, enough, strict=True):
        same = all(np.array_equal(a, b) for a, b in zip(old, new, strict=True))
        assert same is not was_few  # partitions with enough are not drawn again
    with pytest.raises(DataError, match="400 samples are too few for 3 silos with at least 140 samples each"):
        skewed(y, 3, 120, np.random.default_rng(0), fewest=140)


# The board


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Six federations and two seeds: `better` is better than FedAvg at half of its time, `local` worse."""
    for k, (name, seed) in enumerate(itertools.product("uvwxyz", (0, 1))):
        put(tmp_path, CellPlace(name, "fedavg", seed), random_arrays(k, 2.0), seconds=3.0)
        put(tmp_path, CellPlace(name, "better", seed), random_arrays(k, 4.0, ("one",)))
        put(tmp_path, CellPlace(name, "local", seed), random_arrays(k, 1.0, ("one",)))
        put(tmp_path, CellPlace(name, "majority", seed), random_arrays(k, 0.0, ("frequencies",)), failed=None)
    return tmp_path


METHODS = ("majority", "local", "pooled", "fedavg", "better")


def board_of(folder: Path, names: str = "uvwxyz", **more: Any) -> Board:
    return Board.read(folder, settings(**more), list(names), METHODS, (0, 1))


def test_a_row_improves_on_the_reference_by_the_mean_over_seeds_and_federations(folder: Path) -> None:
    row = board_of(folder).row("better/one")
    shares = []
    for name in "uvwxyz":
        means = []
        for method, source in (("better", "one"), ("fedavg", "dropout")):
            cells = [json.loads((folder / "cells" / f"{name}.{method}.{seed}.json").read_text()) for seed in (0, 1)]
            silos = [silo["nll"] for cell in cells for silo in cell["sources"][source]["silos"].values()]
            means.append(np.mean(silos))
        shares.append(100 * (1 - means[0] / means[1]))
    assert row.columns["nll"].mean == pytest.approx(np.mean(shares))
    assert row.columns["time"].mean == pytest.approx(2 / 4)
    assert row.columns["nll"].low > 0
    won, lost, undecided = row.wins["nll"]
    assert won >= 1  # two seeds: Student's t has one degree of freedom
    assert (lost, won + undecided) == (0, 6)


def test_the_rule_chooses_the_cheapest_better_row_whichever_federation_is_left_out(folder: Path) -> None:
    for name, seed in itertools.product("uvwxyz", (0, 1)):  # the data at one place, which no federation has
        put(folder, CellPlace(name, "pooled", seed), random_arrays(seed, 5.0, ("one",)), seconds=0.1)
    assert chosen_default(board_of(folder))[0] == "better/one"
    put(folder, CellPlace("u", "better", 0), random_arrays(0, 0.0, ("one",)))
    put(folder, CellPlace("u", "better", 1), random_arrays(1, 0.0, ("one",)))
    # It now loses a federation, and the cheaper source of FedAvg is as good.
    chosen, why = chosen_default(board_of(folder))
    assert chosen != "better/one"
    assert why


def test_the_row_with_the_best_nll_is_recommended_by_difference_between_silos_and_by_time(tmp_path: Path) -> None:
    names = ("digits", "sources", "office", "mnist", "cifar")  # three with domains, two with class shares
    for k, (name, seed) in enumerate(itertools.product(names, (0, 1))):
        put(tmp_path, CellPlace(name, "fedavg", seed), random_arrays(k, 1.0), seconds=3.0)
        put(tmp_path, CellPlace(name, "cheap", seed), random_arrays(k, 3.0, ("one",)))
        put(tmp_path, CellPlace(name, "better", seed), random_arrays(k, 5.0, ("one",)), seconds=5.0)
        put(tmp_path, CellPlace(name, "pooled", seed), random_arrays(k, 5.0, ("one",)))
    methods = ("pooled", "fedavg", "cheap", "better")
    board = Board.read(tmp_path, settings(), names, methods, (0, 1))
    found = {(each.difference, each.most_time): each for each in recommendations(board)}
    chosen = [found["domains", most].row for most in (1.1, 2.0, math.inf)]
    assert chosen == ["cheap/one", "better/one", "better/one"]
    assert {difference for difference, _ in found} == {"any", "domains"}  # two federations are too few
    assert found["domains", 1.1].time == pytest.approx(0.5)
    assert found["domains", 1.1].nll.low > 0
    text, page = write_board(board, "caveat bench")
    assert "| domains | 3 | 1.1 | cheap/one |" in text.read_text()
    assert "Recommended rows" in page.read_text()
    put(tmp_path, CellPlace("office", "cheap", 0), random_arrays(0, 0.0, ("one",)))
    again = recommendations(Board.read(tmp_path, settings(), names, methods, (0, 1)))
    assert again[0].row == "fedavg/dropout"  # the cheap row loses a federation


def test_missing_cells_are_planned_by_the_mean_time_of_existing_ones(folder: Path) -> None:
    put(folder, CellPlace("u", "better", 1), random_arrays(0, 4.0, ("one",)), seconds=5.0)  # 6 instead of 2 seconds
    methods = ("majority", "local", "fedavg", "better")
    bench = Bench(settings(), ("u", "v"), methods, (0, 1, 2), folder, folder)
    told = written(plan_table(bench, 2))
    # Per federation, training takes 1 second and sources take 1 (local, better) or 3 (FedAvg's two).
    assert [line.split() for line in told.splitlines() if line.startswith(("u", "v", "all"))] == [
        ["u", "4", "13", "s"], ["v", "4", "11", "s"], ["all", "8", "24", "s"]
    ]  # fmt: skip
    assert "12 s with 2 workers" in told


def test_a_failed_cell_counts_as_the_worse_trivial_row(folder: Path) -> None:
    put(folder, CellPlace("u", "better", 0), {}, failed="it diverged")
    board = board_of(folder)
    figures_there = board.at("better/one")[CellPlace("u", "better", 0)]
    trivial = [board.at(name) for name in ("majority/frequencies", "local/one")]
    others = [next(f for p, f in each.items() if (p.federation, p.seed) == ("u", 0)) for each in trivial]
    assert figures_there.nll == max(each.nll for each in others)
    assert figures_there.accuracy == min(each.accuracy for each in others)
    assert board.row("better/one").failed == 1
    assert "1 cells failed" in markdown(board, "caveat bench")


def test_improvements_are_percent_of_the_mean_over_seeds_and_defined_if_nothing_is_wrong() -> None:
    def row(*values: float) -> dict[CellPlace, CellFigures]:
        nan = float("nan")
        return {
            CellPlace("u", "m", seed): CellFigures(nan, nan, augrc, nan, {}, False, 0, 0, nan, 0)
            for seed, augrc in enumerate(values)
        }

    assert improvements(row(0.1, 0.2), row(0.0, 0.4), "augrc") == {"u": pytest.approx([-50.0, 100.0])}
    assert improvements(row(0.0, 0.1), row(0.0, 0.0), "augrc") == {"u": [0.0, -100.0]}
    assert improvements(row(0.1, 0.2, 0.3), row(0.2), "augrc") == {"u": pytest.approx([50.0])}


def test_contrasts_are_corrected_and_decided_at_five_percent(folder: Path) -> None:
    asked = [{"claim": "a", "a": "better/one", "b": "fedavg/one"}, {"claim": "b", "a": "fedavg/one", "b": "fedavg/one"}]
    first, second = board_of(folder, contrasts=asked).contrasts
    assert first.p == pytest.approx(2 * 2 / 2**6)  # Holm over two
    assert first.verdict == "not decided"
    assert board_of(folder, contrasts=asked[:1]).contrasts[0].verdict == "better"
    assert second.verdict == "not decided"
    assert second.improvement.mean == 0


def test_flags_say_what_is_beyond_chance(folder: Path) -> None:
    arrays = random_arrays(0, 2.0, ("one",))
    for silo in "ab":
        arrays[f"one/{silo}/own/typicality"] = np.full(N, 0.01, np.float32)
        arrays[f"one/{silo}/own/answered"] = np.ones(N, bool)
        arrays[f"one/{silo}/own/label"] = (arrays[f"{silo}/y"] + 1) % 3
        arrays[f"one/{silo}/own/probs"] = np.eye(3, dtype=np.float32)[(arrays[f"{silo}/y"] + 1) % 3] * 0.97 + 0.01
    for name, seed in itertools.product("uvwxyz", (0, 1)):
        put(folder, CellPlace(name, "better", seed), arrays)
    flags = " ".join(board_of(folder).row("better/one").flags)
    for each in ("false alarms 100.0%", "miscalibrated in 12 of 12", "guarantee broken in 12 of 12", "collapsed in 12"):
        assert each in flags
    assert board_of(folder).row("fedavg/one").flags == () or "collapsed" not in str(board_of(folder).row("fedavg/one"))


def test_the_pages_show_every_row_with_a_picture_per_column(folder: Path) -> None:
    text, page = write_board(board_of(folder), "caveat bench --lite")
    for name in ("better/one", "fedavg/dropout", "local/one", "majority/frequencies"):
        assert f"| {name} |" in text.read_text()
        assert name in page.read_text()
    assert page.read_text().count('class="dots') >= 5
    assert "By the rule for defaults: better/one" in text.read_text()


# Files


def test_a_cell_is_written_with_the_same_bytes(tmp_path: Path) -> None:
    place = CellPlace("u", "fedavg", 0)
    for name in ("one", "two"):
        put(tmp_path / name, place, random_arrays(0, 1.0))
    for one, other in zip(cell_files(tmp_path / "one", place), cell_files(tmp_path / "two", place), strict=True):
        assert one.read_bytes() == other.read_bytes()


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda record, inputs: record.write_bytes(record.read_bytes()[:-20]), "not valid JSON"),
        (lambda record, inputs: record.write_text(record.read_text().replace('"nll"', '"nlL"', 1)), "checksum"),
        (lambda record, inputs: record.write_text(record.read_text().replace('"schema": 1', '"schema": 9')), "schema"),
        (lambda record, inputs: inputs.write_bytes(inputs.read_bytes()[:-9]), "is missing or damaged"),
        (lambda record, inputs: inputs.unlink(), "is missing or damaged"),
        (lambda record, inputs: record.rename(record.with_name("u.local.0.json")), "contains the cell u.fedavg.0"),
    ],
)
def test_a_damaged_or_foreign_cell_is_one_error(damage: Any, told: str, tmp_path: Path) -> None:
    place = CellPlace("u", "fedavg", 0)
    put(tmp_path, place, random_arrays(0, 1.0))
    damage(*cell_files(tmp_path, place))
    asked = place if cell_files(tmp_path, place)[0].exists() else CellPlace("u", "local", 0)
    with pytest.raises(DataError, match=told) as error:
        read_cell(tmp_path, asked)
    assert asked.name in str(error.value)


# Federations and settings


@pytest.mark.parametrize("name", LITE)
def test_lite_federations_need_no_files_and_are_dealt_anew_for_every_seed(name: str) -> None:
    first, again, other = (deal(name, Path("nowhere"), seed) for seed in (0, 0, 1))
    for silo in first.silos:
        assert torch.equal(silo.test.x, again.silos.named(silo.name).test.x)
        assert len(silo.test) == len(first.ids[silo.name]) >= 30
        assert {"near", "far_noise", "far_other"} <= first.others[silo.name].keys()
    assert not np.array_equal(first.ids[first.silos[0].name], other.ids[first.silos[0].name])
    shared = set(np.concatenate(list(first.ids.values()))) & set(np.concatenate(list(other.ids.values())))
    assert shared  # an input has the same id with another seed
    pooled = first.pooled().silos
    assert len(pooled[0].test) == sum(len(silo.test) for silo in first.silos)


@pytest.mark.long
@pytest.mark.skipif("CAVEAT_DATA" not in os.environ, reason="CAVEAT_DATA does not name prepared real data")
@pytest.mark.parametrize("name", [*FEDERATIONS, *FURTHER])
def test_all_silos_and_kinds_of_inputs_of_a_federation_have_the_same_shape(name: str) -> None:
    federation = deal(name, Path(os.environ["CAVEAT_DATA"]), 0)
    pooled = federation.pooled().silos[0]
    assert len(pooled.test) == sum(len(silo.test) for silo in federation.silos) >= 250
    shape = pooled.test.x.shape[1:]
    for silo in federation.silos:
        assert silo.train.x.shape[1:] == shape
        others = federation.others[silo.name]
        more = {"heart": {"near"}, "pneumonia": set()}.get(name, {"new"})  # two classes: none is held out
        assert {"far_noise", "far_other"} | more <= others.keys()
        assert {tuple(x.shape[1:]) for x in others.values()} == {tuple(shape)}
        assert min(map(len, others.values())) >= 20


def test_the_settings_fit_their_methods_with_and_without_an_encoder() -> None:
    from caveat.bench.federations import ENCODER, SMALL

    kept = read_settings(SETTINGS)
    for trained, row in itertools.product((SMALL, TABLE, ENCODER), kept.rows):
        made_method, model, changes = kept.method_of(row, "digits", trained)
        assert made_method.name == row
        if row == "uefl":
            assert (made_method.rounds, made_method.extra_rounds) == (trained.rounds - 4, 4)  # type: ignore[attr-defined]
        if row == "fedpn" and trained is ENCODER:
            assert model.adapter == 64
            assert changes["model"] == {"adapter": 64, "hidden": 0}
    assert len(kept.rows) >= 14
    assert len(kept.contrasts) <= 6


@pytest.mark.parametrize(
    ("given", "told", "status"),
    [
        (("--rows", "fedavgg"), "--rows fedavgg: no such method; did you mean", 2),
        (("--federations", "lite-cance"), "--federations lite-cance: no such federation; did you mean", 2),
        (("--federations", "mnist", "--data", "nowhere"), "federation 'mnist' needs mnist.npz in nowhere", 2),
        (("--lite", "--seeds", "x"), "--seeds x: expected whole numbers, such as 0,1,2", 2),
        (("--lite", "--settings", "none.toml"), "--settings none.toml cannot be read as TOML", 2),
    ],
)
def test_what_cannot_be_asked_is_refused_before_any_work(
    given: tuple[str, ...], told: str, status: int, tmp_path: Path
) -> None:
    assert told in one_error(command("bench", *given, "--out", tmp_path / "out"), status)
    assert not (tmp_path / "out").exists()


def test_a_damaged_cell_or_other_settings_are_refused_before_any_work(tmp_path: Path) -> None:
    asked = ("bench", "--lite", "--federations", "lite-cancer", "--rows", "fedavg", "--seeds", "0", "--out", tmp_path)
    (tmp_path / "settings.toml").write_bytes(SETTINGS.read_bytes())
    place = CellPlace("lite-cancer", "local", 0)
    put(tmp_path, place, random_arrays(0, 1.0))
    cell_files(tmp_path, place)[1].write_bytes(b"damage")
    assert "local.0.npz is missing or damaged" in one_error(command(*asked), 3)
    (tmp_path / "settings.toml").write_text("rows = []")
    assert "the settings of a board cannot change, but its settings.toml differs from" in one_error(command(*asked), 2)
    (tmp_path / "settings.toml").unlink()
    assert "exists and is not a board" in one_error(command(*asked), 2)
    assert len(list((tmp_path / "cells").iterdir())) == 2
