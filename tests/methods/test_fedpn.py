"""FedPN's figures about its embeddings and evidence, its warning, and its calibration on digits."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from federations import ADAM, Federation
from hospitals import Notes
from torch import Tensor

import caveat
from caveat import config
from caveat.files.run_folder import read_rows
from caveat.methods import FedPN
from caveat.methods.fedpn import COLLAPSED, EXAMINED
from caveat.nn.models import ModelSettings
from caveat.nn.posterior_network import embedding
from caveat.training.fit import Training


def test_the_described_embeddings_and_evidence_are_those_of_the_inputs(tmp_path: Path) -> None:
    """Against the features and answers of the same inputs; of many inputs, evenly spaced ones are examined."""
    federation = Federation(FedPN(rounds=1, training=ADAM, layers=2, personal_epochs=1, personal_steps=0), tmp_path)
    federation.run()
    method, down, place = federation.method, federation.method.broadcast(federation.server), federation.place
    context, state = place.silos["silo-0"].context(place.module), federation.states()["silo-0"]
    x = context.train.x
    found = method.describe(down, state, context, x)
    z = embedding(method.features(down, {}, context, x)["encoder"]).double()
    (answer,) = method.answer(down, {}, context, x).values()
    share = float((answer.uncertainty["vacuity"] > 0.9).double().mean())
    spread = math.sqrt(float(z.var(0, correction=0).sum()))
    assert method.summarize(found) == pytest.approx({"embedding_spread": spread, "no_evidence": share})
    many = method.describe(down, state, context, x.repeat_interleave(EXAMINED, 0))
    assert float(many["inputs"]) == EXAMINED
    assert method.summarize(many)["embedding_spread"] == pytest.approx(spread, rel=0.1)


def sums(spread: float, inputs: int = 30) -> dict[str, Tensor]:
    each = {"inputs": inputs, "apart": inputs * spread**2, "no_evidence": 0}
    return {name: torch.tensor(value, dtype=torch.float64) for name, value in each.items()}


def test_collapsed_embeddings_are_one_warning_over_all_silos() -> None:
    (found,) = FedPN().cautions({"a": sums(0.01), "b": sums(0.02)}, 10)
    assert (found.kind, found.silos) == ("collapsed_embeddings", ())
    assert f"is {math.sqrt((0.01**2 + 0.02**2) / 2):.3f}, so" in found.text
    assert not [*FedPN().cautions({"a": sums(0.01), "b": sums(0.5)}, 10)]  # one silo may have inputs of one kind
    assert not [*FedPN().cautions({"a": sums(0.01, inputs=10)}, 10)]


@pytest.mark.long
def test_embeddings_that_the_densities_shrink_to_a_point_are_seen_in_every_round_and_warned_of(tmp_path: Path) -> None:
    """A density that trains the encoder can lower -log p(z) by shrinking all embeddings that are not normalized."""
    silos = caveat.data.rotated(caveat.data.digits(), angles=(0,), silos_per_angle=2, samples_per_silo=160, seed=0)
    method = FedPN(
        layers=10, gamma=1, normalize=False, density_trains_encoder=True, floor=-50, personal_epochs=1, personal_steps=0
    )
    progress = Notes()
    run = caveat.run(
        silos, method, rounds=3, training=Training(local_epochs=3, batch_size=16, lr=0.01), out=tmp_path,
        model=ModelSettings(width=4), uncertainty=caveat.Uncertainty(familiarity=False), progress=progress,
    )  # fmt: skip
    rows = [row.model_dump() for row in read_rows(tmp_path / "rounds.jsonl")[0]]
    spreads = [row["embedding_spread"] for row in rows if row["split"] == "validation" and "no_evidence" in row]
    assert len(spreads) == (3 + 1) * len(silos)  # three rounds, and the final models
    assert max(spreads[4:]) < COLLAPSED
    assert "collapsed_embeddings" in {each["kind"] for each in run.summary["warnings"]}
    (told,) = (note for note in progress.notes if "collapsed_embeddings" in note)
    assert told.startswith(("round 2: ", "round 3: "))  # two evaluations in a row


@pytest.mark.long
def test_probabilities_on_digits_are_calibrated_and_nearly_all_inputs_have_evidence() -> None:
    """The silos' own models are small, so their evidence was once below the floor of training everywhere."""
    seed = 7
    settings = ["method.name=fedpn", "rounds=12", "training.local_epochs=3", "model.width=8", f"seed={seed}"]
    asked = config.load("digits", settings)
    silos = caveat.data.load(asked.data, seed)
    progress = Notes()
    run = caveat.run(
        silos, asked.build_method(), model=asked.model, seed=seed, uncertainty=asked.uncertainty, progress=progress
    )
    summary = run.summary
    assert all(1 / 4 < value < 4 for value in summary["temperature"].values())
    assert summary["pooled"]["nll"] < 1.1 * summary["models"]["global"]["pooled"]["nll"]
    assert not {"no_evidence", "collapsed_embeddings"} & {each["kind"] for each in summary.get("warnings", ())}
    assert not [note for note in progress.notes if "evidence" in note or "collapsed" in note]
    for silo in silos:
        for answer in run.answers(silo.name)(silo.validation.x).values():
            assert answer.log_evidence is not None
            assert float((answer.log_evidence < FedPN().floor).double().mean()) <= 0.1
