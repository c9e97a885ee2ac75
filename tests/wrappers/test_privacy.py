"""The `[privacy]` section: what a run with clipping and noise says it protects, and which runs it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from commands import TINY, caveat, one_error, sets

import caveat as library
from caveat.core import ConfigurationError
from caveat.data import Silos, from_arrays
from caveat.wrappers.accounting import epsilon, epsilon_against_server
from caveat.wrappers.privacy import Privacy

TRAINING = library.Training(batch_size=8, local_epochs=1)


@pytest.fixture(scope="module")
def silos() -> Silos:
    rng = np.random.default_rng(0)
    x = {name: rng.normal(0, 1, (60, 3)).astype(np.float32) for name in "abcd"}
    return from_arrays({name: (each, (each[:, 0] > 0).astype(int)) for name, each in x.items()})


def test_a_run_says_which_epsilon_its_noise_comes_to(silos: Silos) -> None:
    found = library.run(
        silos, library.FedAvg(), rounds=3, training=TRAINING, privacy=Privacy(clip=0.5, noise=2.0, delta=1e-4)
    ).summary["privacy"]
    assert found["epsilon"] == epsilon(2.0, [4, 4, 4], 4, 1e-4)
    assert found["epsilon_server"] == epsilon_against_server(2.0, 3, 4, 1e-4)
    assert found["epsilon"] < found["epsilon_server"]
    assert (found["covers"], found["not_covered"]) == (["train"], ["test", "validation"])


def test_only_rounds_that_a_silo_took_part_in_count(silos: Silos) -> None:
    """Two of four silos per round: noise for two, of which one knows its own."""
    result = library.run(
        silos, library.FedAvg(), rounds=4, training=TRAINING, participation=0.5, privacy=Privacy(clip=1.0)
    )
    lines = [json.loads(line) for line in (result.folder / "ledger.jsonl").read_text().splitlines()]
    taken = [line["silo"] for line in lines if line.get("phase") == "train" and "split" not in line]
    most = max(taken.count(name) for name in "abcd")
    assert result.summary["privacy"]["epsilon"] == epsilon(1.0, [2] * most, 2, 1e-5)
    # Who was asked may have sent an update that came too late, and a server has seen it.
    assert most < 4
    assert result.summary["privacy"]["epsilon_server"] == epsilon_against_server(1.0, 4, 2, 1e-5)


def test_clipping_alone_promises_nothing(silos: Silos) -> None:
    result = library.run(silos, library.FedAvg(), rounds=1, training=TRAINING, privacy=Privacy(clip=1.0, noise=0.0))
    assert result.summary["privacy"]["epsilon"] is None


def test_what_calibration_sends_is_named_as_not_covered(silos: Silos) -> None:
    result = library.run(
        silos, library.FedAvg(), rounds=1, training=TRAINING, privacy=Privacy(clip=1.0),
        uncertainty=library.Uncertainty(policy="switch"),
    )  # fmt: skip
    assert result.summary["privacy"]["covers"] == ["train"]
    assert set(result.summary["privacy"]["not_covered"]) > {"test", "validation"}


@pytest.mark.usefixtures("nowhere")
def test_a_method_that_it_does_not_fit_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    tiny = [item for item in TINY if not item.startswith("method")]
    out = tmp_path / "run"
    result = caveat("run", *sets(*tiny, "method.name=uefl", "privacy.clip=1"), "--out", out)
    assert "clipping and noise do not fit 'uefl'" in one_error(result, 2)
    assert not out.exists()


def test_noise_without_a_clip_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"privacy.noise = 1.0 is ignored without privacy.clip"):
        Privacy(noise=1.0)
