"""Decisions: which model answers, when none does, and what is sent to agree on that."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from federations import ADAM, Federation, assert_same, flat
from told import agreed
from torch import Tensor

from caveat.core import (
    Answers,
    ConfigurationError,
    Data,
    Decision,
    Method,
    Payload,
    Prediction,
    Reason,
    Round,
    SiloContext,
    State,
)
from caveat.methods import FedAvg, FedBABU
from caveat.metrics import measure
from caveat.wrappers.choice_policies import Switched, choose
from caveat.wrappers.error_guarantee_policy import Guaranteed
from caveat.wrappers.pooled_alarms import PooledAlarms
from caveat.wrappers.temperature_scaling import TemperatureScaled
from caveat.wrappers.uncertainty_settings import Uncertainty

NONE = torch.nn.Identity()


@dataclass(frozen=True)
class Told(Method):
    """Two models whose predictions are in the inputs: columns are local and global score, local and global label."""

    models: ClassVar[tuple[Decision, ...]] = (Decision.GLOBAL, Decision.LOCAL)

    def schedule(self) -> Iterable[Round]:
        return []

    def broadcast(self, server: State) -> Payload:
        return {}

    def answer(self, down: Payload, state: State, context: SiloContext, x: Tensor) -> Answers:
        return {
            whose: told(x[:, column], x[:, column + 2], whose)
            for whose, column in ((Decision.GLOBAL, 1), (Decision.LOCAL, 0))
        }


def told(score: Tensor, label: Tensor, whose: Decision) -> Prediction:
    probs = torch.nn.functional.one_hot(label.long(), 3).double()
    zero = torch.zeros(len(score), dtype=torch.float64)
    uncertainty = {"total": score.double(), "aleatoric": zero, "epistemic": zero}
    return Prediction(probs, uncertainty, torch.full((len(score),), int(whose)))


def context(name: str, calibration: Tensor, y: Tensor | None = None, validation: Tensor | None = None) -> SiloContext:
    y = torch.zeros(len(calibration), dtype=torch.long) if y is None else y
    seen = Data(calibration, y)
    other = seen if validation is None else Data(validation, torch.zeros(len(validation), dtype=torch.long))
    return SiloContext(name, seen, other, seen, NONE)


def rows(local: Iterable[float], federation: Iterable[float], *labels: float) -> Tensor:
    scores = torch.tensor([list(local), list(federation)]).T
    return torch.cat([scores, torch.tensor(labels or (1.0, 2.0)).expand(len(scores), 2)], 1)


def test_local_within_its_threshold_else_global_within_its_own_else_nobody() -> None:
    method = Switched(Told(), handover_rate=0.2, abstain_rate=0.5)
    scores = [float(k) for k in range(1, 10)]
    place = context("a", rows(scores, scores))
    server, states = agreed(method, [place])
    # The 8th of 9 for the local model (0.8 of 10); the 5th for the global one, to the edge of a bin above it.
    x = rows([8.0, 8.1, 8.1, float("nan"), float("nan")], [9.0, 5.0, 6.0, 1.0, float("nan")])
    prediction = method.predict(method.broadcast(server), states["a"], place, x)
    local, federation, nobody = Decision.LOCAL, Decision.GLOBAL, Decision.ABSTAIN
    assert prediction.decision.tolist() == [local, federation, nobody, federation, nobody]
    assert prediction.label.tolist() == [1, 2, 2, 2, 2]
    assert prediction.total[:3].tolist() == [8.0, 5.0, 6.0]


def test_before_thresholds_are_set_the_silos_own_model_answers() -> None:
    method = Switched(Told())
    place = context("a", rows([1.0], [1.0]))
    server = method.init_server(place)
    prediction = method.predict(method.broadcast(server), {}, place, rows([1e9], [0.0]))
    assert prediction.decision.tolist() == [Decision.LOCAL]


def test_too_few_calibration_inputs_bound_nothing() -> None:
    """ceil((n + 1) 0.9) > n for n < 9: the threshold accepts everything, as large as a number can be."""
    method = Switched(Told(), handover_rate=0.1)
    place = context("a", rows(range(8), range(8)))
    _, states = agreed(method, [place])
    assert states["a"]["decision"]["limit"] == torch.finfo(torch.float64).max
    _, states = agreed(method, [context("a", rows(range(9), range(9)))])
    assert states["a"]["decision"]["limit"] == 8


@pytest.mark.parametrize("policy", ["switch", "guaranteed"])
def test_thresholds_that_bound_nothing_pass_through_the_engine(tmp_path: Path, policy: str) -> None:
    """What a silo keeps must be finite, and so must these."""
    given = (
        {"handover_rate": 0.0, "abstain_rate": 0.0} if policy == "switch" else {"risk": 0.9, "confidence_level": 0.1}
    )
    method = Uncertainty(policy=policy, false_alarm_rate=0, **given).around(FedBABU(rounds=1, training=ADAM))  # type: ignore[arg-type]
    federation = Federation(method, tmp_path)
    federation.run()
    for name, state in federation.states().items():
        place = federation.place.silos[name].context(federation.place.module)
        prediction = method.predict(method.broadcast(federation.server), state, place, place.validation.x)
        assert set(prediction.decision.tolist()) == {Decision.LOCAL}, name


def test_whose_answer_it_was_is_known_after_abstaining() -> None:
    method = Switched(Told(), handover_rate=0.2, abstain_rate=0.5, max_aleatoric=1.0)
    place = context("a", rows(range(1, 10), range(1, 10)))
    server, states = agreed(method, [place])
    answers = Told().answer({}, {}, place, rows([1.0, 1.0, 9.0, 9.0], [1.0, 1.0, 1.0, 9.0]))
    answers[Decision.LOCAL].uncertainty["aleatoric"] = torch.tensor([0.0, 2.0, 0.0, 0.0], dtype=torch.float64)
    prediction = method.decide(method.broadcast(server), states["a"], answers)
    local, federation, nobody = Decision.LOCAL, Decision.GLOBAL, Decision.ABSTAIN
    assert prediction.decision.tolist() == [local, nobody, federation, nobody]
    assert prediction.answered_by.tolist() == [local, local, federation, federation]
    assert prediction.reason.tolist() == [Reason.NONE, Reason.AMBIGUOUS, Reason.NONE, Reason.UNCERTAIN]
    assert measure(prediction, torch.tensor([1, 1, 2, 2]))["quadrants"].tolist() == [[1, 1], [1, 1]]


def test_false_alarms_of_a_switch_are_those_of_one_model() -> None:
    """The global model is asked about what the local one raises an alarm for; abstentions for alarms are its own."""
    method = Switched(Told(), handover_rate=0.0, abstain_rate=0.0)
    place = context("a", rows(range(1, 10), range(1, 10)))
    server, states = agreed(method, [place])
    answers = Told().answer({}, {}, place, rows([1.0] * 4, [1.0] * 4))
    low, high = torch.tensor([0.01, 0.01, 0.9, 0.9]), torch.tensor([0.01, 0.9, 0.01, 0.9])
    for whose, p in ((Decision.LOCAL, low), (Decision.GLOBAL, high)):
        p_values = dict.fromkeys(("familiarity", "nearness", "sureness", "typicality"), p.double())
        answers[whose] = replace(answers[whose], **p_values, false_alarm_rate=0.05)
    prediction = method.decide(method.broadcast(server), states["a"], answers)
    local, federation, nobody = Decision.LOCAL, Decision.GLOBAL, Decision.ABSTAIN
    assert prediction.decision.tolist() == [nobody, federation, local, local]
    assert prediction.reason.tolist() == [Reason.UNFAMILIAR, Reason.NONE, Reason.NONE, Reason.NONE]


def test_nothing_is_promised_about_a_silo_that_was_not_counted() -> None:
    method = Guaranteed(Told(), risk=0.5)
    sites = guarantee_sites(400, seed=0)
    server, _ = agreed(method, sites)
    prediction = method.predict(method.broadcast(server), {}, sites[0], sites[0].calibration.x)
    assert set(prediction.decision.tolist()) == {Decision.ABSTAIN}


def test_a_silo_without_a_threshold_asks_the_federation() -> None:
    method = Switched(Told(), abstain_rate=0.1)
    places = [context(name, rows(range(20), range(20))) for name in "ab"]
    server, _ = agreed(method, places)
    prediction = method.predict(method.broadcast(server), {}, places[0], rows([0.0, 0.0], [3.0, 100.0]))
    assert prediction.decision.tolist() == [Decision.GLOBAL, Decision.ABSTAIN]


def test_local_threshold_stays_and_the_global_one_is_of_all_silos() -> None:
    method = Switched(Told(), handover_rate=0.1, abstain_rate=0.1)
    low, high = context("a", rows(range(50), [1.0] * 50)), context("b", rows(range(50), [10.0] * 50))
    server, states = agreed(method, [low, high])
    assert 10 <= float(server["decision"]["limit"]) < 10.1
    update, _ = method.calibrate(method.broadcast(server), {}, low)
    assert flat(update.payload).keys() == {"decision/scores"}
    assert flat(update.payload)["decision/scores"].sum() == 50
    assert "decision" in states["a"]


def test_every_calibration_input_of_every_silo_counts_in_the_global_threshold() -> None:
    """Of 100 inputs 90 have a score of 1: the 86th smallest, ceil(101 * 0.85), although one silo has 40 of 50."""
    method = Switched(Told(), abstain_rate=0.15)
    low, mixed = context("a", rows(range(50), [1.0] * 50)), context("b", rows(range(50), [1.0] * 40 + [10.0] * 10))
    server, _ = agreed(method, [low, mixed])
    assert 1 <= float(server["decision"]["limit"]) < 1.1


def test_ambiguous_inputs_are_answered_by_nobody_and_not_handed_on() -> None:
    answers = Told().answer({}, {}, context("a", rows([1.0], [1.0])), rows([0.0, 0.0], [0.0, 0.0]))
    answers[Decision.LOCAL].uncertainty["aleatoric"] = torch.tensor([0.2, 1.5], dtype=torch.float64)
    method = Switched(Told(), max_aleatoric=1.0)
    down = {"decision": {"ready": torch.tensor(True), "limit": torch.tensor(torch.inf)}}
    prediction = method.decide(down, {"decision": {"limit": torch.tensor(1.0)}}, answers)
    assert prediction.decision.tolist() == [Decision.LOCAL, Decision.ABSTAIN]
    assert prediction.label.tolist() == [1, 1]


def test_one_model_answers_or_abstains() -> None:
    prediction = told(torch.tensor([0.0, 1.0]), torch.tensor([1, 1]), Decision.GLOBAL)
    chosen = choose({Decision.GLOBAL: prediction}, {Decision.GLOBAL: torch.tensor([True, False])})
    assert chosen.decision.tolist() == [Decision.GLOBAL, Decision.ABSTAIN]


@pytest.mark.parametrize("policy", ["switch", "guaranteed"])
def test_decisions_around_any_method_leave_its_training_alone(tmp_path: Path, policy: str) -> None:
    for method in (FedAvg(rounds=2, training=ADAM), FedBABU(rounds=2, training=ADAM)):
        around = Uncertainty(policy=policy).around(method)  # type: ignore[arg-type]
        bare = Federation(method, tmp_path / f"{method.name}-bare")
        full = Federation(around, tmp_path / f"{method.name}-{policy}")
        bare.run()
        full.run()
        assert_same(bare.server, {group: full.server[group] for group in bare.server})


def guarantee_sites(n: int, seed: int) -> list[SiloContext]:
    """Silos whose local model is wrong ever more often as its score grows; the global one is right and less sure."""
    generator = torch.Generator().manual_seed(seed)

    def draw(size: int) -> tuple[Tensor, Tensor]:
        score = torch.rand(size, 2, generator=generator)
        wrong = torch.rand(size, 2, generator=generator) < torch.stack([score[:, 0] * 0.4, score[:, 1] * 0.1], 1)
        return torch.cat([score, wrong.float()], 1), torch.zeros(size, dtype=torch.long)

    return [context(f"silo-{k}", *draw(n), validation=draw(n)[0]) for k in range(5)]


def test_guaranteed_policy_answers_with_few_errors_and_says_so() -> None:
    method = Guaranteed(Told(), risk=0.1, confidence_level=0.9)
    sites = guarantee_sites(400, seed=0)
    server, states = agreed(method, sites)
    found = method.outcome(server)["guarantee"]
    assert isinstance(found, dict)
    assert found["guaranteed"] is True
    assert "at most 10 % errors" in found["statement"]
    fresh = guarantee_sites(20_000, seed=1)[0].calibration
    prediction = method.predict(method.broadcast(server), states["silo-0"], sites[0], fresh.x)
    answered = prediction.decision != Decision.ABSTAIN
    assert answered.double().mean() == pytest.approx(found["coverage"], abs=0.05)
    assert (prediction.label != fresh.y)[answered].double().mean() <= 0.1
    assert set(prediction.decision.tolist()) == set(Decision)


def test_without_enough_data_nothing_is_guaranteed_and_nothing_answered() -> None:
    method = Guaranteed(Told(), risk=0.01, confidence_level=0.99)
    sites = guarantee_sites(10, seed=0)
    server, states = agreed(method, sites)
    found = method.outcome(server)["guarantee"]
    assert isinstance(found, dict)
    assert found["guaranteed"] is False
    assert "no share of inputs can be answered" in found["statement"]
    prediction = method.predict(method.broadcast(server), states["silo-0"], sites[0], sites[0].calibration.x)
    assert set(prediction.decision.tolist()) == {Decision.ABSTAIN}


def test_uncertainty_settings_refuse_what_a_policy_ignores() -> None:
    with pytest.raises(ConfigurationError, match=r"uncertainty\.risk = 0\.1 is not used by policy 'switch'"):
        Uncertainty(policy="switch", risk=0.1)
    with pytest.raises(ConfigurationError, match=r"uncertainty\.score = 'total' is not used by policy 'always'"):
        Uncertainty(score="total", familiarity=False).around(FedAvg())
    with pytest.raises(ConfigurationError, match=r"not used by policy 'always', the default of 'fedavg'"):
        Uncertainty(handover_rate=0.1).around(FedAvg())
    with pytest.raises(
        ConfigurationError, match=r"not a score of 'fedavg', expected one of unfamiliar, epistemic, aleatoric, total"
    ):
        Uncertainty(policy="switch", score="log_evidence").around(FedAvg())


def test_by_default_a_method_decides_as_it_says_itself() -> None:
    method = FedAvg()
    assert Uncertainty(temperature_scaling=False, familiarity=False).around(method) is method
    assert Uncertainty(familiarity=False).around(method) == TemperatureScaled(method)
    assert Uncertainty().around(method) == PooledAlarms(TemperatureScaled(method), false_alarm_rate=0.05, shared=True)
    assert Uncertainty(score="epistemic").around(method) == PooledAlarms(TemperatureScaled(method), score="epistemic")


def test_a_method_beside_gets_the_keys_that_mean_something_to_it() -> None:
    asked = Uncertainty(policy="switch", score="dirichlet_entropy", handover_rate=0.2)
    assert asked.fitting(FedAvg()) == Uncertainty(policy="switch", handover_rate=0.2)
    assert Uncertainty(score="dirichlet_entropy", handover_rate=0.2).fitting(FedAvg()) == Uncertainty()
    asked.fitting(FedAvg()).around(FedAvg())
