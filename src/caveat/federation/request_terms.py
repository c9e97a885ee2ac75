"""The terms of a federation: its configuration, its silos and their schema agreement, sent with every request.

Every request has them because Flower may start a new process at the silo for each message.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from .. import config as configuration
from .._version import __version__
from ..config import Config
from ..core import DataError, SiloId
from ..core.errors import cut
from ..data.shared_schema import SharedSchema
from ..nn.model_checks import Said
from ..runs.spec_file import WAITS, deciding, described_config, differences


@dataclass(frozen=True)
class Terms:
    """Everything that a silo must know to run client tasks."""

    federation: str
    """A unique name, which does not change when the federation is resumed."""
    config: Config
    method: str
    """The configured method, or one of its baselines."""
    folder: str
    """The folder of the method's run, where silos of a simulation store their states; otherwise empty."""
    names: tuple[SiloId, ...]
    """Every silo so far, in the order of the run."""
    agreement: SharedSchema | None = None
    """The schema that the silos agreed on; None before, and if nodes share one source."""
    rounds: int | None = None
    """Rounds of a baseline, equal to those of the configured method; None for the rounds of the configuration."""
    code: str = ""
    """Digest of custom models at the server (`CodeMade.untaught`), after silos agreed; otherwise empty."""
    says: tuple[Said, ...] = ()
    """Outputs of custom models at the server (`CodeMade.says`)."""
    grid: tuple[float, ...] = ()
    """Before the agreement: edges of cells in which silos count a quantity's targets; empty if they send moments."""

    @property
    def own_config(self) -> Config:
        """The configuration with the rounds of the method."""
        return self.config if self.rounds is None else replace(self.config, rounds=self.rounds)

    def to_text(self) -> str:
        agreement = None if self.agreement is None else self.agreement.to_json()
        return json.dumps({
            **vars(self), "version": __version__, "config": configuration.dump(self.config),
            "names": list(self.names), "agreement": agreement,
        })  # fmt: skip

    @classmethod
    def of_text(cls, text: str) -> Terms:
        """Parse terms. Raises DataError for an invalid text, ConfigurationError for an invalid configuration."""
        try:
            found: dict[str, Any] = json.loads(text)
            agreement = found.pop("agreement")
            config = configuration.loads(str(found.pop("config")), "the federation's configuration")
            names = tuple(map(str, found.pop("names")))
            rounds = None if found["rounds"] is None else int(found["rounds"])
            given = {key: str(found[key]) for key in ("federation", "method", "folder", "code")}
            says = tuple(tuple(None if v is None else float(v) for v in said) for said in found["says"])
            grid = tuple(map(float, found["grid"]))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"invalid terms of a federation: {type(error).__name__}: {error}") from None
        agreed = None if agreement is None else SharedSchema.of_json(agreement)
        return cls(**given, config=config, names=names, agreement=agreed, says=says, rounds=rounds, grid=grid)


MOST_KEYS = 5
"""Maximum number of keys in a message about different configurations."""


def differing(began: Mapping[str, Any], given: Config) -> str:
    """Return the keys in which a configuration differs from the description of a run, with both values, or "". Keys
    that may change are ignored: the server's waiting times, quorum, and number of checkpoints."""
    found = [*differences(deciding(began, WAITS), deciding(described_config(given, began), WAITS))]
    told = [f"{key} = {_shown(now)}, was {_shown(was)}" for key, was, now in found[:MOST_KEYS]]
    more = len(found) - MOST_KEYS
    return "; ".join(told) + (f"; and {more} more" if more > 0 else "")


def _shown(value: object) -> str:
    return cut(json.dumps(value, default=str, ensure_ascii=False), 60)
