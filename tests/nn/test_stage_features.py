"""Stages: what is recorded of a model on its way, and that recording changes and costs nothing else."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from caveat.nn.dropout import ELEMENTWISE, mc_dropout
from caveat.nn.models import ModelSettings, build_model
from caveat.nn.stage_features import (
    NUMBERS,
    STAGES,
    before_last,
    by_answer,
    input_numbers,
    last_layer,
    recording,
    stage_numbers,
    stages,
)

MODELS = {
    "lenet5": (1, 28, 28),
    "residual": (3, 32, 32),
    "cnn": (1, 28, 28),
    "normed": (3, 64, 64),
    "mlp": (20,),
}


def built(name: str) -> nn.Module:
    return build_model(ModelSettings(name=name), MODELS[name], 5, seed=0).eval()  # type: ignore[arg-type]


@pytest.mark.parametrize("name", MODELS)
def test_every_model_has_stages_of_bounded_width(name: str) -> None:
    model, x = built(name), torch.randn(7, *MODELS[name])
    assert 2 <= len(stages(model)) <= STAGES
    with recording(stages(model)) as found:
        mc_dropout(model, x, samples=3)
    for passes in found:
        (numbers,) = passes
        assert numbers.shape[0] == 7
        assert 1 < numbers.shape[1] <= NUMBERS


@pytest.mark.parametrize("name", MODELS)
def test_recording_changes_no_bit_of_an_answer(name: str) -> None:
    model, x = built(name), torch.randn(7, *MODELS[name])
    before = mc_dropout(model, x, samples=3)
    with recording(stages(model)):
        during = mc_dropout(model, x, samples=3)
    assert torch.equal(before, during)
    assert not any(part._forward_hooks for part in model.modules())


@pytest.mark.parametrize("activation", ELEMENTWISE)
def test_sampling_records_what_a_plain_pass_does(activation: type[nn.Module]) -> None:
    # What lies before dropout is computed with units first in memory: whoever watches must not see that.
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), activation(), nn.Dropout(0.5), nn.Linear(8, 3))
    x = torch.randn(5, 1, 3, 4)
    with recording(stages(model.eval())) as sampled, torch.no_grad():
        mc_dropout(model, x, samples=3)
    with recording(stages(model)) as plain, torch.no_grad():
        model(x)
    assert [tuple(each.shape) for each in sampled[0]] == [(5, 8)]
    torch.testing.assert_close(sampled[0][0], plain[0][0])


@pytest.mark.parametrize("name", MODELS)
def test_what_the_last_layer_takes_is_recorded(name: str) -> None:
    model, x = built(name), torch.randn(7, *MODELS[name])
    with recording(before_last(model)) as (passes,):
        wanted = last_layer(model, x).hidden[:, :-1]
    torch.testing.assert_close(passes[0], stage_numbers(wanted))
    with recording(before_last(model)) as (passes,):
        mc_dropout(model, x, samples=3)
    assert len(passes) == 1
    torch.testing.assert_close(passes[0], stage_numbers(wanted))


def test_before_the_last_layer_there_may_be_nothing() -> None:
    linear = build_model(ModelSettings(name="linear"), (5,), 3, seed=0)
    assert not before_last(linear)
    deep = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    assert before_last(deep) == [deep[1]]  # none after dropout
    assert before_last(nn.Sequential(*deep[:2], *deep[3:])) == [deep[4]]


def test_stages_end_where_dropout_begins() -> None:
    encoder = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 8), nn.ReLU())
    assert stages(encoder) == [encoder[1]]


def test_an_activation_before_a_pooling_is_not_recorded_twice() -> None:
    encoder = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(2, 2, 3), nn.ReLU())
    assert stages(encoder) == [encoder[2], encoder[4]]


def test_numbers_of_a_map_are_means_and_deviations_of_channels() -> None:
    h = torch.randn(5, 3, 6, 4)
    wanted = torch.cat([h.mean((2, 3)), h.var((2, 3), correction=0).sqrt()], 1)
    torch.testing.assert_close(stage_numbers(h), wanted, rtol=1e-4, atol=1e-5)
    channels_last = h.to(memory_format=torch.channels_last)
    torch.testing.assert_close(stage_numbers(channels_last), wanted, rtol=1e-4, atol=1e-5)
    tokens = h.flatten(2).transpose(1, 2)
    torch.testing.assert_close(stage_numbers(tokens), wanted, rtol=1e-4, atol=1e-5)


def test_many_numbers_are_projected_and_keep_their_distances() -> None:
    h = torch.randn(50, 2000)
    numbers = stage_numbers(h)
    assert numbers.shape == (50, NUMBERS)
    assert torch.equal(numbers, stage_numbers(h))
    ratio = torch.pdist(numbers) / torch.pdist(h) * (2000 / NUMBERS) ** 0.5
    assert 0.7 < float(ratio.min()) <= float(ratio.max()) < 1.3


def test_texture_is_of_differences_of_neighbours_at_each_scale() -> None:
    x = torch.randn(4, 2, 16, 16)
    texture = input_numbers(x)["texture"]
    across = (x[..., 1:] - x[..., :-1]).square().mean((2, 3))
    torch.testing.assert_close(texture[:, :2], (across + 1e-6).log() / 2, rtol=1e-4, atol=1e-4)
    half = F.avg_pool2d(x, 2)
    across = (half[..., 1:] - half[..., :-1]).square().mean((2, 3))
    torch.testing.assert_close(texture[:, 6:8], (across + 1e-6).log() / 2, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 9, 13), (1, 28, 28), (2, 4, 4), (17,), (400,)])
def test_inputs_of_any_shape_have_finite_numbers(shape: tuple[int, ...]) -> None:
    for x in (torch.randn(6, *shape), torch.zeros(6, *shape), torch.zeros(0, *shape)):
        for name, numbers in input_numbers(x).items():
            assert numbers.shape[0] == len(x), name
            assert numbers.shape[1] <= NUMBERS
            assert numbers.isfinite().all()


def test_answers_share_a_pass_or_have_one_each() -> None:
    first, second = torch.zeros(3, 2), torch.ones(3, 2)
    assert [each.mean().item() for each in by_answer([first], 3, 2)] == [0, 0]
    assert [each.mean().item() for each in by_answer([first, second], 3, 2)] == [0, 1]
    assert [each.mean().item() for each in by_answer([first[:2], first[2:], second], 3, 1)] == [1]
