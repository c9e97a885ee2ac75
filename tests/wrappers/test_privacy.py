"""The `[privacy]` section: what a run with clipping and noise says it protects, and which runs it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import TINY, caveat, one_error, sets

import caveat as library
from caveat.core import ConfigurationError
from caveat.data.silo_collection import Silos
from caveat.data.user_data import from_arrays
from caveat.files.schema import PrivacyRecord
from caveat.html.run.sent_messages import protection
from caveat.wrappers.privacy import Privacy, clip, composed, epsilon, epsilon_against_server

TRAINING = library.Training(batch_size=8, local_epochs=1)


@pytest.fixture(scope="module")
def silos() -> Silos:
    rng = np.random.default_rng(0)
    x = {name: rng.normal(0, 1, (60, 3)).astype(np.float32) for name in "abcd"}
    return from_arrays({name: (each, (each[:, 0] > 0).astype(int)) for name, each in x.items()})


def test_a_run_says_which_epsilon_its_noise_comes_to(silos: Silos) -> None:
    found = library.run(
        silos,
        library.FedAvg(),
        rounds=3,
        training=TRAINING,
        privacy=Privacy(clip_norm=0.5, noise_multiplier=2.0, delta=1e-4),
    ).summary["privacy"]
    assert found["epsilon"] == epsilon(2.0, [4, 4, 4], 4, 1e-4)
    assert found["epsilon_server"] == epsilon_against_server(2.0, 3, 4, 1e-4)
    assert found["epsilon"] < found["epsilon_server"]
    # Another row may turn a clipped update round: twice as far, with the same noise.
    assert found["row"]["epsilon"] == epsilon(1.0, [4, 4, 4], 4, 1e-4) > 2 * found["epsilon"]
    assert found["row"]["epsilon_server"] == epsilon_against_server(1.0, 3, 4, 1e-4) > 2 * found["epsilon_server"]
    assert (found["covers"], found["not_covered"]) == (["train"], ["test", "validation"])  # and no temperature


def test_only_rounds_that_a_silo_took_part_in_count(silos: Silos) -> None:
    """Two of four silos per round: noise for two, of which one knows its own."""
    result = library.run(
        silos, library.FedAvg(), rounds=4, training=TRAINING, participation=0.5, privacy=Privacy(clip_norm=1.0)
    )
    lines = [json.loads(line) for line in (result.folder / "ledger.jsonl").read_text().splitlines()]
    taken = [line["silo"] for line in lines if line.get("phase") == "train" and "split" not in line]
    most = max(taken.count(name) for name in "abcd")
    assert result.summary["privacy"]["epsilon"] == epsilon(1.0, [2] * most, 2, 1e-5)
    # Who was asked may have sent an update that came too late, and a server has seen it.
    assert most < 4
    assert result.summary["privacy"]["epsilon_server"] == epsilon_against_server(1.0, 4, 2, 1e-5)


def test_a_row_can_move_a_clipped_update_by_twice_the_clip() -> None:
    """Full-batch steps on one row or on another, whose updates point opposite ways, and both are clipped."""
    down = {"model": {"w": torch.zeros(2)}}
    one, other = ({"model": {"w": torch.tensor([side * 9.0, 0.0])}} for side in (1, -1))
    moved = [clip(down, sent, 0.5)["model"]["w"] for sent in (one, other)]
    assert float((moved[0] - moved[1]).norm()) == pytest.approx(2 * 0.5)
    assert composed([0.5], 1e-5) == pytest.approx(10.73, abs=0.01)
    assert composed([1.0], 1e-5) == pytest.approx(4.73, abs=0.01)


@pytest.mark.parametrize("method", [library.FedBABU(), library.PerFedAvg()])
def test_no_round_of_the_method_says_how_large_a_silo_is(silos: Silos, method: library.Method) -> None:
    """Neither training nor the round after it, in which silos fit models of their own and send nothing."""
    run = library.run(silos, method, rounds=2, training=TRAINING, privacy=Privacy(clip_norm=1.0))
    phases = {"train", "personalise"}
    lines = [json.loads(line) for line in (run.folder / "ledger.jsonl").read_text().splitlines()]
    sent = [line for line in lines if line.get("phase") in phases and "split" not in line]
    assert {line["phase"] for line in sent} == phases
    assert {step.linear for step in Privacy(clip_norm=1.0).around(method, 4).schedule()} == {"silos"}
    assert {line["examples"] for line in sent} == {1}


def test_the_page_says_both_epsilons(silos: Silos) -> None:
    found = library.run(
        silos, library.FedAvg(), rounds=1, training=TRAINING, privacy=Privacy(clip_norm=0.5, noise_multiplier=2.0)
    )
    record = PrivacyRecord.model_validate(found.summary["privacy"])
    text, row = protection(record), record.row
    assert row is not None
    for value in (record.epsilon, record.epsilon_server, row.epsilon, row.epsilon_server):
        assert f"{value:.3g}" in text
    older = PrivacyRecord.model_validate({k: v for k, v in found.summary["privacy"].items() if k != "row"})
    assert "record level" in text
    assert "record level" not in protection(older)
    assert protection(None) == ""


def test_clipping_alone_promises_nothing(silos: Silos) -> None:
    result = library.run(
        silos, library.FedAvg(), rounds=1, training=TRAINING, privacy=Privacy(clip_norm=1.0, noise_multiplier=0.0)
    )
    assert result.summary["privacy"]["epsilon"] is None
    assert result.summary["privacy"]["row"] == {"epsilon": None, "epsilon_server": None}


def test_what_calibration_sends_is_named_as_not_covered(silos: Silos) -> None:
    result = library.run(
        silos, library.FedAvg(), rounds=1, training=TRAINING, privacy=Privacy(clip_norm=1.0),
        uncertainty=library.Uncertainty(policy="switch"),
    )  # fmt: skip
    assert result.summary["privacy"]["covers"] == ["train"]
    assert set(result.summary["privacy"]["not_covered"]) > {"test", "validation"}


@pytest.mark.usefixtures("nowhere")
def test_a_method_that_it_does_not_fit_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    tiny = [item for item in TINY if not item.startswith("method")]
    out = tmp_path / "run"
    result = caveat("run", *sets(*tiny, "method.name=uefl", "privacy.clip_norm=1"), "--out", out)
    assert "clipping and noise do not fit 'uefl'" in one_error(result, 2)
    assert not out.exists()


@pytest.mark.parametrize("secure", [True, False])
def test_noise_in_the_sum_needs_secure_sums(silos: Silos, secure: bool) -> None:
    settings = {"privacy": Privacy(clip_norm=1.0, noise_multiplier=2.0, where="sum"), "robust": "off", "secure": secure}
    if not secure:
        with pytest.raises(
            ConfigurationError, match=r"privacy.where = 'sum' needs .*secure = true: without it, the se"
        ):
            library.run(silos, library.FedAvg(), rounds=1, training=TRAINING, **settings)
        return
    found = library.run(silos, library.FedAvg(), rounds=3, training=TRAINING, **settings).summary["privacy"]
    # Three of four silos can open a sum: two others protect each one, and all four took part.
    assert found["where"] == "sum"
    assert found["epsilon"] == found["epsilon_server"] == epsilon(2.0, [4, 4, 4], 2, 1e-5)
    assert found["epsilon"] < composed([2.0] * 3, 1e-5)
    assert "(that of the smallest sums)" in protection(PrivacyRecord.model_validate(found))


def test_noise_without_a_clip_is_refused() -> None:
    with pytest.raises(
        ConfigurationError, match=r"privacy.noise_multiplier = 1.0 has no effect without privacy.clip_norm"
    ):
        Privacy(noise_multiplier=1.0)
    with pytest.raises(ConfigurationError, match=r"privacy.where = 'sum' has no effect without privacy.clip_norm"):
        Privacy(where="sum")
