"""Policies that answer every input: with the better model, with a mean of both, or with the less uncertain one."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from federations import ADAM, FAST, Federation, assert_same
from told import agreed
from torch import Tensor

import caveat
from caveat.core import Answers, ConfigurationError, Data, Decision, Method, Payload, Prediction, SiloContext, State
from caveat.core.silo import SiloInfo
from caveat.methods import APFL, FML, FedAvg, FedBABU, FedPN, TrFedDis
from caveat.uncertainty import entropy, linear_pool
from caveat.wrappers.alarms import Familiar
from caveat.wrappers.base import find
from caveat.wrappers.choice_policies import Best, Blended, Surer, blend

LOCAL, GLOBAL = Decision.LOCAL, Decision.GLOBAL
TWO = (FedBABU(rounds=2, training=FAST), APFL(rounds=2, training=ADAM), FML(rounds=2, training=FAST),
       TrFedDis(rounds=2, training=FAST),
       FedPN(rounds=2, training=ADAM, layers=4, personal_epochs=2, personal_steps=0))  # fmt: skip


@dataclass(frozen=True)
class Told(Method):
    """Two models whose probabilities of the second of two classes are the columns of the inputs: local, global."""

    models: ClassVar[tuple[Decision, ...]] = (GLOBAL, LOCAL)

    def schedule(self) -> Iterable[caveat.Round]:
        return []

    def init_server(self, context: SiloContext) -> State:
        return {}

    def broadcast(self, server: State) -> Payload:
        return {}

    def answer(self, down: Payload, state: State, context: SiloContext, x: Tensor) -> Answers:
        return {whose: told(x[:, column], whose) for whose, column in ((GLOBAL, 1), (LOCAL, 0))}


def told(second: Tensor, whose: Decision) -> Prediction:
    return Prediction.from_samples(torch.stack([1 - second, second], 1).double()[None], whose)


def context(name: str, x: list[list[float]], y: list[int]) -> SiloContext:
    seen, none = Data(torch.tensor(x), torch.tensor(y)), Data(torch.zeros(0, 2), torch.zeros(0).long())
    return SiloContext(name, none, seen, none, torch.nn.Identity())


def asked(method: Method, place: SiloContext, server: State, state: State, x: list[list[float]]) -> Prediction:
    return method.predict(method.broadcast(server), state, place, torch.tensor(x))


def test_best_answers_with_the_model_of_smaller_validation_loss_at_each_silo() -> None:
    method = Best(Told())
    places = [context("a", [[0.9, 0.6], [0.2, 0.4]], [1, 0]), context("b", [[0.9, 0.6], [0.2, 0.4]], [0, 1]),
              context("none", [], []), context("equal", [[0.3, 0.3]], [1])]  # fmt: skip
    server, states = agreed(method, places)
    found = [asked(method, place, server, states[place.id], [[0.1, 0.8]]) for place in places]
    assert [each.decision.tolist() for each in found] == [[LOCAL], [GLOBAL], [LOCAL], [LOCAL]]
    assert [each.label.tolist() for each in found] == [[0], [1], [0], [0]]
    assert asked(method, places[1], server, {}, [[0.1, 0.8]]).decision.tolist() == [LOCAL]  # it missed the round


def test_surer_answers_with_the_less_uncertain_model_for_each_input() -> None:
    method, place = Surer(Told()), context("a", [], [])
    found = asked(method, place, {}, {}, [[0.9, 0.6], [0.4, 0.95], [0.3, 0.3], [torch.nan, 0.5]])
    assert found.decision.tolist() == [LOCAL, GLOBAL, LOCAL, GLOBAL]
    assert found.probs[:3, 1].tolist() == pytest.approx([0.9, 0.95, 0.3])


def test_blend_is_the_mean_with_the_silos_weight() -> None:
    method = Blended(Told())
    right, wrong = [[0.9, 0.1], [0.1, 0.9]] * 40, [1, 0] * 40
    places = [context("local", right, wrong), context("global", right, wrong[::-1])]
    server, states = agreed(method, places)
    down = method.broadcast(server)
    assert float(down["decision"]["weight"]) == pytest.approx(0.5)
    weights = [method.weight(down, states[place.id]) for place in places]
    assert weights[0] > 0.85
    assert weights[0] + weights[1] == pytest.approx(1)
    found = asked(method, places[0], server, states["local"], [[0.8, 0.4]])
    expected = weights[0] * 0.8 + (1 - weights[0]) * 0.4
    assert found.probs[0, 1].tolist() == pytest.approx(expected)
    assert found.decision.tolist() == [LOCAL]
    assert asked(method, places[1], server, states["global"], [[0.8, 0.4]]).decision.tolist() == [GLOBAL]
    late = asked(method, places[0], server, {}, [[0.8, 0.4]])
    assert late.probs[0, 1].tolist() == pytest.approx(0.6)  # the federation's weight


def test_uncertainty_of_a_blend_by_cause() -> None:
    answers = Told().answer({}, {}, context("a", [], []), torch.tensor([[1.0, 0.0], [0.5, 0.5], [0.9, 0.9]]))
    found = blend(answers, 0.5)
    assert found.total.tolist() == pytest.approx([math.log(2)] * 2 + [float(entropy(found.probs)[2])])
    assert found.aleatoric.tolist() == pytest.approx([0, math.log(2), float(found.total[2])])
    assert found.epistemic.tolist() == pytest.approx([math.log(2), 0, 0], abs=1e-12)


@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_all_weight_on_one_model_is_that_model(weight: float) -> None:
    answers = Told().answer({}, {}, context("a", [], []), torch.rand(20, 2))
    found, alone = blend(answers, weight), answers[LOCAL if weight else GLOBAL]
    torch.testing.assert_close(found.probs, alone.probs)
    torch.testing.assert_close(found.total, alone.total)
    torch.testing.assert_close(found.epistemic, alone.epistemic)
    assert torch.equal(found.decision, alone.decision)


def test_p_values_of_the_surer_answer_are_valid_although_the_model_depends_on_the_input() -> None:
    """Two unrelated p-values of which a choice favours the smaller: chosen alone almost 10 % are at most 5 %."""
    n = 20_000
    p = torch.rand(n, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    answers = Told().answer({}, {}, context("a", [], []), 0.5 + p.float() / 2)
    answers = {
        whose: replace(answer, uncertainty=answer.uncertainty | {"total": p[:, i]}, familiarity=p[:, i])
        for i, (whose, answer) in enumerate(answers.items())
    }
    alone, found = answers[LOCAL].where(p[:, 1] <= p[:, 0], answers[GLOBAL]), Surer(Told()).decide({}, {}, answers)
    assert alone.familiarity is not None
    assert found.familiarity is not None
    assert float((alone.familiarity <= 0.05).double().mean()) > 0.09
    assert float((found.familiarity <= 0.05).double().mean()) < 0.05


def test_silos_send_nothing_for_best_and_one_sum_for_blend() -> None:
    place = context("a", [[0.9, 0.6]], [1])
    cases = (Best(Told()), set()), (Blended(Told()), {"likelihood"}), (Blended(Told(), shared=False), set[str]())
    for method, names in cases:
        update, kept = method.weigh({}, {}, place)
        assert set(update.payload["decision"]) == names
        assert torch.equal(kept["decision"]["likelihood"], linear_pool.curve(*both([[0.9, 0.6]]), torch.tensor([1])))


def both(x: list[list[float]]) -> tuple[Tensor, Tensor]:
    answers = Told().answer({}, {}, context("a", [], []), torch.tensor(x))
    return answers[LOCAL].probs, answers[GLOBAL].probs


def test_impossible_likelihoods_are_told() -> None:
    card = SiloInfo("a", "a", {"train": 5, "validation": 1, "calibration": 1, "test": 1}, (3, 2))
    honest = linear_pool.curve(*both([[0.9, 0.6]]), torch.tensor([1]))
    assert Blended(Told()).wrong({"decision": {"likelihood": honest}}, card) == ""
    assert "for 1 inputs" in Blended(Told()).wrong({"decision": {"likelihood": 100 * honest}}, card)


@pytest.mark.parametrize("policy", ["best", "blend", "surer"])
def test_a_method_with_one_model_has_nothing_to_choose_from(policy: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"policy = '{policy}' chooses between .* 'fedavg' has only one model"):
        caveat.Uncertainty(policy=policy).around(FedAvg())
    assert caveat.Uncertainty(policy=policy).fitting(FedAvg()).policy is None
    assert caveat.Uncertainty(policy=policy).fitting(APFL()).policy == policy


@pytest.mark.parametrize(("policy", "kind"), [("best", Best), ("blend", Blended), ("surer", Surer)])
@pytest.mark.parametrize("method", TWO, ids=lambda method: method.name)
def test_methods_of_each_kind_answer_every_input_and_train_as_before(
    method: Method, policy: Any, kind: type[Method], tmp_path: Path
) -> None:
    around = caveat.Uncertainty(policy=policy, set_coverage=0.5).around(method)
    assert isinstance(around.base, kind)  # type: ignore[attr-defined]
    assert isinstance(around.base.base, Familiar)  # type: ignore[attr-defined]
    federation, bare = Federation(around, tmp_path / "full"), Federation(method, tmp_path / "bare")
    federation.run()
    bare.run()
    assert_same(bare.server, {group: federation.server[group] for group in bare.server})
    for name, state in federation.states().items():
        place = federation.place.context(name)
        down, x = around.broadcast(federation.server), place.validation.x
        answers, found = around.answer(down, state, place, x), around.predict(down, state, place, x)
        torch.testing.assert_close(found.probs.sum(1), torch.ones(len(x), dtype=torch.float64))
        assert set(found.decision.tolist()) <= {LOCAL, GLOBAL}
        assert found.familiarity is not None
        least, most = torch.stack([a.probs for a in answers.values()]).aminmax(dim=0)
        assert bool(((found.probs >= least - 1e-12) & (found.probs <= most + 1e-12)).all())
        torch.testing.assert_close(found.total, entropy(found.probs))


def test_methods_whose_two_models_are_trained_apart_blend_them_by_default() -> None:
    """FedRoD's and TrFedDis' local answer contains the global one, and FedPN switches."""
    assert {name for name, method in caveat.METHODS.items() if method.policy == "blend"} == {"apfl", "ditto"}
    assert find(caveat.Uncertainty().around(APFL()), Blended) is not None
    assert find(caveat.Uncertainty(policy="always").around(APFL()), Blended) is None
