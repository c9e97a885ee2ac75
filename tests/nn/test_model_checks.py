"""Models that users bring are accepted and say the same of an input wherever it is, or are refused by a sentence."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from architectures import ACCEPTED, CLASSES, EXPECTED_TO_SAMPLE, REFUSED, Accepted
from torch import Tensor, nn

from caveat.core import ConfigurationError
from caveat.nn.dropout import has_dropout, mc_dropout
from caveat.nn.models import ModelSettings, build_model


def built(code: Any, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message="Lazy modules|`torch.jit")
        return build_model(ModelSettings(factory=code), shape, CLASSES, 3, dtype).eval()


def inputs(case: Accepted, rows: int) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    if not case.dtype.is_floating_point:
        return torch.randint(0, 9, (rows, *case.shape), generator=generator)
    return torch.randn(rows, *case.shape, generator=generator)


accepted = pytest.mark.parametrize("name", ACCEPTED)


def test_there_are_enough_cases() -> None:
    assert len(ACCEPTED) >= 30
    assert len(ACCEPTED) + len(REFUSED) >= 60


@accepted
def test_predictions_of_a_row_are_those_of_the_row_in_any_batch(name: str) -> None:
    case = ACCEPTED[name]
    model, x = built(case.make, case.shape, case.dtype), inputs(case, 23)

    def probs(x: Tensor) -> Tensor:
        return mc_dropout(model, x, 7).softmax(-1).mean(0)

    whole = probs(x)
    assert whole.isfinite().all()
    alone = torch.cat([probs(x[i : i + 1]) for i in range(23)])
    torch.testing.assert_close(alone, whole, rtol=0, atol=1e-5)
    order = torch.randperm(23, generator=torch.Generator().manual_seed(1))
    for size in (2, 5, 16):
        parts = torch.cat([probs(x[part]) for part in order.split(size)])
        torch.testing.assert_close(parts, whole[order], rtol=0, atol=1e-5)


@accepted
def test_what_is_accepted_computes_what_its_code_says_and_learns(name: str) -> None:
    case = ACCEPTED[name]
    model, x = built(case.make, case.shape, case.dtype), inputs(case, 8)
    again = built(model, case.shape, case.dtype)
    torch.testing.assert_close(again(x), model(x), rtol=0, atol=1e-6)
    y = torch.arange(8) % CLASSES
    torch.manual_seed(0)
    F.cross_entropy(model.train()(x), y).backward()
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())
    assert all(tensor.isfinite().all() for tensor in model.state_dict().values())


@pytest.mark.parametrize("name", EXPECTED_TO_SAMPLE)
def test_dropout_samples_and_its_mean_is_near_evaluation(name: str) -> None:
    case = ACCEPTED[name]
    model, x = built(case.make, case.shape, case.dtype), inputs(case, 4)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    samples = mc_dropout(model, x, 400)
    assert len(samples) == 400
    assert not torch.equal(samples[0].expand_as(samples), samples)
    # Where training adds noise or has another head, passes are still about evaluation. Alpha dropout moves the mean.
    near = 0.5 if name == "alpha dropout" else 0.12
    assert ((samples.mean(0) - model(x)).abs() <= 6 * samples.std(0) / 20 + near).all()
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("name", [name for name in ACCEPTED if name not in EXPECTED_TO_SAMPLE])
def test_what_drops_nothing_has_one_sample(name: str) -> None:
    case = ACCEPTED[name]
    model, x = built(case.make, case.shape, case.dtype), inputs(case, 4)
    assert not has_dropout(model)
    torch.testing.assert_close(mc_dropout(model, x, 5), model(x)[None], rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_a_sentence_whose_advice_works(name: str) -> None:
    case = REFUSED[name]
    dtype = Accepted(case.mended, case.shape).dtype
    with pytest.raises(ConfigurationError) as error:
        built(case.make, case.shape, dtype)
    text = str(error.value)
    assert case.sentence in text
    assert len(text.splitlines()) == 1
    assert error.value.key == "model.factory"
    built(case.mended, case.shape, dtype)


@pytest.mark.parametrize("frozen", [False, True])
def test_encoders_are_held_to_the_same(frozen: bool) -> None:
    def encoder(**norm: Any) -> nn.Module:
        return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16, **norm), nn.ReLU())

    settings = ModelSettings(encoder=lambda: encoder(track_running_stats=False), frozen=frozen)
    with pytest.raises(ConfigurationError, match="set track_running_stats=True in BatchNorm1d") as error:
        build_model(settings, (8,), CLASSES, 3)
    assert error.value.key == "model.encoder"
    build_model(ModelSettings(encoder=encoder, frozen=frozen), (8,), CLASSES, 3)
