"""The rows of the leaderboard with their settings, and its contrasts, from `settings.toml`."""

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..analysis.compare.grid import seeds_of
from ..core import ConfigurationError, Method
from ..core.errors import one_of
from ..methods import METHODS
from ..methods.plugins import advice
from ..nn.models import ModelSettings
from .federations import FEDERATIONS, KNOWN, LITE, BoardTraining

SETTINGS = Path(__file__).with_name("settings.toml")
MAJORITY, POOLED = "majority", "pooled"
"""Trivial rows: the classes' shares of the silo's training data, and FedAvg on the data of all silos at one place."""


class Part(BaseModel):
    """A part of the settings file; unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Changes(Part):
    """Differences from a method's defaults and from the federation's training settings."""

    method: dict[str, Any] = {}
    model: dict[str, Any] = {}
    training: dict[str, Any] = {}
    fewer_rounds: Annotated[int, Field(ge=0)] = 0

    def joined(self, other: "Changes | None") -> "Changes":
        if other is None:
            return self
        mine, given = self.model_dump(), other.model_dump(exclude_unset=True)
        both = {key: {**mine[key], **value} if isinstance(value, dict) else value for key, value in given.items()}
        return Changes.model_validate({**mine, **both})


class RowSettings(Changes):
    """The settings of a row."""

    encoder: Changes | None = None
    federations: dict[str, Changes] = {}
    tuned: tuple[str, ...] = ()
    """Keys that were chosen on validation data of other seeds."""


class BoardContrast(Part):
    """Two rows that the board compares to decide which one is better."""

    claim: str
    a: str
    b: str
    figure: Literal["nll", "augrc"] = "nll"


class BoardSettings(Part):
    """The settings file."""

    rows: tuple[str, ...]
    lite: tuple[str, ...]
    reference: str
    alone: str
    seeds: tuple[int, ...]
    lite_seeds: tuple[int, ...]
    ensemble_size: Annotated[int, Field(ge=2)]
    tests: Annotated[int, Field(ge=1)]
    settings: dict[str, RowSettings] = {}
    contrasts: tuple[BoardContrast, ...] = ()

    def seeds_of(self, asked: str | None, lite: bool) -> tuple[int, ...]:
        """Return the seeds. Raises ConfigurationError for anything except whole numbers."""
        return seeds_of(asked) if asked is not None else self.lite_seeds if lite else self.seeds

    def method_of(
        self, row: str, federation: str, trained: BoardTraining
    ) -> tuple[Method, ModelSettings, dict[str, Any]]:
        """Return a row's method and model on a federation, and all settings that differ from the federation's.

        Raises ConfigurationError, naming the row, for settings that the method does not have.
        """
        own = self.settings.get(row, RowSettings())
        changes = Changes.model_validate(own.model_dump(include=set(Changes.model_fields)))
        changes = changes.joined(own.encoder if trained.model.encoder else None)
        changes = changes.joined(own.federations.get(federation))
        try:
            training = replace(trained.training, **changes.training)
            rounds = trained.rounds - changes.fewer_rounds
            method = METHODS["fedavg" if row == POOLED else row](training=training, rounds=rounds, **changes.method)  # type: ignore[call-arg]
            model = replace(trained.model, **changes.model)
        except (TypeError, ConfigurationError) as error:
            raise ConfigurationError(f"settings of row {row!r}: {error}") from None
        return method, model, changes.model_dump(exclude_defaults=True)


def read_settings(path: Path) -> BoardSettings:
    """Read settings. Raises ConfigurationError, naming the file and the key."""
    try:
        return BoardSettings(**tomllib.loads(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(f"--settings {path} cannot be read as TOML: {error}") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ConfigurationError(f"--settings {path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def rows_of(settings: BoardSettings, asked: str | None, lite: bool) -> list[str]:
    """Return the methods to train: the requested methods, and those that all rows are compared with.

    Raises ConfigurationError for an unknown method, or a block of settings of an unknown method or federation.
    """
    for row, block in settings.settings.items():
        if row not in METHODS and row not in (MAJORITY, POOLED):
            raise ConfigurationError(f"[settings.{row}]: no such method{one_of(row, [*METHODS])}; {advice(row)}")
        if unknown := [name for name in block.federations if name not in KNOWN]:
            others = one_of(unknown[0], [*KNOWN])
            raise ConfigurationError(f"[settings.{row}.federations]: no such federation {unknown[0]!r}{others}")
    names = (
        [name.strip() for name in asked.split(",")]
        if asked is not None
        else [*(settings.lite if lite else settings.rows)]
    )
    needed = [row.partition("/")[0] for row in (settings.reference, settings.alone)]
    for name in (*names, *needed):
        if name not in METHODS and name not in (MAJORITY, POOLED):
            raise ConfigurationError(f"--rows {name}: no such method{one_of(name, [*METHODS])}; {advice(name)}")
    return list(dict.fromkeys([MAJORITY, needed[1], POOLED, needed[0], *names]))


def federations_of(asked: str | None, lite: bool, folder: Path | None) -> list[str]:
    """Return the federations. Raises ConfigurationError for an unknown one, or if files are missing."""
    names = [name.strip() for name in asked.split(",")] if asked is not None else [*(LITE if lite else FEDERATIONS)]
    for name in names:
        if name not in KNOWN:
            raise ConfigurationError(f"--federations {name}: no such federation{one_of(name, [*KNOWN])}")
        for file in KNOWN[name].files:
            if folder is None or not (folder / f"{file}.npz").is_file():
                place = "CAVEAT_DATA, which is not set" if folder is None else str(folder)
                raise ConfigurationError(f"federation {name!r} needs {file}.npz in {place}; --lite needs no files")
    return names
