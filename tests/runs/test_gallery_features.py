"""Features of silos in two dimensions: of every method, on the same axes before and after discretisation."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from federations import METHODS, Federation, silos
from sklearn.decomposition import PCA
from torch import Tensor

import caveat
from caveat.config import load
from caveat.core import Data, Decision, Method, Prediction, Silo, Tensors
from caveat.data.silo_collection import Silos
from caveat.metrics import measure
from caveat.runs.feature_projection import features
from caveat.runs.gallery import INPUTS
from caveat.runs.start import start
from caveat.runs.summary import entropy_error

TINY = [
    "model.name=mlp", "rounds=1", "method.iterations=1", "baselines=[]", "data.n_silos=3", "training.local_epochs=1",
    "data.samples_per_silo=120", "data.test_per_silo=all", "engine.workers=1",
]  # fmt: skip


def federated(*counts: int) -> Silos:
    """Silos with so many test inputs of 5 features each."""
    generator = torch.Generator().manual_seed(0)
    found = []
    for k, count in enumerate(counts):
        test = Data(torch.randn(count, 5, generator=generator) + k, torch.arange(count) % 2)
        found.append(Silo(f"silo-{k}", f"domain-{k}", test, test, test, test))
    return Silos(found, ("a", "b"))


def as_it_is(_: str) -> Callable[[Tensor], Tensors]:
    return lambda x: {"encoder": x[:, None], "discretised": x.round()[:, None]}


def briefly(method: Method) -> Method:
    """The method with one round of training."""
    rounds = {"rounds": 1} | ({"iterations": 1} if isinstance(method, caveat.UEFL) else {})
    return replace(method, **rounds)  # type: ignore[type-var]


@pytest.mark.parametrize(
    "method", {type(each): briefly(each) for each in METHODS}.values(), ids=lambda method: type(method).__name__
)
def test_every_method_has_features_of_the_model_that_it_predicts_with(method: Method, tmp_path: Path) -> None:
    federation = Federation(method, tmp_path)
    down, x = method.broadcast(federation.run()), silos()["silo-1"].test.x
    state, context = federation.states()["silo-1"], federation.place.context("silo-1")
    found = method.features(down, state, context, x)
    assert next(iter(found)) == "encoder"
    for tokens in found.values():
        assert (len(tokens), tokens.ndim) == (len(x), 3)
        assert tokens.isfinite().all()
        assert not tokens.requires_grad
    again = method.features(down, state, context, x)
    assert all(torch.equal(found[stage], again[stage]) for stage in found)


def test_a_silo_with_a_model_of_its_own_has_its_features(tmp_path: Path) -> None:
    method = briefly(next(each for each in METHODS if type(each) is caveat.FML))
    federation = Federation(method, tmp_path)
    down, x = method.broadcast(federation.run()), silos()["silo-1"].test.x
    state, context = federation.states()["silo-1"], federation.place.context("silo-1")
    assert method.features(down, state, context, x)["encoder"].shape[2] == 4  # as wide as the silo's own model
    assert method.features(down, {}, context, x)["encoder"].shape[2] == 6  # and as the federation's, which all have


def test_after_discretisation_every_token_is_a_codeword_within_reach(tmp_path: Path) -> None:
    method = next(each for each in METHODS if isinstance(each, caveat.UEFL) and each.segments == 2)
    federation = Federation(method, tmp_path)
    down, x = method.broadcast(federation.run()), silos()["silo-2"].test.x
    state, context = federation.states()["silo-2"], federation.place.context("silo-2")
    found = method.features(down, state, context, x)
    used = int(state["model"]["codebook.used"])
    words = torch.cat([down["model"]["codebook.shared"], state["model"]["codebook.private"][:used]])
    segments, chosen = (found[stage].reshape(-1, words.shape[1]) for stage in ("encoder", "discretised"))
    assert torch.equal(chosen, words[torch.cdist(segments.double(), words.double()).argmin(1)])


def test_the_axes_are_those_of_one_pca_of_what_encoders_say() -> None:
    data = federated(30, 200)
    found = features(data, data.names, as_it_is)
    assert found is not None
    rows = [data[0].test.x, data[1].test.x[torch.linspace(0, 199, INPUTS).round().long()]]
    pca = PCA(2, svd_solver="full").fit(torch.cat(rows).double().numpy())
    assert found.explained == pytest.approx(pca.explained_variance_ratio_)
    for silo, x in zip(found.silos, rows, strict=True):
        places = {stage: np.array(points) for stage, points in silo.points.items()}
        np.testing.assert_allclose(places["encoder"], pca.transform(x.double().numpy()), rtol=1e-3)
        np.testing.assert_allclose(places["discretised"], pca.transform(x.round().double().numpy()), rtol=1e-3)
    assert [len(silo.labels) for silo in found.silos] == [30, INPUTS]
    assert found.silos[1].labels == data[1].test.y[torch.linspace(0, 199, INPUTS).round().long()].tolist()


def test_no_more_silos_are_shown_than_a_gallery_has() -> None:
    data = federated(*[3] * 25)
    found = features(data, data.names, as_it_is)
    assert found is not None
    assert [silo.name for silo in found.silos] == [f"silo-{k}" for k in range(20)]


@pytest.mark.parametrize(
    "stages",
    [
        lambda silo, x: {},
        lambda silo, x: {"encoder": x[:, None, : 2 + int(silo[-1])]},
        lambda silo, x: {"encoder": x[:, None, :1]},
        lambda silo, x: {"encoder": torch.zeros(len(x), 1, 3)},
        lambda silo, x: {"encoder": x[:, None] / 0},
    ],
    ids=["no encoder", "other widths", "one feature", "all alike", "not finite"],
)
def test_what_does_not_fit_on_one_plane_is_not_shown(stages: Callable[[str, Tensor], Tensors]) -> None:
    data = federated(10, 10)
    assert features(data, data.names, lambda silo: lambda x: stages(silo, x)) is None


def test_a_run_keeps_the_same_features_every_time(tmp_path: Path) -> None:
    texts = []
    for name in ("one", "other"):
        texts.append((start(load(None, TINY), tmp_path / name) / "features.json").read_text())
    assert texts[0] == texts[1]
    found = json.loads(texts[0])
    assert [silo["domain"] for silo in found["silos"]] == ["rotate(0)", "rotate(-50)", "rotate(120)"]
    assert {len(points) for silo in found["silos"] for points in silo["points"].values()} == {INPUTS}


def test_the_error_of_a_mean_entropy_is_that_of_the_entropies() -> None:
    probs = torch.softmax(torch.randn(1, 500, 4, generator=torch.Generator().manual_seed(0)).double(), -1)
    prediction = Prediction.from_samples(probs, Decision.GLOBAL)
    sums = measure(prediction, torch.zeros(500, dtype=torch.long))
    assert entropy_error(sums) == pytest.approx(float(prediction.total.std() / 500**0.5), rel=2e-3)
    one = Prediction.from_samples(probs[:, :1], Decision.GLOBAL)
    assert entropy_error(measure(one, torch.zeros(1, dtype=torch.long))) is None
