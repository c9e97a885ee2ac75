"""Settings in Python: refused values are one short line each, and `help` tells what every field means."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

import caveat
from caveat.core import ConfigurationError
from caveat.methods import METHODS

SETTINGS: list[Any] = [*METHODS.values(), caveat.Training, caveat.Uncertainty, caveat.Privacy, caveat.ModelSettings]


@pytest.mark.parametrize("cls", SETTINGS)
def test_help_shows_every_field_with_its_meaning(cls: Any) -> None:
    lines = [line.strip() for line in (cls.__doc__ or "").splitlines()]
    for field in dataclasses.fields(cls):
        place = next(i for i, line in enumerate(lines) if line.startswith(f"{field.name} = "))
        assert len(lines[place + 1]) > 8, field.name
    assert "Annotated" not in (cls.__doc__ or "")


@pytest.mark.parametrize(
    ("make", "said", "key"),
    [
        (lambda: caveat.Training(lr=-1), "lr = -1: must be greater than 0", "lr"),
        (lambda: caveat.FedProx(mu="x"), "mu = 'x': must be a valid number", "mu"),  # type: ignore[arg-type]
        (lambda: caveat.FedAvg(lr=0.1), "lr: FedAvg has no such setting; did you mean training=Training(lr=", "lr"),  # type: ignore[call-arg]
        (lambda: caveat.UEFL(codeword=3), "codeword: UEFL has no such setting; did you mean codewords", "codeword"),  # type: ignore[call-arg]
        (lambda: caveat.Training(momentum=0.5), "training.momentum = 0.5 has no effect", "training.momentum"),
        (lambda: caveat.ModelSettings(name="mlp", width=0), "width = 0: must be greater than 0", "width"),
    ],
)
def test_a_refused_value_is_one_short_line(make: Any, said: str, key: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        make()
    assert str(refused.value).startswith(said)
    assert len(str(refused.value).splitlines()) == 1
    assert refused.value.key == key
    assert refused.value.__suppress_context__ or refused.value.__context__ is None  # nothing of pydantic's is shown


def test_a_plain_dataclass_of_settings_refuses_by_the_same_error() -> None:
    """Its fields are not checked by pydantic, so that nothing stands between it and the checks of its base."""

    @dataclasses.dataclass(frozen=True)
    class Own(caveat.Training):
        extra: int = 1

    with pytest.raises(ConfigurationError, match=r"training\.momentum = 0\.5 has no effect"):
        Own(momentum=0.5)


def test_several_values_are_refused_at_once() -> None:
    with pytest.raises(ConfigurationError) as refused:
        caveat.Training(lr=-1, batch_size=0)
    assert [problem.key for problem in refused.value.problems] == ["batch_size", "lr"]
    assert len(str(refused.value).splitlines()) == 2
