"""The checks for every method, of predictions, messages, access to data, mutation, and bit-identical results."""

import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from .. import core
from ..core.silo import LateData
from ..engines.executor import Executor
from ..engines.rounds import Participation
from ..engines.single_machine import SingleMachineEngine
from ..runs.summary import check_outcome, check_silo_entries
from ..training.modules import tensors_of
from ..wrappers.evaluation import TEST, VALIDATION
from .federation import (
    LATEST,
    CheckedMethod,
    SmallFederation,
    Violation,
    assert_same,
    assert_same_states,
    chain,
    check,
    explained,
    flat,
    kept_state,
    newest_state,
    small_silos,
)

SPLITS = ("train", "validation", "calibration", "test")


@dataclass(frozen=True)
class LateJoin(Participation):
    """Participation in which silo-2 joins at the round `joins`."""

    joins: int = 0

    def cohort(self, t: int, step: core.Round, silos: Any) -> Any:
        return [silo for silo in silos if silo != "silo-2" or t >= self.joins]


def a_silo_that_joins_late_predicts_before_and_after_its_first_round(trial: CheckedMethod) -> None:
    joins = len(list(trial.method.schedule())) // 2
    late = LateJoin(0, joins=joins)
    federation = trial.federation("late")
    for start, stop, when in ((0, joins, "before"), (joins, LATEST, "after")):
        federation.run(participation=late, start=start, stop=stop)
        state, context = federation.states()["silo-2"], federation.place.context("silo-2")
        found = trial.method.predict(trial.method.broadcast(federation.server), state, context, context.validation.x)
        with explained(f"the prediction of a silo {when} its first round"):
            check_well_formed(found, len(context.validation))


def predictions_are_well_formed(trial: CheckedMethod) -> None:
    down = trial.method.broadcast(trial.whole.server)
    for name, silo in trial.whole.place.silos.items():
        state, context = trial.whole.states()[name], trial.whole.place.context(silo.name)
        prediction = trial.method.predict(down, state, context, silo.test.x)
        check_well_formed(prediction, len(silo.test))
        check((prediction.epistemic > 0).any(), "epistemic uncertainty is 0 for every input")


def in_the_end_a_silo_can_ask_the_models_that_are_declared(trial: CheckedMethod) -> None:
    declared = set(chain(trial.method)[-1].models)
    for name, silo in trial.whole.place.silos.items():
        context, state = trial.whole.place.context(silo.name), trial.whole.states()[name]
        answers = trial.method.answer(trial.method.broadcast(trial.whole.server), state, context, silo.test.x)
        check(set(answers) == declared, f"{name} predicts with {_names(answers)}, `models` declares {_names(declared)}")
        for whose, answer in answers.items():
            check_well_formed(answer, len(silo.test))
            check(set(answer.decision.tolist()) == {whose}, f"a prediction of {whose.name} has another decision")


def a_prediction_does_not_depend_on_the_inputs_beside_it(trial: CheckedMethod) -> None:
    method, whole = trial.method, trial.whole
    down, state, silo = method.broadcast(whole.server), whole.states()["silo-1"], whole.place.silos["silo-1"]
    together = method.predict(down, state, whole.place.context(silo.name), silo.test.x)
    alone = method.predict(down, state, whole.place.context(silo.name), silo.test.x[7:8])
    near = torch.allclose(together.probs[7:8], alone.probs, rtol=1e-7, atol=1e-7)
    check(near, "the prediction of an input depends on other inputs in the batch")


def a_prediction_needs_no_data_of_the_silo(trial: CheckedMethod) -> None:
    method, whole = trial.method, trial.whole
    down, state, silo = method.broadcast(whole.server), whole.states()["silo-1"], whole.place.silos["silo-1"]

    def refuse() -> core.Data:
        raise Violation("a prediction reads a silo's data, which are missing if a run is loaded on another machine")

    expected = method.predict(down, state, whole.place.context(silo.name), silo.test.x)
    context, none = whole.place.context(silo.name), LateData.of(refuse)
    found = method.predict(down, state, replace(context, train=none, validation=none, calibration=none), silo.test.x)
    check(torch.equal(found.probs, expected.probs), "a prediction changes without the silo's data")


def check_well_formed(prediction: core.Prediction, count: int) -> None:
    """Raise Violation unless probabilities sum to 1, uncertainties and scores are valid, and decisions are valid."""
    check(len(prediction) == count, f"{len(prediction)} predictions for {count} inputs")
    sums, ones = prediction.probs.sum(-1), torch.ones(count, dtype=torch.float64)
    check(sums.dtype == ones.dtype, f"probabilities are {sums.dtype}, expected float64")
    check(torch.allclose(sums, ones, rtol=1e-7, atol=1e-7), "the probabilities of an input do not sum to 1")
    known = {"total", "aleatoric", "epistemic"}
    check(known <= set(prediction.uncertainty), f"a prediction needs the uncertainties {', '.join(sorted(known))}")
    for name, values in prediction.scores.items():
        check(values.shape == (count,), f"{name} has shape {tuple(values.shape)}, expected ({count},)")
        check(values.isfinite().all(), f"{name} is not finite for every input")
    for name in known:
        check((prediction.uncertainty[name] >= 0).all(), f"{name} uncertainty is negative")
    check((prediction.total >= prediction.aleatoric).all(), "aleatoric uncertainty is more than the total")
    check(set(prediction.decision.tolist()) <= set(core.Decision), "a decision is not a value of caveat.Decision")


def _names(decisions: Any) -> str:
    return ", ".join(sorted(core.Decision(each).name for each in decisions)) or "nobody"


def nothing_passed_in_is_mutated(trial: CheckedMethod) -> None:
    federation = trial.federation("mutated")
    server = federation.server
    for t, step in enumerate(trial.method.schedule()):
        if step.when(server):
            server = _round_unmutated(federation, t, step, server)


def _round_unmutated(federation: SmallFederation, t: int, step: core.Round, server: core.State) -> core.State:
    place = federation.place
    sent = step.broadcast(server)
    kept = copy.deepcopy((server, sent))
    updates = {}
    for name, data in place.silos.items():
        state = kept_state(place, name, t - 1)
        state_before = copy.deepcopy(state)
        data_before = copy.deepcopy([getattr(data, split) for split in SPLITS])
        updates[name], after = step.task(sent, state, place.context(name))
        with explained(f"{step.name} mutates what was broadcast"):
            assert_same(sent, kept[1])
        with explained(f"{step.name} mutates the state that was passed to it"):
            assert_same(state, state_before)
        for split, (x, y) in zip(SPLITS, data_before, strict=True):
            mine = getattr(data, split)
            untouched = torch.equal(mine.x, x) and torch.equal(mine.y, y)
            check(untouched, f"{step.name} mutates the {split} split of a silo")
        place.states.begin()
        place.states.save(name, t, after)
    updates_before = copy.deepcopy(updates)
    new = step.aggregate(server, core.Replies(updates, len(updates)), federation.context)
    with explained(f"the aggregation of {step.name} mutates the server's state that was passed to it"):
        assert_same(server, kept[0])
    with explained(f"the aggregation of {step.name} mutates what was broadcast"):
        assert_same(sent, kept[1])
    with explained(f"the aggregation of {step.name} mutates the silos' replies"):
        for name in updates:
            assert_same(updates[name].payload, updates_before[name].payload)
    return new


def only_what_the_manifest_names_leaves_a_silo(trial: CheckedMethod) -> None:
    parts = chain(trial.method)
    lacking = [type(part).__name__ for part in parts if type(part).__name__ not in trial.manifest]
    check(not lacking, f"the manifest has no {lacking}; it must list the tensors that leave a silo, by class and group")
    allowed = {group: names for part in parts for group, names in trial.manifest[type(part).__name__].items()}
    within = parts[-1]
    private = within.private(trial.whole.place.module) if hasattr(within, "private") else frozenset()
    for done in trial.whole.done:
        for update in done.replies.updates.values():
            for path in flat(update.payload):
                group, name = path.split("/", 1)
                names = allowed.get(group, [])
                named = "*" in names or any(name == each or name.startswith(each + ".") for each in names)
                check(named, f"{path} leaves the silos in {done.step.name} but is not in the manifest")
                check(not (group == "model" and name in private), f"{path} is private but leaves the silos")


def no_work_of_a_schedule_sees_the_test_split(trial: CheckedMethod) -> None:
    for step in trial.method.schedule():
        check(not core.is_evaluation(step.task), f"{step.name} is an evaluation, which a schedule must not contain")
    for name in trial.whole.place.silos:
        context = trial.whole.place.context(name)
        check(not isinstance(context, core.TestContext), f"{name} passes its test split to tasks")
        check(not hasattr(context, "test"), f"{name} passes its test split to tasks")


def no_prediction_sees_a_label_of_the_test_split(trial: CheckedMethod) -> None:
    kind, whole, seen = type(trial.method), trial.whole, list[bool]()
    answer, inherited = kind.answer, "answer" not in vars(kind)

    def spy(self: core.Method, down: core.Payload, state: core.State, context: Any, x: Tensor) -> Any:
        seen.append(isinstance(context, core.TestContext) or hasattr(context, "test"))
        return answer(self, down, state, context, x)

    kind.answer = spy  # type: ignore[method-assign]
    try:
        for look in (VALIDATION, TEST):
            down, kept = trial.method.broadcast(whole.server), newest_state(whole.place.states, "silo-0")
            whole.place.perform(LATEST, look, down, "silo-0", kept)
    finally:
        if inherited:
            del kind.answer
        else:
            kind.answer = answer  # type: ignore[method-assign]
    # The last evaluation predicts the test split and, for `metrics.skill`, the validation split.
    check(seen == [False] * 3, "a prediction gets a context with the test split, or is not made once per split")


def what_it_reports_has_names_of_its_own(trial: CheckedMethod) -> None:
    method, whole = trial.method, trial.whole
    try:
        check_outcome(method, method.outcome(whole.server))
        for name, silo in whole.place.silos.items():
            down, state = method.broadcast(whole.server), whole.states()[name]
            numbers = method.describe(down, state, whole.place.context(name), silo.test.x)
            if numbers:
                check_silo_entries(method, method.summarize(numbers))
    except core.ConfigurationError as error:
        raise Violation(str(error)) from None


def the_same_run_gives_the_same_bits(trial: CheckedMethod) -> None:
    again = trial.federation("again")
    again.run()
    drawn = (
        "look for unseeded randomness, such as a separate torch.Generator or numpy.random.default_rng (only the global "
        "generators of torch, numpy.random and random are seeded), and for clocks, sets and attributes that change"
    )
    try:
        with explained("repeating a run gives a different result"):
            assert_same(trial.whole.server, again.server)
            assert_same_states(trial.whole.states(), again.states())
        down = trial.method.broadcast(again.server)
        for name, silo in again.place.silos.items():
            state = kept_state(again.place, name)
            one, other = (_asked(trial.method, down, state, again.place.context(name), silo.test.x) for _ in range(2))
            check(torch.equal(one, other), f"{name} predicts different probabilities the second time")
    except Violation as error:
        raise Violation(f"{error}; {drawn}") from None


def _asked(method: core.Method, down: core.Payload, state: core.State, context: core.SiloContext, x: Tensor) -> Tensor:
    with core.seeded("asked"):
        return method.predict(down, state, context, x).probs


def two_workers_give_the_bits_of_one(trial: CheckedMethod) -> None:
    other = trial.federation("two", workers=2)
    other.run()
    trial.same_as_whole(other, "two workers give a different result than one")


def resumed_run_equals_uninterrupted(trial: CheckedMethod) -> None:
    for at in (1, 4):
        first = trial.federation(f"cut-{at}")
        first.run(stop=at)
        second = trial.federation(f"cut-{at}")
        second.server = first.server
        second.run(start=at)
        trial.same_as_whole(second, f"a run that is interrupted after round {at} and resumed gives a different result")


def a_round_done_twice_after_a_kill_changes_nothing(trial: CheckedMethod) -> None:
    # Silos may be a round ahead of the server's checkpoint when a run is killed.
    first = trial.federation("killed")
    first.run(stop=1)
    before = first.server
    first.run(start=1, stop=2)
    second = trial.federation("killed")
    second.server = before
    second.run(start=1)
    trial.same_as_whole(second, "a repeated round after a kill gives a different result")


class Poisoned(Executor):
    """An executor that fills every workspace with NaN before a task gets it."""

    def perform(self, *args: Any) -> Any:
        for module in (self.module, *self.own.values()):
            for tensor in tensors_of(module).values():  # frozen tensors are loaded only once
                if tensor.is_floating_point():
                    tensor.fill_(torch.nan)
        return super().perform(*args)


def weights_left_in_the_workspace_mean_nothing(trial: CheckedMethod) -> None:
    other = trial.federation("poisoned")
    names = ("method", "module", "silos", "states", "seed", "own")
    other.place = Poisoned(**{name: getattr(other.place, name) for name in names})
    other.run()
    trial.same_as_whole(other, "the result depends on weights left in context.module or context.own")


class Backwards(SingleMachineEngine):
    """An engine that asks silos in the reverse order."""

    def queue(self, group: Any) -> Any:
        return sorted(group, reverse=True)


def order_in_which_silos_answer_is_free(trial: CheckedMethod) -> None:
    other = trial.federation("backwards")
    other.run(engine=Backwards(other.place))
    trial.same_as_whole(other, "the result depends on the order in which silos answer")


def evaluation_changes_no_bit_of_training(trial: CheckedMethod) -> None:
    other = trial.federation("curious")

    class Curious(SingleMachineEngine):
        def exchange(self, t: int, address: str, payload: core.Payload, cohort: Any, *more: Any) -> Any:
            for look in (VALIDATION, TEST):
                replies = super().exchange(t - 1, look, trial.method.broadcast(other.server), self.silos)
                every = all(u.payload["sums"]["examples"] == 20 for u in replies.updates.values())
                check(every, f"{look} is not computed on the 20 inputs that every silo has for it")
            return super().exchange(t, address, payload, cohort, *more)

    other.run(engine=Curious(other.place))
    trial.same_as_whole(other, "evaluation between rounds changes the result of training")


def permuting_test_labels_changes_no_bit(trial: CheckedMethod) -> None:
    data = small_silos()
    for name, silo in data.items():
        object.__setattr__(silo, "test", core.Data(silo.test.x, silo.test.y.flip(0)))
        check(not torch.equal(silo.test.y, trial.whole.place.silos[name].test.y), "the labels are the same")
    other = trial.federation("permuted", data=data)
    other.run()
    trial.same_as_whole(other, "labels of the test split change the result of training")


def partial_participation_is_the_same_whatever_the_workers(trial: CheckedMethod) -> None:
    some = Participation(seed=3, share=0.5)
    one, two = trial.federation("some"), trial.federation("some-two", workers=2)
    with explained("with partial participation, two workers give a different result than one"):
        assert_same(one.run(participation=some), two.run(participation=some))
    sizes = {len(done.cohort) for done in one.done if not done.step.everyone}
    check(sizes <= {2}, f"numbers of silos in rounds are {sizes}, expected 2, half of three silos rounded up")
