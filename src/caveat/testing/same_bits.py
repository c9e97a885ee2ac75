"""What a result must not depend on: workers, interruptions, order, workspaces, evaluation, labels of tests."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..core import Data, Method, Payload, Site, State, seeded
from ..engines.executor import Executor
from ..engines.processes.pool import EmbeddedEngine
from ..engines.rounds import Participation
from ..training.modules import tensors_of
from ..wrappers.evaluation import TEST, VALIDATION
from .checked import CheckedMethod, explained
from .federation import kept_state, small_silos
from .same import Violation, assert_same, assert_same_states, check


def the_same_run_gives_the_same_bits(trial: CheckedMethod) -> None:
    again = trial.federation("again")
    again.run()
    drawn = (
        "look for randomness that is not torch's global generator, which alone is seeded (random, numpy.random, a "
        "torch.Generator of its own), for clocks, sets, and what the object keeps from call to call"
    )
    try:
        with explained("the same run, made again, comes to other bits"):
            assert_same(trial.whole.server, again.server)
            assert_same_states(trial.whole.states(), again.states())
        _check_answers(again.place, trial.method, trial.method.broadcast(again.server))
    except Violation as error:
        raise Violation(f"{error}; {drawn}") from None


def _check_answers(place: Executor, method: Method, down: Payload) -> None:
    """Raises Violation unless silos predict the same when they are asked twice."""
    for name, silo in place.silos.items():
        state = kept_state(place, name)
        one, other = (_asked(method, down, state, place.site(name), silo.test.x) for _ in range(2))
        check(torch.equal(one, other), f"{name} predicts other probabilities when it is asked again")


def _asked(method: Method, down: Payload, state: State, site: Site, x: Tensor) -> Tensor:
    with seeded("asked"):
        return method.predict(down, state, site, x).probs


def two_workers_give_the_bits_of_one(trial: CheckedMethod) -> None:
    other = trial.federation("two", workers=2)
    other.run()
    trial.same_as_whole(other, "two workers come to other bits than one")


def resumed_run_equals_uninterrupted(trial: CheckedMethod) -> None:
    for at in (1, 4):
        first = trial.federation(f"cut-{at}")
        first.run(stop=at)
        second = trial.federation(f"cut-{at}")
        second.server = first.server
        second.run(start=at)
        trial.same_as_whole(second, f"a run that is interrupted after round {at} and goes on comes to other bits")


def a_round_done_twice_after_a_kill_changes_nothing(trial: CheckedMethod) -> None:
    # Silos may be a round ahead of the server's checkpoint when a run is killed.
    first = trial.federation("killed")
    first.run(stop=1)
    before = first.server
    first.run(start=1, stop=2)
    second = trial.federation("killed")
    second.server = before
    second.run(start=1)
    trial.same_as_whole(second, "a round that is done once more after a kill comes to other bits")


class Poisoned(Executor):
    """Fills every workspace with NaN before it is handed out."""

    def perform(self, *args: Any) -> Any:
        for module in (self.module, *self.own.values()):
            for tensor in tensors_of(module).values():  # what is frozen is never put in place again
                if tensor.is_floating_point():
                    tensor.fill_(torch.nan)
        return super().perform(*args)


def weights_left_in_the_workspace_mean_nothing(trial: CheckedMethod) -> None:
    other = trial.federation("poisoned")
    names = ("method", "module", "silos", "states", "seed", "own")
    other.place = Poisoned(**{name: getattr(other.place, name) for name in names})
    other.run()
    trial.same_as_whole(other, "the result depends on weights that were left in site.module or site.own")


class Backwards(EmbeddedEngine):
    """Asks silos in another order."""

    def queue(self, group: Any) -> Any:
        return sorted(group, reverse=True)


def order_in_which_silos_answer_is_free(trial: CheckedMethod) -> None:
    other = trial.federation("backwards")
    other.run(engine=Backwards(other.place))
    trial.same_as_whole(other, "the result depends on the order in which silos answer")


def evaluation_changes_no_bit_of_training(trial: CheckedMethod) -> None:
    other = trial.federation("curious")

    class Curious(EmbeddedEngine):
        def exchange(self, t: int, address: str, payload: Payload, cohort: Any, *more: Any) -> Any:
            for look in (VALIDATION, TEST):
                replies = super().exchange(t - 1, look, trial.method.broadcast(other.server), self.silos)
                every = all(u.payload["sums"]["examples"] == 20 for u in replies.updates.values())
                check(every, f"{look} is not of the 20 inputs that every silo has for it")
            return super().exchange(t, address, payload, cohort, *more)

    other.run(engine=Curious(other.place))
    trial.same_as_whole(other, "evaluating between rounds changes what training comes to")


def permuting_test_labels_changes_no_bit(trial: CheckedMethod) -> None:
    data = small_silos()
    for name, silo in data.items():
        object.__setattr__(silo, "test", Data(silo.test.x, silo.test.y.flip(0)))
        check(not torch.equal(silo.test.y, trial.whole.place.silos[name].test.y), "the labels are the same")
    other = trial.federation("permuted", data=data)
    other.run()
    trial.same_as_whole(other, "labels of the test split change what training comes to")


def partial_participation_is_the_same_whatever_the_workers(trial: CheckedMethod) -> None:
    some = Participation(seed=3, share=0.5)
    one, two = trial.federation("some"), trial.federation("some-two", workers=2)
    with explained("with some of the silos per round, two workers come to other bits than one"):
        assert_same(one.run(participation=some), two.run(participation=some))
    sizes = {len(done.cohort) for done in one.done if not done.step.everyone}
    check(sizes <= {2}, f"rounds asked {sizes} silos, expected half of three, rounded up, unless they ask everyone")
