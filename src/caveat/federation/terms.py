"""What every order tells a silo besides the work, since every message may come to a new process."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from .. import config as configuration
from .._version import __version__
from ..config import Config
from ..core import DataError, SiloId
from ..core.errors import cut
from ..data.schemas import SharedSchema
from ..nn.probe import Said


@dataclass(frozen=True)
class Terms:
    """All that a silo must know to carry out any work."""

    federation: str
    """A name that no other federation has, and that stays when this one is resumed."""
    config: Config
    method: str
    """The configured one, or one beside it."""
    folder: str
    """The folder of the method's run, where silos of a simulation keep their states; else empty."""
    names: tuple[SiloId, ...]
    """Every silo so far, in the order of the run."""
    agreement: SharedSchema | None = None
    """None where nodes share one source."""
    rounds: int | None = None
    """Of a method beside the configured one: as many as that one took. None: the configuration's."""
    code: str = ""
    """What code of one's own makes at the server (`CodeMade.untaught`), once silos have agreed; else empty."""
    says: tuple[Said, ...] = ()
    """What such models compute there (`CodeMade.says`)."""

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
        """Raises DataError for what are no terms, ConfigurationError for a configuration that this version refuses."""
        try:
            found: dict[str, Any] = json.loads(text)
            agreement = found.pop("agreement")
            config = configuration.loads(str(found.pop("config")), "the federation's configuration")
            names = tuple(map(str, found.pop("names")))
            rounds = None if found["rounds"] is None else int(found["rounds"])
            given = {key: str(found[key]) for key in ("federation", "method", "folder", "code")}
            says = tuple(tuple(None if v is None else float(v) for v in said) for said in found["says"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"these are no terms of a federation: {type(error).__name__}: {error}") from None
        agreed = None if agreement is None else SharedSchema.of_json(agreement)
        return cls(**given, config=config, names=names, agreement=agreed, says=says, rounds=rounds)


def lasting(config: Config) -> Config:
    """What of a configuration holds for a whole run: all but how long the server waits, for how many replies, and how
    many rounds it can go back.
    """
    federation = config.federation
    # Where nothing else says how many silos are expected, the quorum does, and with it each one's share of the noise.
    quorum = None if federation.begin_with else federation.quorum
    waits = replace(federation, quorum=quorum, deadline=None, patience=None)
    return replace(config, federation=waits, engine=replace(config.engine, checkpoints=None))


MOST_KEYS = 5
"""Keys that are named of those in which two configurations differ."""


def differing(began: Config, given: Config) -> str:
    """The keys in which what is to last of two configurations differs, with both values; empty where nothing does."""
    if lasting(began) == lasting(given):
        return ""
    was, now = (dict(_keys(asdict(lasting(each)))) for each in (began, given))
    keys = [key for key in {**was, **now} if was.get(key) != now.get(key)]
    if "method.name" in keys:  # with which all its keys are others
        keys = [key for key in keys if key == "method.name" or not key.startswith("method.")]
    told = [f"{key} = {_shown(now.get(key))}, which was {_shown(was.get(key))}" for key in keys[:MOST_KEYS]]
    more = len(keys) - MOST_KEYS
    return "; ".join(told or ["in the code that it names"]) + (f"; and {more} more" if more > 0 else "")


def _keys(value: Mapping[str, Any], place: str = "") -> Iterator[tuple[str, Any]]:
    for key, inner in value.items():
        if isinstance(inner, dict) and inner:
            yield from _keys(inner, f"{place}{key}.")
        else:
            yield f"{place}{key}".replace("method.parameters.", "method."), inner


def _shown(value: object) -> str:
    return cut(json.dumps(value, default=str, ensure_ascii=False), 60)
