"""Familiarity around methods: what leaves a silo and what stays, and that strange inputs are noticed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from federations import ADAM, FAST, METHODS, Federation, flat, silos
from sampled import sampled

from caveat.core import Data, Decision, Method, Prediction, Reason, Silo
from caveat.methods import FML, UEFL, FedAvg, FedBABU, FedBN, FedPN, Local, TrFedDis
from caveat.nn.stage_features import last_layer
from caveat.uncertainty import familiarity, novelty, typicality
from caveat.wrappers.alarms import (
    GROUP,
    INPUT,
    NEAREST,
    ROWS,
    Familiar,
    distances,
    distances_alone,
    distances_kept,
    without_rows,
)
from caveat.wrappers.choice_policies import Switched
from caveat.wrappers.pooled_alarms import PooledAlarms
from caveat.wrappers.privacy import Private
from caveat.wrappers.uncertainty_settings import Uncertainty


def told(federation: Federation, silo: str, x: torch.Tensor) -> Prediction:
    """What a method says of inputs at a silo after its last round."""
    method, place = federation.place.method, federation.place
    state = federation.states()[silo]
    return method.predict(method.broadcast(federation.server), state, place.context(silo), x)


def finished(method: Method, folder: Path, data: dict[str, Silo] | None = None) -> Federation:
    federation = Federation(method, folder, data=data)
    federation.run()
    return federation


@pytest.mark.parametrize("method", sampled(METHODS), ids=lambda method: type(method).__name__)
def test_every_method_says_how_familiar_an_input_is(method: Method, tmp_path: Path) -> None:
    federation = finished(Familiar(method), tmp_path)
    for name, silo in silos().items():
        own, far = told(federation, name, silo.test.x), told(federation, name, silo.test.x + 40)
        assert own.familiarity is not None
        assert ((own.familiarity > 0) & (own.familiarity <= 1)).all()
        assert far.is_unfamiliar.all(), name
        assert far.score(typicality.SCORE).min() > own.score(typicality.SCORE).max()


@pytest.mark.parametrize(
    "base", [FedBN(rounds=2, training=FAST), FedPN(rounds=2, training=ADAM, layers=4, personal_steps=0)], ids=str
)
def test_an_answer_does_not_depend_on_the_inputs_beside_it(base: Method, tmp_path: Path) -> None:
    federation = finished(Familiar(base), tmp_path)
    x = silos()["silo-1"].test.x
    together, alone = told(federation, "silo-1", x), [told(federation, "silo-1", each[None]) for each in x]
    for name, p in together.p_values.items():
        assert torch.equal(p, torch.cat([each.p_values[name] for each in alone])), name


def test_what_is_sent_adds_up_to_the_sums_of_all_rows(tmp_path: Path) -> None:
    """The densities are those of all silos' training inputs in one place, and nothing else was sent for them."""
    federation = finished(Familiar(FedAvg(rounds=2, training=ADAM)), tmp_path)
    done = federation.done[-1]
    assert done.step.name == "familiarity"
    assert {path.split("/")[0] for update in done.replies.updates.values() for path in flat(update.payload)} == {GROUP}
    # No class is rare here, or it would be sent with others.
    assert all(int(silo.train.y.bincount(minlength=3).min()) >= familiarity.LEAST for silo in silos().values())
    x, y = (torch.cat(parts) for parts in zip(*(silo.train for silo in silos().values()), strict=True))
    wanted = familiarity.density(familiarity.sums(x, y, 3), len(y))
    for name in familiarity.DENSITY:
        torch.testing.assert_close(federation.server[GROUP][f"{INPUT}.values.{name}"], wanted[name])


def test_stages_of_an_architecture_of_its_own_stay_at_the_silo(tmp_path: Path) -> None:
    federation = finished(Familiar(FML(rounds=2, training=FAST)), tmp_path)
    sent = {path for update in federation.done[-1].replies.updates.values() for path in flat(update.payload)}
    assert {path.split("/")[1].split(".")[0] for path in sent} == {INPUT, "global"}
    kept = federation.states()["silo-0"][GROUP]
    assert {"local.1.whiten", "local.1.calibration", "global.1.calibration"} <= set(kept)


def test_under_noise_nothing_leaves_and_every_silo_has_densities_of_its_own(tmp_path: Path) -> None:
    base = Private(FedAvg(rounds=2, training=ADAM), clip_norm=1.0, noise_multiplier=0.1, silos=3)
    federation = finished(Familiar(base, shared=False), tmp_path)
    assert all(not flat(update.payload) for update in federation.done[-1].replies.updates.values())
    x = silos()["silo-0"].test.x
    assert told(federation, "silo-0", x + 40).is_unfamiliar.all()
    assert told(federation, "silo-0", x).is_unfamiliar.double().mean() < 0.5


def test_of_silos_that_train_alone_nothing_leaves(tmp_path: Path) -> None:
    method = Uncertainty().around(Local(rounds=1, training=FAST))
    federation = finished(method, tmp_path)
    assert all(not flat(update.payload) for done in federation.done for update in done.replies.updates.values())
    assert told(federation, "silo-0", silos()["silo-0"].test.x + 40).is_unfamiliar.all()


def test_a_silo_that_has_not_trained_sends_zeros_for_its_own_model(tmp_path: Path) -> None:
    """All messages have one form, and a silo without a model of its own adds nothing to the others' sums."""
    method = Familiar(FedBABU(rounds=1, training=FAST, fine_tune_epochs=1))
    federation = finished(method, tmp_path)
    context = federation.place.context("silo-0")
    sent, _ = method.describe_own(method.base.broadcast(federation.server), method.init_silo(context), context)
    theirs = federation.done[-1].replies.updates["silo-1"]
    assert {k: v.shape for k, v in flat(sent.payload).items()} == {k: v.shape for k, v in flat(theirs.payload).items()}


def test_a_silo_that_was_not_there_ranks_among_its_own_calibration_inputs(tmp_path: Path) -> None:
    federation = finished(Familiar(FedAvg(rounds=2, training=ADAM)), tmp_path)
    method, place = federation.place.method, federation.place
    context, x = place.context("silo-2"), silos()["silo-2"].test.x
    new = method.predict(method.broadcast(federation.server), method.init_silo(context), context, x)
    assert torch.equal(new.familiarity, told(federation, "silo-2", x).familiarity)  # type: ignore[arg-type]


def test_before_the_last_round_there_is_no_familiarity(tmp_path: Path) -> None:
    federation = Federation(Familiar(FedAvg(rounds=2, training=ADAM)), tmp_path)
    federation.run(stop=2)
    prediction = told(federation, "silo-0", silos()["silo-0"].test.x)
    assert prediction.familiarity is None
    assert not prediction.is_unfamiliar.any()


def test_a_switch_abstains_from_what_is_unfamiliar(tmp_path: Path) -> None:
    base = FedBABU(rounds=1, training=ADAM)
    x = silos()["silo-1"].test.x + 40

    def decided(alarm: float) -> torch.Tensor:
        method = Switched(Familiar(base, alarm), handover_rate=0.0, abstain_rate=0.0)
        return told(finished(method, tmp_path / f"{alarm}"), "silo-1", x).decision

    assert (decided(0.0) != Decision.ABSTAIN).any()
    assert (decided(0.05) == Decision.ABSTAIN).all()


def test_the_familiarity_is_that_of_the_model_that_answers() -> None:
    probs = torch.full((3, 2), 0.5, dtype=torch.float64)
    one, other = (
        replace(
            Prediction.from_samples(probs[None]),
            **dict.fromkeys(
                ("familiarity", "nearness", "sureness", "typicality"), torch.tensor(p, dtype=torch.float64)
            ),  # type: ignore[arg-type]
            false_alarm_rate=0.05,
        )
        for p in ([0.01, 0.02, 0.03], [0.9, 0.8, 0.7])
    )
    chosen = one.where(torch.tensor([True, False, True]), other)
    assert chosen.is_unfamiliar.tolist() == [True, False, True]
    assert chosen.familiarity is not None
    assert chosen.familiarity.tolist() == [0.01, 0.8, 0.03]


def test_an_answer_less_certain_than_to_own_inputs_raises_the_other_alarm(tmp_path: Path) -> None:
    """Its uncertainty is ranked among those of the same model's answers to the calibration split."""
    federation = finished(Familiar(FML(rounds=2, training=FAST), false_alarm_rate=0.2), tmp_path)
    method, place = federation.place.method, federation.place
    context, state = place.context("silo-0"), federation.states()["silo-0"]
    down = method.broadcast(federation.server)
    x = context.calibration.x
    for whose, answer in method.answer(down, state, context, x).items():
        settled = typicality.settled_scores(answer.total)
        ranks = (settled[:, None] <= settled).sum(1)
        assert answer.sureness is not None
        assert answer.sureness.tolist() == pytest.approx(((1 + ranks) / (len(x) + 1)).tolist())
        model = whose.name.lower()
        likely = answer.total > answer.total.median()
        kept = state | {GROUP: state[GROUP] | {f"{model}.scores": 1e-3 * state[GROUP][f"{model}.scores"]}}
        told = method.answer(down, kept, context, x)[whose]
        assert told.sureness is not None
        assert (told.sureness[likely] == 1 / (len(x) + 1)).all()
        assert told.is_unsure[likely].all()
        assert set(told.reason.tolist()) == {Reason.NONE, Reason.UNSURE, Reason.UNFAMILIAR} & set(told.reason.tolist())


def test_novelty_is_the_distance_to_the_nearest_of_the_silos_own_training_inputs(tmp_path: Path) -> None:
    federation = finished(Familiar(FML(rounds=2, training=FAST), false_alarm_rate=0.2), tmp_path)
    method, place = federation.place.method, federation.place
    context, state = place.context("silo-0"), federation.states()["silo-0"]
    down, x = method.broadcast(federation.server), torch.cat([silos()["silo-0"].test.x, context.train.x[:5]])
    modules = dict(method.base.loaded(down, state, context))  # type: ignore[attr-defined]
    for whose, answer in method.answer(down, state, context, x).items():
        train, calibration, new = (
            last_layer(modules[whose], each).hidden[:, :-1] for each in (context.train.x, context.calibration.x, x)
        )
        kept = state[GROUP][f"{whose.name.lower()}{ROWS}"]
        torch.testing.assert_close(kept, novelty.directions(train))
        near, own = (novelty.log_distances(novelty.directions(train), each) for each in (calibration, new))
        wanted = (1 + (near >= own[:, None]).sum(1)) / (len(near) + 1)
        assert answer.nearness is not None
        assert answer.nearness.tolist() == pytest.approx(wanted.tolist())
        assert (answer.nearness[-5:] == 1).all()
        far = answer.score(novelty.SCORE)
        assert (far[-5:] <= far.min()).all()
        assert ((far > 0) == (own > near.sort().values[(len(near) - 1) // 2])).all()


@pytest.mark.parametrize("kind", [Familiar, PooledAlarms])
def test_features_of_training_inputs_never_leave_a_silo(kind: type[Familiar], tmp_path: Path) -> None:
    method = kind(FML(rounds=1, training=FAST), false_alarm_rate=0.01)  # for which silos have few calibration inputs
    federation = finished(method, tmp_path)
    for silo, state in federation.states().items():
        down, context = method.broadcast(federation.server), federation.place.context(silo)
        update, after = method.describe_own(down, state, context)
        kept = [each for name, each in after[GROUP].items() if name.endswith((ROWS, NEAREST))]
        assert len(kept) == 4  # of two models
        secret = {value for each in kept for value in each.flatten().tolist()} - {0.0, 1.0, -1.0}
        for name, each in flat(update.payload | federation.server).items():
            assert not name.endswith((ROWS, NEAREST))
            assert not secret & {*each.flatten().tolist()}, name


def test_of_many_training_inputs_a_silo_keeps_a_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(novelty, "MOST_ROWS", 7)
    monkeypatch.setattr("caveat.wrappers.alarms.PART", 9)  # of several parts
    federation = finished(Familiar(FedAvg(rounds=2, training=ADAM)), tmp_path)
    state, x = federation.states()["silo-1"], silos()["silo-1"].test.x
    assert len(state[GROUP][f"global{ROWS}"]) == 7
    method, context = federation.place.method, federation.place.context("silo-1")
    absent = method.predict(method.broadcast(federation.server), method.init_silo(context), context, x)
    for name, p in told(federation, "silo-1", x).p_values.items():
        assert torch.equal(p, absent.p_values[name]), name


def test_p_values_are_the_same_without_the_features_of_calibration_inputs(tmp_path: Path) -> None:
    federation = finished(Familiar(FML(rounds=2, training=FAST)), tmp_path)
    method, context = federation.place.method, federation.place.context("silo-0")
    down, state = method.broadcast(federation.server), federation.states()["silo-0"]
    less = state | {GROUP: distances_alone(state[GROUP], down[GROUP])}
    assert not any(name.endswith((".calibration", ROWS, NEAREST)) for name in less[GROUP])
    x = torch.cat([silos()["silo-0"].test.x, context.calibration.x])
    plain = state | {GROUP: without_rows(state[GROUP])}
    one, other, whole = (method.answer(down, each, context, x) for each in (plain, less, state))
    for whose, answer in one.items():
        assert len(answer.p_values) == 3
        assert len(whole[whose].p_values) == 4
        assert all(torch.equal(answer.p_values[p], whole[whose].p_values[p]) for p in ("familiarity", "sureness"))
        assert all(torch.equal(p, other[whose].p_values[name]) for name, p in answer.p_values.items())


def test_an_alarm_is_named_after_the_lower_p_value_and_gives_the_reason() -> None:
    probs = torch.full((6, 2), 0.5, dtype=torch.float64)
    probs[4] = torch.nan
    told = replace(
        Prediction.from_samples(probs[None]),
        familiarity=torch.tensor([0.04, 0.1, 0.02, 0.03, 0.5, 0.3], dtype=torch.float64),
        nearness=torch.tensor([0.04, 0.1, 0.03, 0.01, 0.5, 0.2], dtype=torch.float64),
        sureness=torch.tensor([0.06, 0.1, 0.01, 0.04, 0.5, 0.2], dtype=torch.float64),
        typicality=torch.tensor([0.05, 0.051, 0.01, 0.2, 0.5, 0.03], dtype=torch.float64),
        false_alarm_rate=0.05,
    )
    assert told.alarms.tolist() == [True, False, True, False, False, True]
    assert told.is_unfamiliar.tolist() == [True, False, False, False, False, False]
    assert told.is_novel.tolist() == [False, False, False, False, False, True]
    assert told.is_unsure.tolist() == [False, False, True, False, False, False]
    older = replace(told, nearness=None)  # of a silo without features of training rows
    assert not older.is_novel.any()
    assert older.is_unsure.tolist() == [False, False, True, False, False, True]
    reasons = [Reason.UNFAMILIAR, Reason.NONE, Reason.UNSURE, Reason.NONE, Reason.UNDEFINED, Reason.NOVEL]
    assert told.reason.tolist() == reasons  # answered nevertheless
    abstained = told.abstaining(torch.tensor([True, True, True, False, True, True]), Reason.AMBIGUOUS)
    assert abstained.reason.tolist() == [*reasons[:1], Reason.AMBIGUOUS, *reasons[2:]]
    again = abstained.abstaining(torch.tensor([False, True, False, True, False, False]), Reason.UNCERTAIN)
    assert again.reason.tolist() == [reasons[0], Reason.AMBIGUOUS, reasons[2], Reason.UNCERTAIN, *reasons[4:]]
    assert again.where(torch.tensor([True, False, True, True, True, True]), told).reason[1] == Reason.NONE


@pytest.mark.parametrize("base", [UEFL(rounds=1, iterations=1, codewords=4, training=ADAM), TrFedDis(rounds=1)])
def test_no_label_and_no_test_input_decides(base: Method, tmp_path: Path) -> None:
    """Neither test inputs nor calibration labels change what is called unfamiliar."""

    def changed(silo: Silo) -> Silo:
        calibration = Data(silo.calibration.x, (silo.calibration.y + 1) % 3)
        return replace(silo, calibration=calibration, test=Data(silo.test.x + 9, silo.test.y))

    one = finished(Familiar(base), tmp_path / "one")
    other = finished(Familiar(base), tmp_path / "other", {name: changed(silo) for name, silo in silos().items()})
    x = silos()["silo-0"].test.x
    assert torch.equal(told(one, "silo-0", x).familiarity, told(other, "silo-0", x).familiarity)  # type: ignore[arg-type]


def test_the_message_is_small_beside_a_model(tmp_path: Path) -> None:
    federation = finished(Familiar(FedAvg(rounds=1, training=ADAM)), tmp_path)
    sent = flat(next(iter(federation.done[-1].replies.updates.values())).payload)
    widths = {"input.values": 2, "global.1": 6, "global.2": 6}
    wanted = sum(8 * (4 + 4 * d + d * (d + 1) // 2) for d in widths.values())
    assert sum(tensor.nbytes for tensor in sent.values()) == wanted


def test_distances_of_calibration_inputs_are_computed_once_for_a_density(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    rows, y = torch.randn(60, 4), torch.arange(60) % 3
    known = {"input.x.calibration": rows}
    known |= {f"input.x.{name}": each for name, each in density_of(rows, y).items()}
    first = distances_kept(known, "input.x")
    with monkeypatch.context() as patch:
        patch.setattr(familiarity, "log_distances", None)  # cannot be called
        assert distances_kept(dict(known), "input.x") is first
    other = known | {f"input.x.{name}": each for name, each in density_of(3 * rows + 1, y).items()}
    assert torch.equal(distances_kept(other, "input.x"), distances(other, "input.x", rows))
    assert not torch.equal(distances_kept(other, "input.x"), first)
    assert torch.equal(distances_kept(known, "input.x"), first)


def density_of(rows: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
    return familiarity.density(familiarity.sums(rows, y, 3), len(rows))


def spread(n: int, generator: torch.Generator) -> tuple[Data, torch.Tensor]:
    """Inputs and their subgroups: those of subgroup 0, a fifth, lie farther apart than the others."""
    subgroup = (torch.rand(n, generator=generator) >= 0.2).long()
    x = torch.randn(n, 2, generator=generator) * torch.where(subgroup == 0, 3.0, 1.0)[:, None]
    return Data(x, (x[:, 0] > 0).long() + (x[:, 1] > 1).long()), subgroup


def alarms_of(subgroups: int, folder: Path, seed: int) -> tuple[torch.Tensor, Federation]:
    """The share of alarms among fresh inputs of each subgroup, at a silo with 150 calibration inputs."""
    generator = torch.Generator().manual_seed(seed)
    parts = {name: spread(150, generator) for name in ("train", "validation", "calibration", "test")}
    of = {name: each for name, (_, each) in parts.items()}
    silo = Silo("silo-0", "", **{name: data for name, (data, _) in parts.items()}, subgroups=of)
    method = Familiar(FedAvg(rounds=1, training=ADAM), subgroups=subgroups)
    federation = finished(method, folder, {"silo-0": silo})
    fresh, known = spread(3000, generator)
    context = replace(federation.place.context("silo-0"), subgroup=known)
    state = federation.states()["silo-0"]
    found = method.predict(method.broadcast(federation.server), state, context, fresh.x)
    return torch.stack([found.alarms[known == g].double().mean() for g in range(2)]), federation


def test_alarms_are_as_rare_in_each_subgroup_as_promised(tmp_path: Path) -> None:
    draws = 12
    own = torch.stack([alarms_of(2, tmp_path / f"own-{seed}", seed)[0] for seed in range(draws)]).mean(0)
    all_ = torch.stack([alarms_of(0, tmp_path / f"all-{seed}", seed)[0] for seed in range(draws)]).mean(0)
    assert float(all_[0]) > 0.12
    assert float(own.max()) < 0.065


def test_alarms_of_a_subgroup_need_no_features_of_rows(tmp_path: Path) -> None:
    _, federation = alarms_of(2, tmp_path, 0)
    method, state = federation.place.method, federation.states()["silo-0"]
    down = method.broadcast(federation.server)
    whole, rows = state[GROUP], without_rows(state[GROUP])
    kept = distances_alone(whole, down[GROUP])
    assert kept["subgroup"].bincount().tolist() == state[GROUP]["subgroup"].bincount().tolist()
    fresh, known = spread(300, torch.Generator().manual_seed(1))
    context = replace(federation.place.context("silo-0"), subgroup=known)
    one, other = (method.predict(down, state | {GROUP: group}, context, fresh.x) for group in (rows, kept))
    novel = method.predict(down, state, context, fresh.x).p_values
    assert (novel["nearness"] <= 0.05).double().mean() < 0.1
    assert (novel["typicality"] != one.p_values["typicality"]).any()
    for name, p in one.p_values.items():
        assert torch.equal(p, other.p_values[name])
    assert isinstance(one.ranked_among, torch.Tensor)
    assert len({*one.ranked_among.tolist()}) == 2
