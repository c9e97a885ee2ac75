"""Ensembles around any method: separate trainings, and snapshots of a single one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from federations import ADAM, FAST, Federation, assert_same, kept_state

import caveat
from caveat.core import ConfigurationError, Decision, Method, Payload, Prediction, SiloContext, State
from caveat.engines.rounds import Participation
from caveat.methods import IFCA, UEFL, Ditto, FedAvg, FedBABU, FedBN, FedPer, Local, TrFedDis
from caveat.wrappers.ensembles import Ensemble, Snapshots, member_groups, numbered
from caveat.wrappers.privacy import Private


def finished(method: Method, folder: Path) -> Federation:
    federation = Federation(method, folder)
    federation.run()
    return federation


# Separate trainings


def test_the_first_member_is_the_run_without_an_ensemble(tmp_path: Path) -> None:
    base = FedAvg(rounds=3, training=ADAM)
    plain, ensemble = finished(base, tmp_path / "plain"), finished(Ensemble(base, 3), tmp_path / "ensemble")
    assert_same(member_groups(0, ensemble.server), plain.server)
    assert [done.step.address for done in ensemble.done] == [
        f"base.member{m}.base.train" for m in (0, 0, 0, 1, 1, 1, 2, 2, 2)
    ]
    weights = [member_groups(m, ensemble.server)["model"]["head.1.weight"] for m in range(3)]
    assert not torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[1], weights[2])


def test_a_member_s_weights_begin_alike_at_the_server_and_at_all_silos(tmp_path: Path) -> None:
    """FedPer's heads stay at silos, and are the same at first."""
    base = FedPer(rounds=1, training=FAST)
    federation = Federation(Ensemble(base, 3, seed=5), tmp_path)
    for m in range(3):
        heads = [member_groups(m, state)["model"]["head.1.weight"] for state in federation.states().values()]
        assert all(torch.equal(heads[0], head) for head in heads)
    drawn = [member_groups(m, federation.server)["model"]["encoder.0.weight"] for m in range(3)]
    assert not torch.equal(drawn[0], drawn[1])
    other = Federation(Ensemble(base, 3, seed=6), tmp_path / "other")
    assert torch.equal(member_groups(0, other.server)["model"]["encoder.0.weight"], drawn[0])
    assert not torch.equal(member_groups(1, other.server)["model"]["encoder.0.weight"], drawn[1])


def test_codebooks_of_members_begin_differently(tmp_path: Path) -> None:
    federation = Federation(Ensemble(UEFL(rounds=1, codewords=4), 2), tmp_path)
    words = [member_groups(m, federation.server)["model"]["codebook.shared"] for m in range(2)]
    assert not torch.equal(words[0], words[1])


def test_predictions_are_means_over_the_members_that_have_begun(tmp_path: Path) -> None:
    base = FedBN(rounds=2, training=ADAM)
    federation = Federation(Ensemble(base, 3), tmp_path)
    x = federation.place.silos["silo-1"].test.x
    for stop, begun in ((1, 1), (3, 2), (6, 3)):
        federation.run(start=len(federation.done), stop=stop)
        down, state = federation.method.broadcast(federation.server), federation.states()["silo-1"]
        context, members = federation.place.context("silo-1"), []
        for m in range(begun):
            ((_, module),) = base.loaded(member_groups(m, down), member_groups(m, state), context)
            with torch.no_grad():
                members.append(module.eval()(x).double().softmax(-1))
        found = federation.method.predict(down, state, context, x)
        expected = Prediction.from_samples(torch.stack(members), Decision.LOCAL)
        torch.testing.assert_close(found.probs, expected.probs)
        torch.testing.assert_close(found.uncertainty, expected.uncertainty)
        assert bool((found.epistemic > 0).any()) == (begun > 1)


@pytest.mark.parametrize(
    "base",
    [
        Private(FedAvg(rounds=2, training=ADAM), clip_norm=1.0, noise_multiplier=0.1, silos=3),
        TrFedDis(rounds=2, training=FAST),
    ],
)
def test_a_member_s_rounds_have_their_places_in_its_own_schedule(base: Method, tmp_path: Path) -> None:
    """Clipping and noise look up the round's work by its place; TrFedDis anneals its weights by it."""
    places = []

    class Spied(type(base)):  # type: ignore[misc]
        def train(self, down: Payload, state: State, context: SiloContext):  # type: ignore[no-untyped-def]
            places.append(context.round)
            return super().train(down, state, context)

    finished(Ensemble(Spied(**vars(base)), 2), tmp_path)
    assert places == [0, 0, 0, 1, 1, 1] * 2


def test_groups_of_a_tenth_member_are_not_those_of_the_first() -> None:
    groups = numbered(1, {"model": {"a": torch.tensor(1)}}) | numbered(10, {"model": {"a": torch.tensor(10)}})
    assert member_groups(1, groups)["model"]["a"] == 1
    assert member_groups(10, groups)["model"]["a"] == 10


# Snapshots


@pytest.mark.parametrize(("rounds", "size", "taken"), [
    (10, 3, [7, 8]), (20, 5, [15, 16, 17, 18]), (50, 2, [48]), (2, 2, [0]),
])  # fmt: skip
def test_snapshots_are_of_the_last_rounds(rounds: int, size: int, taken: list[int]) -> None:
    assert list(Snapshots(FedAvg(rounds=rounds), size).taken) == taken


@pytest.mark.parametrize("share", [1.0, 0.4])
@pytest.mark.parametrize("base", [each(rounds=6, training=ADAM) for each in (FedBN, Ditto, Local)])
def test_members_are_the_states_of_the_run_without_snapshots_after_their_rounds(
    base: Method, share: float, tmp_path: Path
) -> None:
    """Also at silos that miss rounds: a member has the state that the silo had when the round ended."""
    some = Participation(seed=2, share=share)
    with_copies, plain = (
        Federation(each, tmp_path / each.name / str(i)) for i, each in enumerate((Snapshots(base, 3), base))
    )
    with_copies.run(participation=some)
    servers, states = {}, {}
    for t in range(6):
        servers[t] = plain.run(participation=some, start=t, stop=t + 1)
        states[t] = plain.states()
    wrapper = with_copies.method
    for m, t in enumerate([5, 3, 4]):
        assert_same(wrapper.of_member(m, with_copies.server), servers[t])  # type: ignore[attr-defined]
        for silo, state in with_copies.states().items():
            if any(states[t][silo].values()):
                assert_same(wrapper.of_member(m, state), states[t][silo])  # type: ignore[attr-defined]
    down, x = wrapper.broadcast(with_copies.server), with_copies.place.silos["silo-0"].test.x
    assert wrapper.answer(down, with_copies.states()["silo-0"], with_copies.place.context("silo-0"), x)
    assert [done.step.address for done in with_copies.done] == ["base.base.train"] * 6


def test_a_prediction_is_the_mean_over_the_models_of_these_rounds(tmp_path: Path) -> None:
    base = FedBN(rounds=6, training=ADAM)
    federation, plain = finished(Snapshots(base, 3), tmp_path / "copies"), Federation(base, tmp_path / "plain")
    x, probs = plain.place.silos["silo-1"].test.x, []
    for stop in range(1, 7):
        plain.run(start=stop - 1, stop=stop)
        context, state = plain.place.context("silo-1"), kept_state(plain.place, "silo-1")
        ((_, module),) = base.loaded(base.broadcast(plain.server), state, context)
        with torch.no_grad():
            probs.append(module.eval()(x).double().softmax(-1))
    down, state = federation.method.broadcast(federation.server), federation.states()["silo-1"]
    found = federation.method.predict(down, state, federation.place.context("silo-1"), x)
    torch.testing.assert_close(found.probs, torch.stack([probs[t] for t in (3, 4, 5)]).mean(0))
    assert (found.epistemic > 0).any()


def test_more_snapshots_than_training_rounds_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"ensemble_size = 3.* at most 2, .* training rounds of .fedavg."):
        caveat.Uncertainty(source="snapshots", ensemble_size=3).around(FedAvg(rounds=2))


@pytest.mark.parametrize("method", [FedBABU(), IFCA()])
def test_methods_that_complete_their_models_after_training_have_no_snapshots(method: Method) -> None:
    settings = caveat.Uncertainty(source="snapshots", ensemble_size=3)
    with pytest.raises(ConfigurationError, match=f"source = 'snapshots' does not fit '{method.name}'"):
        settings.around(method)
    assert settings.fitting(method) == caveat.Uncertainty()


# Settings


def test_members_belong_to_ensembles() -> None:
    with pytest.raises(ConfigurationError, match="ensemble_size = 3 has no effect unless"):
        caveat.Uncertainty(ensemble_size=3)
    with pytest.raises(ConfigurationError, match="ensemble_size"):
        caveat.Uncertainty(source="ensemble", ensemble_size=1)
