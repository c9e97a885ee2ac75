"""TrFedDis: what is sent, what is answered, and that it learns."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from federations import ADAM, FAST, Federation, assert_same, flat, silos
from torch import nn
from trfeddis_formulas import (
    FUSED,
    Array,
    built,
    conflicts,
    context,
    first_training,
    fused,
    loss,
    normed,
    said,
    softplus,
)

from caveat.core import ConfigurationError, Data, Decision, Payload, Prediction, Silo, State
from caveat.methods import FedBN, TrFedDis
from caveat.methods.trfeddis import TwoHeads, as_prediction
from caveat.training.modules import load
from caveat.uncertainty import opinions

# What is sent and kept


def test_what_leaves_a_silo_is_what_fedbn_sends() -> None:
    plain = normed()
    payload, state = first_training(TrFedDis(training=FAST), built(normed()))
    shared, kept = (
        start["model"] for start in (FedBN().init_server(context(plain)), FedBN().init_silo(context(plain)))
    )
    assert set(payload) == {"model"}
    assert payload["model"].keys() == shared.keys()
    assert state["model"].keys() == kept.keys()
    norms = [name for name, part in plain.named_modules() if isinstance(part, nn.BatchNorm1d)]
    assert len(norms) == 3
    assert not [name for name in payload["model"] if name.startswith((*norms, "own", "common"))]
    load(plain, payload["model"] | state["model"])  # or RuntimeError
    assert all((payload["model"][name] != shared[name]).any() for name in shared if name.endswith("weight"))


Trained = tuple[TrFedDis, Payload, dict[str, State], TwoHeads]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A method, what it sent in the end, what its silos keep, and a workspace."""
    method = TrFedDis(rounds=4, training=ADAM)
    federation = Federation(method, tmp_path_factory.mktemp("trained"))
    down = method.broadcast(federation.run())
    module = federation.place.module
    assert isinstance(module, TwoHeads)
    return method, down, federation.states(), module


def test_silos_have_heads_of_their_own(trained: Trained) -> None:
    _, down, states, _ = trained
    own = [state["own"] for state in states.values()]
    for i, one in enumerate(own):
        for other in [*own[:i], {name.removeprefix("head."): t for name, t in down["model"].items()}]:
            assert all(not torch.equal(one[name], other[name]) for name in one)
    assert not [path for path in flat(down) if "own" in path]


# Answers


def asked(trained: Trained, method: TrFedDis) -> tuple[dict[Decision, Prediction], Array, Array]:
    """What silo-1 answers, and by its two heads' logits the evidence it should do so from."""
    _, down, states, module = trained
    where = context(module)
    x = where.validation.x
    answers = method.answer(down, states["silo-1"], where, x)
    with torch.no_grad():
        _, logits = method.load(down, states["silo-1"], where).eval()(x)
    ours, own = softplus(logits.double().numpy())
    assert np.abs(ours - own).max() > 0.1
    return answers, ours, own


@pytest.mark.parametrize("method", FUSED, ids=lambda m: f"{m.fusion}-{m.trust}")
def test_answers_are_the_federation_s_opinion_and_the_fused_one(trained: Trained, method: TrFedDis) -> None:
    answers, ours, own = asked(trained, method)
    assert set(answers) == {Decision.GLOBAL, Decision.LOCAL}
    for whose, evidence in ((Decision.GLOBAL, ours), (Decision.LOCAL, fused(method, ours, own))):
        found, alpha = answers[whose], evidence + 1
        total = alpha.sum(1)
        assert (found.decision == whose).all()
        assert set(method.scores) == set(found.scores)
        np.testing.assert_allclose(found.probs, alpha / total[:, None], rtol=1e-11)
        np.testing.assert_allclose(found.score("vacuity"), 3 / total, rtol=1e-11)
        np.testing.assert_allclose(found.score("log_evidence"), -np.log(evidence.sum(1)), rtol=1e-10, atol=1e-11)
        np.testing.assert_allclose(found.score("conflict"), conflicts(ours, own), rtol=1e-11)


def test_scores_are_higher_for_less_evidence() -> None:
    _, logits, _ = said(3, n=50)
    evidence, none = opinions.softplus_log_evidence(logits[0]), torch.zeros(50, dtype=torch.float64)
    more, less = (as_prediction(each, Decision.LOCAL, none) for each in (evidence, evidence - 1))
    for score in set(TrFedDis.scores) - {"aleatoric", "conflict"}:
        assert (less.score(score) > more.score(score)).all(), score


def test_conflict_tells_a_head_that_contradicts_the_federation_s_from_its_copy(trained: Trained) -> None:
    method, down, states, module = trained
    where = context(module)
    copy = {name.removeprefix("head."): t for name, t in down["model"].items() if name.startswith("head.")}
    contrary = copy | {name: copy[name].roll(1, 0) for name in ("4.weight", "4.bias")}  # classes in another order
    each = [method.answer(down, states["silo-1"] | {"own": own}, where, where.validation.x) for own in (copy, contrary)]
    agree, contradict = (answers[Decision.LOCAL].score("conflict") for answers in each)
    assert (agree < contradict).all()


@pytest.mark.parametrize("fusion", ["dempster", "additive"])
def test_a_silo_without_a_head_of_its_own_answers_as_if_it_had_a_vacuous_one(trained: Trained, fusion: str) -> None:
    _, down, states, module = trained
    method = TrFedDis(fusion=fusion)  # type: ignore[arg-type]
    where = context(module)
    full, _, _ = asked(trained, method)
    answers = method.answer(down, {"model": states["silo-1"]["model"]}, where, where.validation.x)
    assert set(answers) == {Decision.GLOBAL}
    found = answers[Decision.GLOBAL]
    assert torch.equal(found.score("conflict"), torch.zeros(20, dtype=torch.float64))
    assert torch.equal(found.probs, full[Decision.GLOBAL].probs)
    with torch.no_grad():
        _, logits = module.eval()(where.validation.x)
    ours = opinions.softplus_log_evidence(logits[0].double())
    nothing = torch.full_like(ours, -torch.inf)
    by_hand = as_prediction(method.fuse((ours, nothing)), Decision.GLOBAL, opinions.conflict(ours, nothing))
    assert_same({"scores": found.scores}, {"scores": by_hand.scores})


# Configurations


@pytest.mark.parametrize("fusion", ["dempster", "additive", "averaging"])
def test_trust_belongs_to_discounting(fusion: str) -> None:
    with pytest.raises(ConfigurationError, match=f"trust = 0.5 has no effect with method.fusion = '{fusion}'"):
        TrFedDis(fusion=fusion, trust=0.5)  # type: ignore[arg-type]


def test_something_has_to_be_learnt_from_labels() -> None:
    with pytest.raises(ConfigurationError, match="nothing is learned from labels"):
        TrFedDis(evidential=0, cross_entropy=0)
    for name in ("evidential", "cross_entropy"):
        assert float(loss(TrFedDis(disentangling=0, **{name: 0}), 1, *said())) > 0


# All of it


def relabeled() -> dict[str, Silo]:
    """The silos of the test federation, each of which numbers the classes in its own way."""

    def turned(silo: Silo, by: int) -> Silo:
        parts = (silo.train, silo.validation, silo.calibration, silo.test)
        return Silo(silo.name, silo.domain, *(Data(x, (y + by) % 3) for x, y in parts))

    return {name: turned(silo, k) for k, (name, silo) in enumerate(silos().items())}


def accuracies(data: dict[str, Silo], folder: Path) -> dict[Decision, float]:
    """Of the federation's answers and of the fused ones, on what no silo trained on."""
    method = TrFedDis(rounds=10, training=replace(ADAM, lr=0.025, local_epochs=2))
    federation, right = Federation(method, folder, data=data), []
    down = method.broadcast(federation.run())
    for name, state in federation.states().items():
        where = data[name].context(federation.place.module)
        for x, y in (data[name].validation, data[name].calibration, data[name].test):
            right.append({w: a.label == y for w, a in method.answer(down, state, where, x).items()})
    return {w: float(torch.cat([each[w] for each in right]).double().mean()) for w in Decision if w in right[0]}


def test_both_answers_learn_where_silos_agree(tmp_path: Path) -> None:
    found = accuracies(silos(), tmp_path)
    assert min(found.values()) > 0.75  # each silo's most frequent class makes 0.59


def test_the_own_head_learns_what_silos_contradict_each_other_in(tmp_path: Path) -> None:
    found = accuracies(relabeled(), tmp_path)
    assert found[Decision.GLOBAL] < 0.65
    assert found[Decision.LOCAL] > 0.75
