"""Mutual learning: the two losses, the weights of FMLU, and silos with models of different architectures."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from federations import ADAM, FAST, Federation, model
from scipy.special import log_softmax, softmax
from scipy.stats import entropy as scipy_entropy
from torch import Tensor

import caveat
from caveat.config import load
from caveat.core import ConfigurationError, Decision, Replies, Update, seeded
from caveat.engines.rounds import Participation
from caveat.methods import FML, FMLU
from caveat.methods.fml import learn
from caveat.nn.models import ModelSettings, PersonalModel, assign
from caveat.runs.finished_run import open_run
from caveat.runs.progress import Silent
from caveat.runs.resume import resume
from caveat.runs.start import start

MEME = np.array([[2.0, 0.0, -1.0], [0.5, 0.4, 0.3], [-3.0, 1.0, 4.0]])
OWN = np.array([[0.0, 1.0, 0.0], [4.0, -2.0, 0.0], [-1.0, 0.0, 1.0]])
Y = np.array([0, 2, 2])


def cross_entropy(logits: np.ndarray) -> np.ndarray:
    return -log_softmax(logits, axis=1)[np.arange(len(Y)), Y]


def divergence(teacher: np.ndarray, student: np.ndarray) -> np.ndarray:
    """KL(teacher || student) per example, by scipy."""
    return scipy_entropy(softmax(teacher, axis=1), softmax(student, axis=1), axis=1)


def certainty(logits: np.ndarray) -> np.ndarray:
    return np.exp(-scipy_entropy(softmax(logits, axis=1), axis=1))


def of(method: FML, meme: np.ndarray = MEME, own: np.ndarray = OWN) -> float:
    return float(method.mutual(torch.tensor(meme), torch.tensor(own), torch.tensor(Y)))


# The losses


def test_fml_mixes_labels_and_the_other_model_by_alpha_and_beta() -> None:
    meme = 0.7 * cross_entropy(MEME) + 0.3 * divergence(OWN, MEME)  # eq. 2
    own = 0.2 * cross_entropy(OWN) + 0.8 * divergence(MEME, OWN)  # eq. 1
    assert of(FML(alpha=0.2, beta=0.7)) == pytest.approx(meme.mean() + own.mean(), rel=1e-12)


def test_fmlu_weighs_each_example_by_its_teachers_certainty() -> None:
    meme = cross_entropy(MEME) + certainty(OWN) * divergence(OWN, MEME)  # eq. 4
    own = cross_entropy(OWN) + certainty(MEME) * divergence(MEME, OWN)  # eq. 3
    assert of(FMLU()) == pytest.approx(meme.mean() + own.mean(), rel=1e-12)


def test_scaled_losses_are_means_with_weights_that_add_up_to_one() -> None:
    meme = (cross_entropy(MEME) + certainty(OWN) * divergence(OWN, MEME)) / (1 + certainty(OWN))
    own = (cross_entropy(OWN) + certainty(MEME) * divergence(MEME, OWN)) / (1 + certainty(MEME))
    assert of(FMLU(scaled=True)) == pytest.approx(meme.mean() + own.mean(), rel=1e-12)


def test_shuffled_weights_are_the_same_ones_at_other_examples() -> None:
    """The loss is one of those that some order of each teacher's weights gives, and not always that of their own."""

    def dealt(teacher: np.ndarray, student: np.ndarray) -> list[float]:
        orders = itertools.permutations(certainty(teacher))
        return [(cross_entropy(student) + np.array(order) * divergence(teacher, student)).mean() for order in orders]

    possible = [a + b for a in dealt(OWN, MEME) for b in dealt(MEME, OWN)]
    seen = set()
    for seed in range(20):
        with seeded(seed):
            found = of(FMLU(shuffled=True))
        with seeded(seed):
            assert of(FMLU(shuffled=True)) == found
        assert min(abs(found - each) for each in possible) < 1e-12
        seen.add(round(found, 9))
    assert len(seen) > 5
    with seeded(0):
        assert of(FMLU(shuffled=True, weigh_loss=False, alpha=0.4)) == of(FML(alpha=0.4))


def test_without_its_weights_fmlu_is_fml() -> None:
    assert of(FMLU(weigh_loss=False, alpha=0.4)) == of(FML(alpha=0.4))


@pytest.mark.parametrize("method", [FML(), FMLU(), FMLU(scaled=True)], ids=["fml", "fmlu", "scaled"])
def test_a_teacher_is_not_moved(method: FML) -> None:
    """The gradient of both losses is that of each with the other model's logits as constants."""
    meme, own, y = torch.tensor(MEME), torch.tensor(OWN), torch.tensor(Y)

    def gradient(of_meme: bool) -> Tensor:
        learning = (meme if of_meme else own).clone().requires_grad_()
        both = (learning, own) if of_meme else (meme, learning)
        loss = method.mutual(*both, y)
        return torch.autograd.grad(loss, learning)[0]

    for of_meme, student, teacher in ((True, meme, own), (False, own, meme)):
        student = student.clone().requires_grad_()
        sure = torch.exp(-torch.special.entr(teacher.softmax(-1)).sum(-1))
        label, imitation = (torch.full((3,), 0.5), torch.full((3,), 0.5)) if type(method) is FML else (
            (1 / (1 + sure), sure / (1 + sure)) if method.scaled else (torch.ones(3), sure))  # type: ignore[attr-defined]  # fmt: skip
        loss = learn(student, teacher, y, label, imitation)
        torch.testing.assert_close(gradient(of_meme), torch.autograd.grad(loss, student)[0], check_dtype=False)


def test_losses_are_finite_for_predictions_of_probability_zero() -> None:
    far = np.array([[300.0, -300.0, 0.0]] * 3)
    for method in (FML(), FMLU(), FMLU(scaled=True)):
        meme = torch.tensor(far, dtype=torch.float32).requires_grad_()
        loss = method.mutual(meme, torch.tensor(-far, dtype=torch.float32), torch.tensor(Y))
        loss.backward()
        assert loss.isfinite()
        assert meme.grad is not None
        assert meme.grad.isfinite().all()


# The server


def replies(entropies: dict[str, float], examples: int = 10) -> Replies:
    updates = {}
    for k, (name, h) in enumerate(entropies.items()):
        entropy = torch.tensor(h, dtype=torch.float64)
        payload = {"model": {"w": torch.tensor([float(k)])}, "uncertainty": {"entropy": entropy}}
        updates[name] = Update(payload, examples * (k + 1))
    return Replies(updates, len(updates))


def test_the_servers_mean_is_by_certainty(tmp_path: Path) -> None:
    found = replies({"a": 0.0, "b": math.log(2), "c": math.log(4)})
    context = Federation(FMLU(training=FAST), tmp_path).context
    w = [1, 1 / 2, 1 / 4]
    expected = (w[1] * 1 + w[2] * 2) / sum(w)
    assert FMLU().aggregate({}, found, context)["model"]["w"].item() == pytest.approx(expected)
    n = [10, 20, 30]
    both = (w[1] * n[1] + w[2] * n[2] * 2) / sum(a * b for a, b in zip(w, n, strict=True))
    assert FMLU(weights="examples").aggregate({}, found, context)["model"]["w"].item() == pytest.approx(both)
    assert FMLU(weigh_mean=False).aggregate({}, found, context)["model"]["w"].item() == pytest.approx(1)
    assert FML().aggregate({}, found, context)["model"]["w"].item() == pytest.approx(1)
    assert FML(weights="examples").aggregate({}, found, context)["model"]["w"].item() == pytest.approx(80 / 60)


def test_shuffled_certainties_are_dealt_to_other_silos_alike_every_time(tmp_path: Path) -> None:
    context = Federation(FMLU(training=FAST), tmp_path).context
    seen = set()
    for k in range(30):
        found = replies({"a": 0.01 * k, "b": math.log(2), "c": math.log(4)})
        torch.manual_seed(k)
        state = torch.get_rng_state()
        one, other = (FMLU(shuffled=True).aggregate({}, found, context)["model"]["w"].item() for _ in range(2))
        assert one == other  # whatever the generator's state, which stays
        assert torch.equal(torch.get_rng_state(), state)
        w = (math.exp(-0.01 * k), 1 / 2, 1 / 4)
        means = [(b + 2 * c) / (a + b + c) for a, b, c in itertools.permutations(w)]
        gaps = [abs(one - mean) for mean in means]
        assert min(gaps) < 1e-6
        seen.add(gaps.index(min(gaps)))
    assert len(seen) == 6
    kept = FMLU(shuffled=True, weigh_mean=False).aggregate({}, found, context)["model"]["w"].item()
    assert kept == pytest.approx(1)


def test_a_shuffled_run_repeats_its_bits_and_is_another(tmp_path: Path) -> None:
    def end(name: str, workers: int, **options: bool) -> Tensor:
        federation = Federation(FMLU(rounds=2, training=ADAM, **options), tmp_path / name, workers)
        federation.run()
        return federation.server["model"]["head.1.weight"]

    shuffled = end("one", 1, shuffled=True)
    assert torch.equal(end("again", 2, shuffled=True), shuffled)
    assert not torch.equal(end("usual", 1), shuffled)
    assert not torch.equal(end("loss", 1, shuffled=True, weigh_mean=False), end("server", 1, weigh_mean=False))


@pytest.mark.parametrize("split", ["validation", "train"])
def test_what_is_sent_is_the_mean_entropy_of_predictions_held_out_or_not(tmp_path: Path, split: Any) -> None:
    """Not the entropy of the mean prediction, which tells how labels are spread and not how sure a model is."""
    federation = Federation(FMLU(rounds=1, training=ADAM, entropy_on=split), tmp_path)
    federation.run()
    net = model()
    for name, update in federation.done[0].replies.updates.items():
        net.load_state_dict(update.payload["model"])
        with torch.no_grad():
            probs = net.eval()(getattr(federation.place.silos[name], split).x).double().softmax(-1).numpy()
        sent = update.payload["uncertainty"]["entropy"].item()
        assert sent == pytest.approx(scipy_entropy(probs, axis=1).mean(), rel=1e-6)
        assert sent < scipy_entropy(probs.mean(0))


def test_switching_the_servers_weights_off_sends_no_entropy(tmp_path: Path) -> None:
    federation = Federation(FMLU(rounds=1, training=ADAM, weigh_mean=False), tmp_path)
    federation.run()
    assert all(set(u.payload) == {"model"} for u in federation.done[0].replies.updates.values())


def test_with_labels_alone_the_models_are_strangers() -> None:
    assert of(FML(alpha=1, beta=1)) == pytest.approx(cross_entropy(MEME).mean() + cross_entropy(OWN).mean(), rel=1e-12)


# Silos and their own models


def test_a_silos_own_model_never_leaves_it_and_stays_from_round_to_round(tmp_path: Path) -> None:
    federation = Federation(FML(rounds=3, training=ADAM), tmp_path)
    federation.run(stop=1)
    first = federation.states()
    federation.run(start=1)
    for name, state in federation.states().items():
        own = {tuple(t.shape) for t in state["own"].values()}
        assert own == {tuple(t.shape) for t in federation.place.own[name].state_dict().values()}
        assert not torch.equal(state["own"]["head.1.weight"], first[name]["own"]["head.1.weight"])
    sizes = [sum(t.numel() for t in federation.place.own[name].state_dict().values()) for name in ("silo-0", "silo-1")]
    assert sizes[0] != sizes[1]


def test_silos_start_from_models_of_their_own(tmp_path: Path) -> None:
    federation = Federation(FML(rounds=1, training=replace(FAST, lr=1e-9)), tmp_path)
    federation.run()
    one, other = (federation.states()[name]["own"]["encoder.0.weight"] for name in ("silo-0", "silo-2"))
    assert one.shape == other.shape
    assert (one - other).abs().max() > 0.01


def test_a_silo_without_a_model_of_its_own_answers_by_the_federations(tmp_path: Path) -> None:
    class Late(Participation):
        def cohort(self, t, step, silos):  # type: ignore[no-untyped-def]
            return [s for s in silos if s != "silo-2"]

    federation = Federation(FMLU(rounds=2, training=ADAM), tmp_path)
    federation.run(participation=Late(0))
    down, states = federation.method.broadcast(federation.server), federation.states()
    x = federation.place.silos["silo-2"].validation.x
    answers = {n: federation.method.answer(down, states[n], federation.place.context(n), x) for n in states}
    assert set(answers["silo-2"]) == {Decision.GLOBAL}
    assert set(answers["silo-0"]) == {Decision.GLOBAL, Decision.LOCAL}
    assert torch.equal(answers["silo-0"][Decision.GLOBAL].probs, answers["silo-2"][Decision.GLOBAL].probs)


# Architectures


SILOS = [f"silo-{k}" for k in range(5)]


def test_architectures_go_to_the_silos_named_and_to_the_others_in_turn() -> None:
    usual = ModelSettings()
    small, named, wide = (
        PersonalModel(name="mlp"), PersonalModel(name="cnn", silos=("silo-1", "silo-4")), PersonalModel(name="lenet5"),
    )  # fmt: skip
    found = assign((small, named, wide), usual, SILOS)
    assert [m.name for m in found.values()] == ["mlp", "cnn", "lenet5", "mlp", "cnn"]
    others = [model for silo, model in assign((named,), usual, SILOS).items() if silo not in named.silos]
    assert others == [usual] * 3
    assert set(assign((), usual, SILOS).values()) == {usual}


@pytest.mark.parametrize(
    ("silos", "message"), [(("silo-9",), "there is no silo 'silo-9'"), (("silo-1", "silo-1"), "appears twice")]
)
def test_a_silo_that_cannot_be_given_a_model_is_named(silos: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        assign((PersonalModel(silos=silos),), ModelSettings(), SILOS)


MIXED = """
rounds = 3
personal = [
  {name = "lenet5", features = 16},
  {name = "mlp", width = 16},
  {name = "residual", width = 4, silos = ["silo-0", "silo-7"]},
]

[data]
source = "digits"
n_silos = 10

[data.partition]
scheme = "dirichlet"
alpha = 0.5
minimum = 40

[model]
name = "cnn"
width = 4
hidden = 16

[method]
name = "fmlu"

[training]
batch_size = 16
lr = 0.01

[uncertainty]
mc_samples = 3

[engine]
sync_seconds = 0
"""


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of ten silos with models of three architectures, and the federation's of a fourth."""
    folder = tmp_path_factory.mktemp("mixed")
    (folder / "mixed.toml").write_text(MIXED)
    return start(load(str(folder / "mixed.toml")), folder / "run")


def test_ten_silos_with_three_architectures_train_and_report_both_models(mixed: Path) -> None:
    summary = json.loads((mixed / "summary.json").read_text())
    assert summary["complete"]
    assert {"global", "local"} <= set(summary["models"])
    assert summary["policy"] == {"name": "always"}
    assert all(set(silo["models"]) == {"switch", "global", "local"} for silo in summary["silos"])
    described = [silo["model"] for silo in summary["silos"]]
    assert described == ["residual", *["lenet5", "mlp"] * 3, "residual", "lenet5", "mlp"]
    rebuilt = json.loads((mixed / "model" / "model.json").read_text())["personal"]
    assert [rebuilt[silo["name"]]["name"] for silo in summary["silos"]] == described


def test_a_mixed_federation_resumes_to_the_same_bits(mixed: Path, tmp_path: Path) -> None:
    class Enough(Exception):
        pass

    class Interrupts(Silent):
        def round(self, number: int, phase: str, figures: object) -> None:
            if number == 2:
                raise Enough

    with pytest.raises(Enough):
        start(load(str(mixed.parent / "mixed.toml")), tmp_path / "run", Interrupts())
    resume(tmp_path / "run", workers=2)
    for file in sorted(mixed.rglob("*.safetensors")):
        assert file.read_bytes() == (tmp_path / "run" / file.relative_to(mixed)).read_bytes(), file.name


def test_a_mixed_federation_predicts_with_each_silos_own_model(mixed: Path) -> None:
    run = open_run(mixed)
    assert run.silos.images
    x = run.silos[0].test.x
    seen = []
    for silo in ("silo-0", "silo-1", "silo-2"):
        answers = run.answers(silo)(x)
        assert set(answers) == {Decision.GLOBAL, Decision.LOCAL}
        seen.append(answers)
    assert torch.equal(seen[0][Decision.GLOBAL].uncalibrated, seen[1][Decision.GLOBAL].uncalibrated)
    assert not torch.equal(seen[0][Decision.LOCAL].probs, seen[1][Decision.LOCAL].probs)


def test_the_library_takes_architectures_too() -> None:
    silos = caveat.data.rotated(caveat.data.digits(), angles=(0, 90), seed=0)
    run = caveat.run(
        silos, caveat.FML(training=caveat.Training(batch_size=32)), rounds=1,
        model=caveat.ModelSettings(name="mlp"), personal=[caveat.PersonalModel(name="lenet5")],
    )  # fmt: skip
    assert {silo["model"] for silo in run.summary["silos"]} == {"lenet5"}
    with pytest.raises(ConfigurationError, match="personal is not used"):
        caveat.run(silos, caveat.FedAvg(), rounds=1, personal=[caveat.PersonalModel(name="mlp")])
