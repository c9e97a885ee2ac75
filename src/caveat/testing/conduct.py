"""What works must not do: change what they are passed, send what is not declared, see the test split."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from ..core import ConfigurationError, Method, Payload, Replies, Round, State, TestSite, is_evaluation
from ..runs.summary import check_outcome, check_silo_entries
from ..wrappers.evaluation import TEST, VALIDATION
from .checked import CheckedMethod, chain, explained
from .federation import LATEST, SmallFederation, kept_state, newest_state
from .same import Violation, assert_same, check, flat

SPLITS = ("train", "validation", "calibration", "test")


def nothing_passed_in_is_mutated(trial: CheckedMethod) -> None:
    federation = trial.federation("mutated")
    server = federation.server
    for t, step in enumerate(trial.method.schedule()):
        if step.when(server):
            server = _round_unmutated(federation, t, step, server)


def _round_unmutated(federation: SmallFederation, t: int, step: Round, server: State) -> State:
    place = federation.place
    sent = step.broadcast(server)
    kept = copy.deepcopy((server, sent))
    updates = {}
    for name, data in place.silos.items():
        state = kept_state(place, name, t - 1)
        state_before = copy.deepcopy(state)
        data_before = copy.deepcopy([getattr(data, split) for split in SPLITS])
        updates[name], after = step.work(sent, state, place.site(name))
        with explained(f"{step.name} mutates what was broadcast"):
            assert_same(sent, kept[1])
        with explained(f"{step.name} mutates the state that it was passed"):
            assert_same(state, state_before)
        for split, (x, y) in zip(SPLITS, data_before, strict=True):
            mine = getattr(data, split)
            untouched = torch.equal(mine.x, x) and torch.equal(mine.y, y)
            check(untouched, f"{step.name} mutates the {split} split of a silo")
        place.states.begin()
        place.states.save(name, t, after)
    updates_before = copy.deepcopy(updates)
    new = step.aggregate(server, Replies(updates, len(updates)), federation.site)
    with explained(f"the aggregation of {step.name} mutates the server's state that it was passed"):
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
    check(not lacking, f"the manifest has no {lacking}, which list by group what leaves a silo")
    allowed = {group: names for part in parts for group, names in trial.manifest[type(part).__name__].items()}
    within = parts[-1]
    private = within.private(trial.whole.place.module) if hasattr(within, "private") else frozenset()
    for done in trial.whole.done:
        for update in done.replies.updates.values():
            for path in flat(update.payload):
                group, name = path.split("/", 1)
                names = allowed.get(group, [])
                named = "*" in names or any(name == each or name.startswith(each + ".") for each in names)
                check(named, f"{path} leaves the silos in {done.step.name} and is not in the manifest")
                check(not (group == "model" and name in private), f"{path} is private and leaves the silos")


def no_work_of_a_schedule_sees_the_test_split(trial: CheckedMethod) -> None:
    for step in trial.method.schedule():
        check(not is_evaluation(step.work), f"{step.name} is an evaluation, which no schedule may hold")
    for name in trial.whole.place.silos:
        site = trial.whole.place.site(name)
        check(not isinstance(site, TestSite), f"{name} hands its test split to works")
        check(not hasattr(site, "test"), f"{name} hands its test split to works")


def no_prediction_sees_a_label_of_the_test_split(trial: CheckedMethod) -> None:
    kind, whole, seen = type(trial.method), trial.whole, list[bool]()
    answer, inherited = kind.answer, "answer" not in vars(kind)

    def spy(self: Method, down: Payload, state: State, site: Any, x: Tensor) -> Any:
        seen.append(isinstance(site, TestSite) or hasattr(site, "test"))
        return answer(self, down, state, site, x)

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
    check(seen == [False, False], "a prediction is handed a site that has the test split, or is not asked once")


def what_it_reports_has_names_of_its_own(trial: CheckedMethod) -> None:
    method, whole = trial.method, trial.whole
    try:
        check_outcome(method, method.outcome(whole.server))
        for name, silo in whole.place.silos.items():
            down, state = method.broadcast(whole.server), whole.states()[name]
            numbers = method.describe(down, state, whole.place.site(name), silo.test.x)
            if numbers:
                check_silo_entries(method, method.summarise(numbers))
    except ConfigurationError as error:
        raise Violation(str(error)) from None
