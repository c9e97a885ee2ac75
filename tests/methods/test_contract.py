"""What every method must satisfy. A new method is tested by adding a line to METHODS in federations.py."""

from __future__ import annotations

import copy
import tomllib
from pathlib import Path

import pytest
import torch
from federations import METHODS, WRAPPED, Federation, assert_same, assert_same_states, flat, kept_state, silos

from caveat import methods
from caveat.core import Answers, Data, Decision, Method, Payload, Replies, Site, State, TestSite, is_evaluation
from caveat.engines.executor import Executor
from caveat.engines.processes.pool import EmbeddedEngine
from caveat.engines.rounds import Participation
from caveat.wrappers.base import Wrapper
from caveat.wrappers.evaluation import TEST, VALIDATION

EVERY = METHODS + WRAPPED
names = [type(method).__name__ for method in EVERY]
each = pytest.mark.parametrize(
    "method", EVERY, ids=[name + "-options" * names[:i].count(name) for i, name in enumerate(names)]
)
SPLITS = ("train", "validation", "calibration", "test")
MANIFEST = tomllib.loads((Path(__file__).parents[1] / "manifest.toml").read_text())


def chain(method: Method) -> list[Method]:
    """The method, and what it is wrapped around."""
    return [method, *chain(method.base)] if isinstance(method, Wrapper) else [method]


@pytest.fixture
def whole(method: Method, tmp_path: Path) -> Federation:
    """The method's whole schedule with one worker, uninterrupted."""
    federation = Federation(method, tmp_path / "whole")
    federation.run()
    return federation


def test_every_method_in_the_table_is_tested_here() -> None:
    assert {type(method) for method in METHODS} == set(methods.METHODS.values())


def test_extension_of_codebooks_is_part_of_what_is_tested_here(tmp_path: Path) -> None:
    federation = Federation(next(m for m in METHODS if isinstance(m, methods.UEFL)), tmp_path)
    federation.run()
    assert sum(int(state["model"]["codebook.used"]) > 0 for state in federation.states().values()) >= 2


@each
def test_two_workers_give_the_bits_of_one(method: Method, whole: Federation, tmp_path: Path) -> None:
    other = Federation(method, tmp_path / "two", workers=2)
    assert_same(whole.server, other.run())
    assert_same_states(whole.states(), other.states())


@each
@pytest.mark.parametrize("at", [1, 4])
def test_resumed_run_equals_uninterrupted(method: Method, whole: Federation, tmp_path: Path, at: int) -> None:
    first = Federation(method, tmp_path / "cut")
    first.run(stop=at)
    second = Federation(method, tmp_path / "cut")
    second.server = first.server
    assert_same(whole.server, second.run(start=at))
    assert_same_states(whole.states(), second.states())


@each
def test_a_round_done_twice_after_a_kill_changes_nothing(method: Method, whole: Federation, tmp_path: Path) -> None:
    """Silos may be a round ahead of the server's checkpoint when a run is killed."""
    first = Federation(method, tmp_path / "cut")
    first.run(stop=1)
    before = first.server
    first.run(start=1, stop=2)
    second = Federation(method, tmp_path / "cut")
    second.server = before
    assert_same(whole.server, second.run(start=1))
    assert_same_states(whole.states(), second.states())


@each
def test_nothing_passed_in_is_mutated(method: Method, tmp_path: Path) -> None:
    federation = Federation(method, tmp_path)
    place, server = federation.place, federation.server
    for t, step in enumerate(method.schedule()):
        if not step.when(server):
            continue
        sent = step.broadcast(server)
        kept = copy.deepcopy((server, sent))
        updates = {}
        for name, data in place.silos.items():
            state = kept_state(place, name, t - 1)
            state_before = copy.deepcopy(state)
            data_before = copy.deepcopy([getattr(data, split) for split in SPLITS])
            updates[name], after = step.work(sent, state, place.site(name))
            assert_same(state, state_before)
            for split, (x, y) in zip(SPLITS, data_before, strict=True):
                assert torch.equal(getattr(data, split).x, x)
                assert torch.equal(getattr(data, split).y, y)
            place.states.begin()
            place.states.save(name, t, after)
        updates_before = copy.deepcopy(updates)
        new = step.aggregate(server, Replies(updates, len(updates)), federation.site)
        assert_same(server, kept[0])
        assert_same(sent, kept[1])
        for name in updates:
            assert_same(updates[name].payload, updates_before[name].payload)
        server = new


@each
def test_weights_left_in_the_workspace_mean_nothing(method: Method, whole: Federation, tmp_path: Path) -> None:
    class Poisoned(Executor):
        def perform(self, *args):  # type: ignore[no-untyped-def]
            for module in (self.module, *self.own.values()):
                for tensor in module.state_dict().values():
                    if tensor.is_floating_point():
                        tensor.fill_(torch.nan)
            return super().perform(*args)

    other = Federation(method, tmp_path / "poisoned")
    other.place = Poisoned(
        **{name: getattr(other.place, name) for name in ("method", "module", "silos", "states", "seed", "own")}
    )
    assert_same(whole.server, other.run())
    assert_same_states(whole.states(), other.states())


@each
def test_order_in_which_silos_answer_is_free(method: Method, whole: Federation, tmp_path: Path) -> None:
    class Backwards(EmbeddedEngine):
        def queue(self, group):  # type: ignore[no-untyped-def]
            return sorted(group, reverse=True)

    other = Federation(method, tmp_path / "backwards")
    assert_same(whole.server, other.run(engine=Backwards(other.place)))
    assert_same_states(whole.states(), other.states())


@each
def test_evaluation_changes_no_bit_of_training(method: Method, whole: Federation, tmp_path: Path) -> None:
    class Curious(EmbeddedEngine):
        def exchange(self, t, address, payload, cohort, linear=None):  # type: ignore[no-untyped-def]
            for look in (VALIDATION, TEST):
                replies = super().exchange(t - 1, look, payload_to_predict(), self.silos)
                assert all(u.payload["sums"]["examples"] == 20 for u in replies.updates.values())
            return super().exchange(t, address, payload, cohort, linear)

    other = Federation(method, tmp_path / "curious")

    def payload_to_predict():  # type: ignore[no-untyped-def]
        return method.broadcast(other.server)

    assert_same(whole.server, other.run(engine=Curious(other.place)))
    assert_same_states(whole.states(), other.states())


@each
def test_only_what_the_manifest_names_leaves_a_silo(method: Method, whole: Federation) -> None:
    allowed = {group: names for part in chain(method) for group, names in MANIFEST[type(part).__name__].items()}
    within = chain(method)[-1]
    private = within.private(whole.place.module) if hasattr(within, "private") else frozenset()
    for done in whole.done:
        for update in done.replies.updates.values():
            for path in flat(update.payload):
                group, name = path.split("/")
                names = allowed.get(group, [])
                assert "*" in names or any(name == a or name.startswith(a + ".") for a in names), path
                assert not (group == "model" and name in private), path


@each
def test_no_work_of_a_schedule_sees_the_test_split(method: Method, whole: Federation) -> None:
    for step in method.schedule():
        assert not is_evaluation(step.work)
    for name in whole.place.silos:
        site = whole.place.site(name)
        assert not isinstance(site, TestSite)
        assert not hasattr(site, "test"), name


@each
@pytest.mark.parametrize("look", [VALIDATION, TEST])
def test_no_prediction_sees_a_label_of_the_test_split(
    method: Method, whole: Federation, monkeypatch: pytest.MonkeyPatch, look: str
) -> None:
    seen = []

    def spy(self: Method, down: Payload, state: State, site: Site, x: torch.Tensor) -> Answers:
        seen.append(isinstance(site, TestSite) or hasattr(site, "test"))
        return answer(self, down, state, site, x)

    answer = type(method).answer
    monkeypatch.setattr(type(method), "answer", spy)
    whole.place.perform(
        10**6, look, method.broadcast(whole.server), "silo-0", whole.place.states.adopt("silo-0", 10**6)
    )
    assert seen == [False]


@each
def test_permuting_test_labels_changes_no_bit(method: Method, whole: Federation, tmp_path: Path) -> None:
    data = silos()
    for name, s in data.items():
        object.__setattr__(s, "test", Data(s.test.x, s.test.y.flip(0)))
        assert not torch.equal(s.test.y, whole.place.silos[name].test.y)
    other = Federation(method, tmp_path / "permuted", data=data)
    assert_same(whole.server, other.run())
    assert_same_states(whole.states(), other.states())


@each
def test_a_silo_that_joins_late_predicts_before_and_after_its_first_round(method: Method, tmp_path: Path) -> None:
    class Late(Participation):
        def cohort(self, t, step, silos):  # type: ignore[no-untyped-def]
            return [s for s in silos if s != "silo-2" or t >= joins]

    joins = len(list(method.schedule())) // 2
    federation = Federation(method, tmp_path)
    federation.run(participation=Late(0), stop=joins)
    for bounds in ({}, {"start": joins}):
        if bounds:
            federation.run(participation=Late(0), **bounds)
        state = federation.states()["silo-2"]
        site = federation.place.site("silo-2")
        prediction = method.predict(method.broadcast(federation.server), state, site, site.validation.x)
        assert_well_formed(prediction, len(site.validation))


@each
def test_partial_participation_is_the_same_whatever_the_workers(method: Method, tmp_path: Path) -> None:
    some = Participation(seed=3, share=0.5)
    one, two = Federation(method, tmp_path / "one"), Federation(method, tmp_path / "two", workers=2)
    assert_same(one.run(participation=some), two.run(participation=some))
    assert {len(done.cohort) for done in one.done if not done.step.everyone} == {2}


@each
def test_predictions_are_well_formed(method: Method, whole: Federation) -> None:
    down = method.broadcast(whole.server)
    for name, s in whole.place.silos.items():
        state = whole.states()[name]
        prediction = method.predict(down, state, whole.place.site(s.name), s.test.x)
        assert_well_formed(prediction, len(s.test))
        assert (prediction.epistemic > 0).any()


@each
def test_in_the_end_a_silo_can_ask_the_models_that_are_declared(method: Method, whole: Federation) -> None:
    for name, s in whole.place.silos.items():
        site = whole.place.site(s.name)
        answers = method.answer(method.broadcast(whole.server), whole.states()[name], site, s.test.x)
        assert set(answers) == set(chain(method)[-1].models)
        for whose, answer in answers.items():
            assert_well_formed(answer, len(s.test))
            assert set(answer.decision.tolist()) == {whose}


@each
def test_a_prediction_does_not_depend_on_the_inputs_beside_it(method: Method, whole: Federation) -> None:
    down, state = method.broadcast(whole.server), whole.states()["silo-1"]
    s = whole.place.silos["silo-1"]
    together = method.predict(down, state, whole.place.site(s.name), s.test.x)
    alone = method.predict(down, state, whole.place.site(s.name), s.test.x[7:8])
    torch.testing.assert_close(together.probs[7:8], alone.probs)


def assert_well_formed(prediction, count: int) -> None:  # type: ignore[no-untyped-def]
    assert len(prediction) == count
    torch.testing.assert_close(prediction.probs.sum(-1), torch.ones(count, dtype=torch.float64))
    assert {"total", "aleatoric", "epistemic"} <= set(prediction.uncertainty)
    for name, values in prediction.scores.items():
        assert values.shape == (count,), name
        assert values.isfinite().all(), name
    assert all((prediction.uncertainty[name] >= 0).all() for name in ("total", "aleatoric", "epistemic"))
    assert (prediction.total >= prediction.aleatoric).all()
    assert set(prediction.decision.tolist()) <= set(Decision)


def test_another_seed_gives_another_model(tmp_path: Path) -> None:
    method = METHODS[1]
    one, other = Federation(method, tmp_path / "0"), Federation(method, tmp_path / "1")
    other.place.seed = 1
    assert not torch.equal(one.run()["model"]["head.1.weight"], other.run()["model"]["head.1.weight"])
