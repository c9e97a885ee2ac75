"""Prediction sets: coverage at each silo, fallbacks, and what becomes of them in figures."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from federations import flat
from told import NONE, agreed
from torch import Tensor

from caveat.core import Answers, Data, Decision, Method, Payload, Prediction, Round, SiloContext, State
from caveat.core.errors import ConfigurationError
from caveat.metrics import figures, measure
from caveat.uncertainty import sets
from caveat.wrappers.choice_policies import Switched
from caveat.wrappers.prediction_sets import ByClass, Conformal
from caveat.wrappers.uncertainty_settings import Uncertainty

COVERAGE = 0.9


@dataclass(frozen=True)
class Logits(Method):
    """Two models, the federation's with the inputs as logits, the silo's own with twice these."""

    models: ClassVar[tuple[Decision, ...]] = (Decision.GLOBAL, Decision.LOCAL)

    def schedule(self) -> Iterable[Round]:
        return []

    def broadcast(self, server: State) -> Payload:
        return {}

    def answer(self, down: Payload, state: State, context: SiloContext, x: Tensor) -> Answers:
        return {w: Prediction.from_samples(((1 + w) * x.double()).softmax(-1)[None], w) for w in self.models}


def drawn(n: int, sharp: float, generator: torch.Generator) -> Data:
    """Labels drawn from 5 classes by logits that are `sharp` times as large as the inputs say."""
    x = 2 * torch.randn(n, 5, generator=generator)
    return Data(x, torch.multinomial((sharp * x).softmax(-1), 1, generator=generator)[:, 0])


def place(name: str, n: int, sharp: float, seed: int) -> SiloContext:
    data = drawn(n, sharp, torch.Generator().manual_seed(seed))
    return SiloContext(name, data, data, data, NONE)


def test_every_silo_s_sets_hold_the_label_as_often_as_promised() -> None:
    """Though its model is far too sure at one silo and too unsure at the other."""
    method = Conformal(Logits(), COVERAGE)
    share: dict[str, list[float]] = {"a": [], "b": []}
    for draw in range(60):
        sites = [place("a", 50, 0.2, 2 * draw), place("b", 200, 3.0, 2 * draw + 1)]
        server, states = agreed(method, sites)
        for context, sharp in zip(sites, (0.2, 3.0), strict=True):
            fresh = drawn(1000, sharp, torch.Generator().manual_seed(10_000 + draw))
            found = method.predict(method.broadcast(server), states[context.id], context, fresh.x).sets
            assert found is not None
            share[context.id].append(float(found.gather(1, fresh.y[:, None]).double().mean()))
    means = {name: torch.tensor(each).mean() for name, each in share.items()}
    # Between 1 - alpha and that plus 1 / (n + 1), and what the label that is always in adds.
    assert means["a"] == pytest.approx(46 / 51, abs=0.02)
    assert COVERAGE - 0.01 < means["b"] < COVERAGE + 0.02


def test_sets_are_the_probable_classes_and_never_empty() -> None:
    method = Conformal(Logits(), 0.5)
    context = place("a", 400, 3.0, seed=0)
    server, states = agreed(method, [context])
    x = torch.tensor([[9.0, 0, 0, 0, 0], [0.01, 0, 0, 0, 0], [torch.nan] * 5])
    prediction = method.predict(method.broadcast(server), states["a"], context, x)
    assert prediction.sets is not None
    assert prediction.sets.tolist() == [[True] + [False] * 4, [True] + [False] * 4, [True] * 5]


def test_which_limit_a_silo_has_depends_on_the_number_of_its_inputs() -> None:
    method = Conformal(Logits(), COVERAGE)
    assert method.least == 9
    sites = [
        place("few", 8, 0.2, seed=0), place("too", 8, 0.2, seed=3),
        place("enough", 9, 0.2, seed=1), place("many", 500, 3.0, seed=2),
    ]  # fmt: skip
    server, states = agreed(method, sites)
    assert {name: "limit" in state["sets"] for name, state in states.items()} == {
        "few": False, "too": False, "enough": True, "many": True
    }  # fmt: skip
    limit = float(server["sets"]["limit"])
    scores = torch.cat([
        sets.surprise(sum(a.probs for a in Logits().answer({}, {}, s, s.calibration.x).values()) / 2, s.calibration.y)
        for s in sites[:2]  # the others need no limit of others
    ])  # fmt: skip
    exact = float(scores.sort().values[math.ceil(17 * 0.9) - 1])
    assert exact <= limit <= 1.013 * exact + 1e-6
    x = sites[0].train.x
    expected = -torch.stack([x.double().softmax(-1), (2 * x.double()).softmax(-1)]).mean(0).log() <= limit
    for state in (states["few"], {}):  # a silo that was not there has that of the others too
        found = method.predict(method.broadcast(server), state, sites[0], x).sets
        assert found is not None
        assert bool((found >= expected).all())
        assert int((found != expected).sum()) <= len(x)


def test_too_few_inputs_of_all_silos_together_give_every_class() -> None:
    method = Conformal(Logits(), COVERAGE)
    context = place("few", 8, 1.0, seed=0)
    server, states = agreed(method, [context])
    x = torch.tensor([[2000.0, 0, 0, 0, 0]])  # probabilities of zero
    found = method.predict(method.broadcast(server), states["few"], context, x).sets
    assert found is not None
    assert bool(found.all())


def test_a_histogram_leaves_a_silo_and_before_that_there_are_no_sets() -> None:
    method = Conformal(Logits(), COVERAGE)
    context = place("a", 8, 1.0, seed=0)
    down = method.broadcast(method.init_server(context))
    assert method.predict(down, {}, context, context.train.x).sets is None
    update, _ = method.conform(down, {}, context)
    assert {name: tuple(t.shape) for name, t in flat(update.payload).items()} == {"sets/surprise": (4096,)}
    assert update.payload["sets"]["surprise"].sum() == 8


def test_sets_become_coverage_and_size() -> None:
    plain = Prediction.from_samples(torch.eye(3).double()[None])
    held = torch.tensor([[True, False, False], [True, True, False], [True, True, True]])
    found = figures(
        measure(Prediction(plain.probs, plain.uncertainty, plain.decision, sets=held), torch.tensor([1, 1, -1]))
    )
    assert found["set_size"] == 2
    assert found["set_coverage"] == 0.5  # of labels that are classes of the model
    assert "set_size" not in figures(measure(plain, torch.tensor([1, 1, -1])))


def test_sets_go_around_whatever_decides() -> None:
    method = Uncertainty(policy="switch", set_coverage=0.8).around(Logits())
    assert isinstance(method, Conformal)
    assert isinstance(method.base, Switched)
    assert method.coverage == 0.8
    assert isinstance(Uncertainty(set_coverage=0.8).around(Logits()), Conformal)


def test_equal_inputs_have_equal_sets_whatever_the_last_digits_of_their_probabilities() -> None:
    """Of one kind of input, asked by itself or among others, the class that decided the limit is in all sets."""
    probs = torch.tensor([[0.7, 0.3]], dtype=torch.float64).expand(100, 2)
    limit = sets.threshold(sets.surprise(probs, torch.ones(100, dtype=torch.long)), 0.9)
    noise = 1e-7 * torch.randn(100, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert bool(sets.prediction_sets(probs + noise, torch.zeros(100, dtype=torch.long), limit).all())


def uneven(n: int, generator: torch.Generator) -> Data:
    """A tenth of the inputs are of class 0, which the model often takes for another one."""
    y = torch.where(torch.rand(n, generator=generator) < 0.1, 0, 1 + torch.randint(4, (n,), generator=generator))
    x = torch.randn(n, 5, generator=generator)
    x[torch.arange(n), y] += torch.where(y == 0, 0.5, 3.0)
    return Data(x, y)


@pytest.mark.parametrize(("silos", "each"), [(1, 400), (50, 8)])
def test_sets_per_class_hold_each_class_as_often_as_promised(silos: int, each: int) -> None:
    """Where sets by one quantile hold the hard class much more rarely."""
    covered: dict[type[Conformal], list[torch.Tensor]] = {ByClass: [], Conformal: []}
    for draw in range(40):
        generator = torch.Generator().manual_seed(draw)
        parts = [uneven(each, generator) for _ in range(silos)]
        sites = [SiloContext(f"silo-{k}", data, data, data, NONE) for k, data in enumerate(parts)]
        fresh = uneven(4000, generator)
        for kind, found in covered.items():
            method = kind(Logits(), COVERAGE)
            server, states = agreed(method, sites)
            given = method.predict(method.broadcast(server), states["silo-0"], sites[0], fresh.x).sets
            assert given is not None
            held = given.gather(1, fresh.y[:, None])[:, 0].double()
            found.append(torch.stack([held[fresh.y == c].mean() for c in range(5)]))
    means = {kind: torch.stack(found).mean(0) for kind, found in covered.items()}
    assert float(means[ByClass].min()) > COVERAGE - 0.015
    assert float(means[Conformal][0]) < 0.75


def test_a_class_with_too_few_inputs_is_pooled_by_their_number_alone() -> None:
    method = ByClass(Logits(), COVERAGE)
    generator = torch.Generator().manual_seed(0)
    data = Data(torch.randn(60, 5, generator=generator), torch.tensor([0] * 8 + [1] * 9 + [2] * 20 + [3] * 23))
    context = SiloContext("a", data, data, data, NONE)
    limit = agreed(method, [context])[1]["a"]["sets"]["limit"]
    # Class 4 has no inputs: 4, 0 and 1, the smallest three, are pooled.
    assert limit[0] == limit[1] == limit[4]
    assert len(set(limit.tolist())) == 3
    assert bool((limit < 1e6).all())


def test_settings_of_sets_per_class() -> None:
    assert type(Uncertainty(set_coverage=0.8, sets_per_class=True).around(Logits())) is ByClass
    with pytest.raises(ConfigurationError, match="no effect unless"):
        Uncertainty(sets_per_class=True)
    with pytest.raises(ConfigurationError, match="computes a quantile per class, without the weights"):
        Uncertainty(set_coverage=0.8, sets_per_class=True, label_shift=True)
    with pytest.raises(ConfigurationError, match="cannot be combined with sets by subgroup"):
        Uncertainty(set_coverage=0.8, sets_per_class=True).around(Logits(), subgroups=("a", "b"))
