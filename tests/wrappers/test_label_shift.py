"""Prediction sets where silos differ in how frequent classes are: coverage by weights, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import pytest
import torch
from federations import flat
from told import NONE, agreed
from torch import Tensor

from caveat.core import (
    Answers,
    ConfigurationError,
    Data,
    Decision,
    Method,
    Payload,
    Prediction,
    Round,
    SiloContext,
    State,
)
from caveat.methods import FedAvg, Local
from caveat.uncertainty import sets
from caveat.wrappers.prediction_sets import Conformal, LabelShifted
from caveat.wrappers.privacy import Private
from caveat.wrappers.uncertainty_settings import Uncertainty

COVERAGE = 0.9
EASY, HARD = (0.85, 0.1, 0.05), (0.05, 0.1, 0.85)
"""Shares of classes, of which the model knows the first well and the last badly."""


@dataclass(frozen=True)
class Logits(Method):
    """One model, whose logits are the inputs."""

    def schedule(self) -> Iterable[Round]:
        return []

    def broadcast(self, server: State) -> Payload:
        return {}

    def answer(self, down: Payload, state: State, context: SiloContext, x: Tensor) -> Answers:
        return {Decision.GLOBAL: Prediction.from_samples(x.double().softmax(-1)[None])}


def drawn(n: int, shares: tuple[float, ...], generator: torch.Generator) -> Data:
    """Labels by their shares, and logits that depend on nothing but the label."""
    y = torch.multinomial(torch.tensor(shares), n, replacement=True, generator=generator)
    signal = torch.tensor([4.0, 2.0, 0.5])[y, None] * torch.nn.functional.one_hot(y, 3)
    return Data(signal + torch.randn(n, 3, generator=generator), y)


def place(name: str, n: int, shares: tuple[float, ...], generator: torch.Generator) -> SiloContext:
    train, calibration = drawn(200, shares, generator), drawn(n, shares, generator)
    return SiloContext(name, train, train, calibration, NONE)


def covered(method: Conformal, here: tuple[float, ...], draws: int) -> float:
    """Share of a silo's inputs whose set holds the label, mean over draws; it and 15 others have 8 inputs each."""
    shares = []
    for draw in range(draws):
        generator = torch.Generator().manual_seed(draw)
        sites = [place("here", 8, here, generator), *(place(f"{k}", 8, EASY, generator) for k in range(15))]
        server, states = agreed(method, [*sites, place("many", 150, (0.3, 0.3, 0.4), generator)])
        fresh = drawn(1000, here, generator)
        found = method.predict(method.broadcast(server), states["here"], sites[0], fresh.x).sets
        assert found is not None
        shares.append(float(found.gather(1, fresh.y[:, None]).double().mean()))
    return sum(shares) / draws


def test_sets_hold_the_label_as_often_as_promised_where_other_classes_are_frequent() -> None:
    """Within what 200 training labels may miss of the shares of classes, which is less than .02 at these."""
    assert covered(Conformal(Logits(), COVERAGE), HARD, 20) < COVERAGE - 0.2
    assert COVERAGE - 0.02 < covered(LabelShifted(Logits(), COVERAGE), HARD, 20) < COVERAGE + 0.04


def test_weights_change_little_where_classes_are_as_frequent_as_everywhere() -> None:
    weighted, plain = (covered(kind(Logits(), COVERAGE), EASY, 20) for kind in (LabelShifted, Conformal))
    assert weighted == pytest.approx(plain, abs=0.03)
    assert weighted > COVERAGE - 0.015


@pytest.mark.parametrize("n", [(2, 40), (12, 12), (30, 5)])
def test_the_weighted_threshold_covers_whatever_the_numbers_of_each_class(n: tuple[int, int]) -> None:
    """With the true shares the promise is exact for finitely many inputs: no less, and a class's weight of one more."""
    shares, scale, generator = torch.tensor([0.2, 0.8]), torch.tensor([5.0, 0.7]), torch.Generator().manual_seed(0)
    level, held = 0.75, []
    for _ in range(1500):
        drawn_scores = [each * torch.rand(k, generator=generator) for k, each in zip(n, scale, strict=True)]
        counts = torch.stack([sets.histogram(sets.SCORE, each) for each in drawn_scores])
        limit = sets.shifted_threshold(counts, shares, level)
        held.append(float((shares * (limit / scale).clamp(0, 1)).sum()))
    mean, error = torch.tensor(held).mean(), torch.tensor(held).std() / math.sqrt(len(held))
    assert level - 3 * error < mean < level + float((shares / (1 + torch.tensor(n))).max()) + 0.02


def test_the_threshold_is_the_plain_one_of_one_class_and_of_none_where_it_was_not_seen() -> None:
    y = torch.zeros(50, dtype=torch.long)
    probs = torch.rand(50, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    counts = sets.surprise_by_class(probs, y)
    assert counts.sum(1).tolist() == [50, 0, 0]
    assert counts.sum(0).equal(sets.surprise_histogram(probs, y))
    only, other = torch.eye(3)[:2]
    assert sets.shifted_threshold(counts, only, COVERAGE) == sets.merged_threshold(counts.sum(0), COVERAGE)
    assert sets.shifted_threshold(counts, other, COVERAGE) == math.inf


def test_histograms_by_class_leave_a_silo_and_class_counts_of_training_do_not() -> None:
    method, generator = LabelShifted(Logits(), COVERAGE), torch.Generator().manual_seed(0)
    few, many = place("few", 8, EASY, generator), place("many", 50, HARD, generator)
    sent = {}
    for context in (few, many):
        update, state = method.conform(method.broadcast(method.init_server(context)), {}, context)
        sent[context.id] = {name: (tuple(t.shape), int(t.sum())) for name, t in flat(update.payload).items()}
        assert state["sets"]["seen"].equal(torch.bincount(context.train.y, minlength=3).double())
    assert sent["few"] == {"sets/surprise": ((4096,), 8), "sets/surprise_by_class": ((3, 4096), 8)}
    assert sent["many"] == {"sets/surprise": ((4096,), 0), "sets/surprise_by_class": ((3, 4096), 50)}
    plain, weighted = (agreed(kind(Logits(), COVERAGE), [few, many])[0] for kind in (Conformal, LabelShifted))
    assert weighted["sets"]["limit"] == plain["sets"]["limit"]
    # A silo that was away has the plain quantile, and so has one without training labels.
    for kept in ({}, {"seen": torch.zeros(3)}):
        assert method.limit(weighted["sets"], kept) == float(plain["sets"]["limit"])


def test_it_is_asked_for_by_name_and_refused_where_nothing_may_be_sent() -> None:
    asked = Uncertainty(policy="always", set_coverage=0.8, label_shift=True)
    assert type(asked.around(FedAvg())) is LabelShifted
    assert type(Uncertainty(policy="always", set_coverage=0.8).around(FedAvg())) is Conformal
    with pytest.raises(ConfigurationError, match=r"label_shift = true has no effect unless uncertainty\.set_coverage"):
        Uncertainty(label_shift=True)
    with pytest.raises(ConfigurationError, match=r"are not sent with \[privacy\]"):
        asked.around(Private(FedAvg(), clip_norm=1.0, noise_multiplier=1.0, silos=3))
    with pytest.raises(ConfigurationError, match="are not sent with method 'local'"):
        asked.around(Local())
    assert asked.fitting(Local()).label_shift is None
    assert asked.fitting(FedAvg()).label_shift
