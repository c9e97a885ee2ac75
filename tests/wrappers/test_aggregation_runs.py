"""What `federation.robust` does in runs: who is named, what goes on after an interruption, what is refused."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import TINY, one_error, sets
from commands import caveat as command
from federations import ADAM, FAST, METHODS, Federation, assert_same, silos

import caveat
from caveat.config import Federation as Section
from caveat.core import ConfigurationError, Method, Payload, RunError, SiloContext, State, Update
from caveat.data.silo_collection import Silos
from caveat.data.user_data import from_arrays
from caveat.files import read_payload, read_rows
from caveat.html.run.page import write_report
from caveat.methods import IFCA, FedAvg, FedBN
from caveat.runs.progress import Silent
from caveat.wrappers.aggregation import Robust, combined
from caveat.wrappers.privacy import Private

RULES = ("median", "trimmed_mean", "geometric_median", "krum")


@dataclass(frozen=True)
class Lying(FedAvg):
    """FedAvg in which a silo's weights are many times as large from the third round on."""

    name = "lying"
    times: float = 1e5

    def train(self, down: Payload, state: State, context: SiloContext) -> tuple[Update, State]:
        update, after = super().train(down, state, context)
        if context.id == "ward-1" and context.round >= 2:
            model = {n: t * self.times if t.is_floating_point() else t for n, t in update.payload["model"].items()}
            update = Update({"model": model}, update.examples)
        return update, after


class Interrupted(Silent):
    """Ends a run after a round, and notes what is said."""

    def __init__(self, after: int = 10**6) -> None:
        self.last, self.notes = after, list[str]()

    def round(self, number: int, phase: str, figures: Any) -> None:
        if number >= self.last:
            raise KeyboardInterrupt

    def note(self, text: str) -> None:
        self.notes.append(text)


def wards(count: int = 5) -> Silos:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(count, 60, 3))
    return from_arrays({f"ward-{k}": (x[k], (x[k].sum(1) > 0).astype(int)) for k in range(count)})


def lying(out: Path, times: float = 1e5, **more: Any) -> caveat.Run:
    return caveat.run(wards(), Lying(rounds=5, training=ADAM, times=times), out=out, **more)


def rows(out: Path) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    return [row for row in found if "noted" in row]


def model(out: Path) -> Payload:
    return read_payload(out / "model" / "model.safetensors")


def test_a_malicious_silo_is_named_in_rows_notes_and_on_the_page(tmp_path: Path) -> None:
    told = Interrupted()
    run = lying(tmp_path / "run", progress=told)
    found = rows(run.folder)
    assert [(row["round"], row["silo"]) for row in found] == [(3, "ward-1"), (4, "ward-1"), (5, "ward-1")]
    assert all(row["times_bound"] > 1000 and row["times_far"] > 1000 for row in found)
    assert "counted as no change" in found[0]["noted"]
    assert sum("ward-1: the norm of its update was" in note for note in told.notes) == 3
    write_report(run.folder)
    page = (run.folder / "report.html").read_text()
    assert "ward-1 with norms above the bound (rounds 3 to 5), ward-1 far from all others (rounds 3 to 5)" in page
    assert len(read_rows(run.folder / "rounds.jsonl")[0]) == 5 * (5 + 2)  # rows of figures are read as ever
    assert max(float(t.abs().max()) for t in model(run.folder)["model"].values()) < 100


def test_an_interrupted_run_goes_on_with_the_bounds_that_it_had(tmp_path: Path) -> None:
    whole = lying(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        lying(tmp_path / "two", progress=Interrupted(3))
    kept = json.loads((tmp_path / "two" / "state" / "checkpoint.json").read_text())["norms"]
    assert [len(medians) for parts in kept.values() for medians in parts.values()] == [3]
    lying(tmp_path / "two")
    assert_same(model(whole.folder), model(tmp_path / "two"))
    assert rows(whole.folder) == rows(tmp_path / "two")


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_takes_the_place_of_the_mean_and_names_who_is_far(rule: Any, tmp_path: Path) -> None:
    run = lying(tmp_path / "run", robust=rule)
    assert {row["silo"] for row in rows(run.folder)} >= {"ward-1"}
    assert max(float(t.abs().max()) for t in model(run.folder)["model"].values()) < 100
    again = lying(tmp_path / "run", robust=rule)
    assert again.folder == run.folder  # the same call opens what is there
    with pytest.raises(ConfigurationError, match="robust"):
        lying(tmp_path / "run")


@pytest.mark.parametrize("rule", RULES)
def test_a_round_is_what_the_rule_makes_of_the_replies(rule: Any, tmp_path: Path) -> None:
    method = FedAvg(rounds=1, training=ADAM)
    plain = Federation(method, tmp_path / "plain", data=silos(5))
    replies = [plain.place.perform(0, "base.train", method.broadcast(plain.server), name, None).update
               for name in sorted(plain.place.silos)]  # fmt: skip
    robust = Federation(Robust(rule).around(method, 5), tmp_path / "robust", data=silos(5))
    robust.run()
    assert_same(robust.server, combined(rule, [each.payload for each in replies], 1))


@pytest.mark.parametrize("method", [m for m in METHODS if m.federated], ids=lambda m: type(m).__name__)
def test_a_method_fits_a_rule_or_is_refused(method: Method, tmp_path: Path) -> None:
    if all(step.linear for step in method.schedule() if step.trains):
        federation = Federation(Robust("median").around(method, 3), tmp_path)
        assert all(t.isfinite().all() for group in federation.run().values() for t in group.values())
    else:
        with pytest.raises(ConfigurationError, match=r"needs more of the silos' updates than their mean"):
            Robust("median").around(method, 3)


def test_settings_that_do_not_go_together_are_refused_by_key() -> None:
    method = FedAvg(rounds=2, training=FAST)
    cases: list[tuple[Robust, Method, int, str]] = [
        (Robust("krum"), method, 4, "needs at least 5 silos in a round, but a round has 4"),
        (Robust("trimmed_mean", 2), method, 4, "needs at least 5 silos in a round"),
        (Robust("median"), IFCA(rounds=2), 9, "does not fit 'ifca'"),
        (Robust("median"), Private(method, 1.0, 1.0, 9), 9, "cannot be combined with privacy.clip_norm"),
    ]
    for robust, around, count, why in cases:
        with pytest.raises(ConfigurationError, match=why) as caught:
            robust.around(around, count)
        assert caught.value.key == "federation.robust"
    with pytest.raises(
        ConfigurationError, match=r"federation.max_byzantine = 2 is not used by federation.robust = 'bound'"
    ):
        Section(max_byzantine=2)
    assert Robust("off").around(method, 2) is method


def test_the_command_line_says_what_is_wrong_with_a_rule() -> None:
    assert "federation.robust" in one_error(command("run", "digits", *sets(*TINY, "federation.robust=mode")), 2)


def test_a_rule_says_when_too_few_silos_have_replied(tmp_path: Path) -> None:
    federation = Federation(Robust("krum").around(FedAvg(rounds=1, training=FAST), 5), tmp_path)
    with pytest.raises(
        RunError, match=r"3 silos replied, but federation.robust = 'krum' needs 5 with federation.max_byzantine = 1"
    ):
        federation.run()


def test_noise_for_privacy_is_never_scaled_away() -> None:
    """A bound of four times the median of clipped updates without noise would be below what a silo may send."""
    method = Private(FedBN(rounds=1), clip_norm=1.0, noise_multiplier=2.0, silos=4)
    sent = {"model": {"w": torch.zeros(10_000)}}
    step = next(iter(method.schedule()))
    norms = [float(torch.randn(10_000).norm()) + 1.0 for _ in range(20)]
    assert max(norms) < step.honest_norm(sent) < 1.2 * max(norms)
    assert next(iter(FedBN(rounds=1).schedule())).honest_norm(sent) == 0


def test_a_method_of_which_nothing_is_bounded_says_so(tmp_path: Path) -> None:
    told = Interrupted()
    caveat.run(wards(3), caveat.FedProto(rounds=1, training=ADAM), out=tmp_path / "run", progress=told)
    assert any("has no effect on fedproto" in note for note in told.notes)
