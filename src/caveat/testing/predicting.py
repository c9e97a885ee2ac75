"""What predictions must be, whoever asks, and when."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from ..core import Data, Decision, Prediction, Round
from ..core.silo import LateData
from ..engines.rounds import Participation
from .checked import CheckedMethod, chain, explained
from .federation import LATEST
from .same import Violation, check


@dataclass(frozen=True)
class LateJoin(Participation):
    """Has silo-2 join with a round."""

    joins: int = 0

    def cohort(self, t: int, step: Round, silos: Any) -> Any:
        return [silo for silo in silos if silo != "silo-2" or t >= self.joins]


def a_silo_that_joins_late_predicts_before_and_after_its_first_round(trial: CheckedMethod) -> None:
    joins = len(list(trial.method.schedule())) // 2
    late = LateJoin(0, joins=joins)
    federation = trial.federation("late")
    for start, stop, when in ((0, joins, "before"), (joins, LATEST, "after")):
        federation.run(participation=late, start=start, stop=stop)
        state, site = federation.states()["silo-2"], federation.place.site("silo-2")
        found = trial.method.predict(trial.method.broadcast(federation.server), state, site, site.validation.x)
        with explained(f"what a silo predicts {when} its first round"):
            check_well_formed(found, len(site.validation))


def predictions_are_well_formed(trial: CheckedMethod) -> None:
    down = trial.method.broadcast(trial.whole.server)
    for name, silo in trial.whole.place.silos.items():
        state, site = trial.whole.states()[name], trial.whole.place.site(silo.name)
        prediction = trial.method.predict(down, state, site, silo.test.x)
        check_well_formed(prediction, len(silo.test))
        check((prediction.epistemic > 0).any(), "epistemic uncertainty is 0 for every input")


def in_the_end_a_silo_can_ask_the_models_that_are_declared(trial: CheckedMethod) -> None:
    declared = set(chain(trial.method)[-1].models)
    for name, silo in trial.whole.place.silos.items():
        site, state = trial.whole.place.site(silo.name), trial.whole.states()[name]
        answers = trial.method.answer(trial.method.broadcast(trial.whole.server), state, site, silo.test.x)
        check(set(answers) == declared, f"{name} has answers of {_names(answers)}; `models` is {_names(declared)}")
        for whose, answer in answers.items():
            check_well_formed(answer, len(silo.test))
            check(set(answer.decision.tolist()) == {whose}, f"an answer of {whose.name} says that it is of another")


def a_prediction_does_not_depend_on_the_inputs_beside_it(trial: CheckedMethod) -> None:
    method, whole = trial.method, trial.whole
    down, state, silo = method.broadcast(whole.server), whole.states()["silo-1"], whole.place.silos["silo-1"]
    together = method.predict(down, state, whole.place.site(silo.name), silo.test.x)
    alone = method.predict(down, state, whole.place.site(silo.name), silo.test.x[7:8])
    near = torch.allclose(together.probs[7:8], alone.probs, rtol=1e-7, atol=1e-7)
    check(near, "the prediction of an input depends on the inputs beside it")


def a_prediction_needs_no_data_of_the_silo(trial: CheckedMethod) -> None:
    method, whole = trial.method, trial.whole
    down, state, silo = method.broadcast(whole.server), whole.states()["silo-1"], whole.place.silos["silo-1"]

    def refuse() -> Data:
        raise Violation("a prediction looks at a silo's data, which a finished run does not have elsewhere")

    expected = method.predict(down, state, whole.place.site(silo.name), silo.test.x)
    site, none = whole.place.site(silo.name), LateData.of(refuse)
    found = method.predict(down, state, replace(site, train=none, validation=none, calibration=none), silo.test.x)
    check(torch.equal(found.probs, expected.probs), "without a silo's data another prediction is made")


def check_well_formed(prediction: Prediction, count: int) -> None:
    """Raises Violation for probabilities that do not add up, and for uncertainties that are no numbers or too small."""
    check(len(prediction) == count, f"{len(prediction)} predictions of {count} inputs")
    sums, ones = prediction.probs.sum(-1), torch.ones(count, dtype=torch.float64)
    check(sums.dtype == ones.dtype, f"probabilities are {sums.dtype}, expected float64")
    check(torch.allclose(sums, ones, rtol=1e-7, atol=1e-7), "the probabilities of an input do not add up to 1")
    known = {"total", "aleatoric", "epistemic"}
    check(known <= set(prediction.uncertainty), f"a prediction has to have {', '.join(sorted(known))} uncertainty")
    for name, values in prediction.scores.items():
        check(values.shape == (count,), f"{name} is of shape {tuple(values.shape)}, expected ({count},)")
        check(values.isfinite().all(), f"{name} is not finite for every input")
    for name in known:
        check((prediction.uncertainty[name] >= 0).all(), f"{name} uncertainty is negative")
    check((prediction.total >= prediction.aleatoric).all(), "aleatoric uncertainty is more than the total")
    check(set(prediction.decision.tolist()) <= set(Decision), "a decision is none of caveat.Decision")


def _names(decisions: Any) -> str:
    return ", ".join(sorted(Decision(each).name for each in decisions)) or "nobody"
