"""A silo's own file, `silo.toml`: its name, its data, its state, and its limits for all federations.

The silo's own ledgers, one per federation below its `state`, record what it has done so far.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import secrets
import string
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from ...config import Config, load_kept, read_dictionary
from ...config.toml import parse
from ...core import ConfigurationError, DataError, RunError, SiloId, check_silo_name
from ...core.devices import find_device
from ...core.text import plural
from ...data import DataSettings
from ...data.agreement import own_settings
from ...data.shared_schema import reason
from ...data.tables.declarations import DictionaryColumn, LabelCode, OwnColumn, as_lists
from ...engines.flower_messages import Order
from ...files import close_to_others, read_ledger
from ...runs.spec import spec_of
from ...wrappers.evaluation import Evaluated
from ...wrappers.privacy import DELTA, composed
from ..request_terms import Terms
from .frozen_splits import CHANGES


class BeyondLimits(RunError):
    """A refusal because the silo's own file does not allow the request. The text is for the silo only. Others learn
    `told`: the silo and the rule, which is a key of `[limits]`."""

    def __init__(self, text: str, rule: str, silo: SiloId) -> None:
        super().__init__(text, silo)
        self.rule = rule
        self.told = f"silo {silo!r} refuses: {rule}"


LEDGER = "ledger.jsonl"
NO_NOISE = 0.0
"""Noise multiplier of an update without noise."""


@dataclass(frozen=True)
class Limits:
    """Limits on methods, training rounds and epsilon of one silo, over all federations with states in its folder."""

    methods: tuple[str, ...] | None = None
    """The methods in which the silo takes part; None for any."""
    rounds: int | None = None
    """Maximum number of training updates that leave the silo; repeated updates and repeated answers count, too."""
    epsilon: float | None = None
    """Maximum silo-level epsilon of those updates, against a server that sees each of them."""
    delta: float = DELTA
    """The delta of that epsilon."""

    @classmethod
    def of(cls, table: dict[str, Any]) -> Limits:
        """Parse the table of a file. Raises ConfigurationError with the key, its value and what was expected."""
        for key, value in table.items():
            if key not in _EXPECTED:
                raise ConfigurationError(f"unknown key limits.{key}; available: {', '.join(_EXPECTED)}")
            if not _fits(key, value):
                raise ConfigurationError(f"limits.{key} = {value!r}, expected {_EXPECTED[key]}")
        return cls(**table | ({"methods": tuple(table["methods"])} if "methods" in table else {}))

    def check_begin(self, silo: SiloId, terms: Terms, state: Path) -> None:
        """Raise BeyondLimits if all rounds of a federation, added to the rounds of other federations, exceed a
        limit."""
        methods = (terms.config.method.name, *terms.config.baselines)
        self._check_methods(silo, methods)
        if self.counts:
            planned = [_multiplier(terms.config)] * sum(len(_training(terms.config, name)) for name in methods)
            left = _left(state)
            others = [sent for home, sent in left.updates if home != terms.federation]
            self._check_updates(silo, [*others, *planned], left.repeated, "with all rounds of this federation")

    def check_order(self, silo: SiloId, terms: Terms, order: Order, state: Path) -> None:
        """Raise BeyondLimits if an update or a repeated answer would exceed a limit, or for a forbidden method."""
        self._check_methods(silo, (terms.method,))
        if not self.counts:
            return
        left = _left(state)
        sent = [multiplier for _, multiplier in left.updates]
        if order.task in _training(terms.own_config, terms.method):
            self._check_updates(silo, [*sent, _multiplier(terms.config)], left.repeated, "with this round")
        elif Answer(terms.federation, terms.method, order.t, order.task) in left.answers:
            self._check_updates(silo, sent, left.repeated + 1, "with this repeated answer")

    @property
    def counts(self) -> bool:
        """Whether updates are counted over all federations."""
        return self.rounds is not None or self.epsilon is not None

    def _check_methods(self, silo: SiloId, asked: Iterable[str]) -> None:
        if self.methods is None:
            return
        for name in asked:
            if name not in self.methods:
                allowed = ", ".join(self.methods) or "none"
                raise BeyondLimits(
                    f"the federation's method {name!r} is not allowed by limits.methods of silo.toml, which allows "
                    f"{allowed}",
                    "limits.methods",
                    silo,
                )

    def _check_updates(self, silo: SiloId, multipliers: list[float], repeated: int, when: str) -> None:
        """Check updates, given by their noise multipliers, and repeated answers against the limits."""
        if self.rounds is not None and len(multipliers) + repeated > self.rounds:
            others = f" and {plural(repeated, 'repeated answer')}" if repeated else ""
            updates = plural(len(multipliers), "update")
            raise BeyondLimits(
                f"{when} {updates} of training{others} would have left this silo, but limits.rounds of silo.toml "
                f"allows {self.rounds}",
                "limits.rounds",
                silo,
            )
        if self.epsilon is not None and (found := composed(multipliers, self.delta)) > self.epsilon:
            why = "an infinite epsilon, as [privacy] is not set" if math.isinf(found) else f"epsilon {found:.3g}"
            raise BeyondLimits(
                f"{when} this silo would reach {why}, but limits.epsilon of silo.toml allows {self.epsilon:g} at a "
                f"delta of {self.delta:g}",
                "limits.epsilon",
                silo,
            )


_EXPECTED = {
    "methods": "a list of names of methods",
    "rounds": "a whole number, 1 or more",
    "epsilon": "a finite number above 0",
    "delta": "a number between 0 and 1",
}


def _fits(key: str, value: object) -> bool:
    if key == "methods":
        return isinstance(value, list) and all(isinstance(name, str) for name in value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if key == "rounds":
        return isinstance(value, int) and value >= 1
    return 0 < value < (1 if key == "delta" else math.inf)


def _training(config: Config, method: str) -> list[str]:
    """Return the addresses of the client tasks of a method's training rounds, one per round."""
    spec = spec_of(config, method)
    method_of_run = Evaluated(spec.complete_method(spec.expected or 1))
    return [step.address for step in method_of_run.schedule() if step.trains]


def _multiplier(config: Config) -> float:
    """Return the standard deviation of the noise in what the server sees of a silo's update, alone or in a sum, divided
    by the sensitivity of the update. It is 0 if the noise depends on the number of silos that the server reports."""
    spec = spec_of(config)
    if config.privacy.clip_norm is None or spec.expected is None:
        return NO_NOISE
    if config.privacy.where == "sum":
        return config.privacy.multiplier
    return config.privacy.multiplier / math.sqrt(spec.cohort_size(spec.expected))


class Answer(NamedTuple):
    """An answer of a silo that is not a training update."""

    federation: str
    method: str
    t: int | None
    task: str


@dataclass(frozen=True)
class _Left:
    """The messages that left a silo, from its own ledgers."""

    updates: list[tuple[str, float]]
    """Federation and noise multiplier of each training update."""
    answers: Counter[Answer]
    """The number of times that each other answer was sent."""

    @property
    def repeated(self) -> int:
        """Number of repeated answers that are not training updates. A server that requests one again, with another
        model, learns as much about the rows as from another round."""
        return self.answers.total() - len(self.answers)


def _left(state: Path) -> _Left:
    left = _Left([], Counter())
    for path in sorted(state.glob(f"*/*/{LEDGER}")):
        home, method = path.parent.parent, path.parent.name
        config = load_kept(home / "config.toml")
        training, multiplier = set(_training(config, method)), _multiplier(config)
        for message in read_ledger(path).messages:
            if message.task in training:
                left.updates.append((home.name, multiplier))
            else:
                left.answers[Answer(home.name, method, message.t, message.task or "")] += 1
    return left


OWN_KEYS = ("target", "categorical", "numeric", "decimal", "thousands", "missing", "separator", "label_codes",
            "rename_columns", "groups", "time")  # fmt: skip
"""The data settings that a silo can set itself."""
KEYS: Mapping[str, type] = {"silo": str, "state": str, "device": str, "peers": str, "data": dict, "limits": dict}
DATA_KEYS: Mapping[str, type] = {
    "source": str, "target": str, "categorical": list, "numeric": list, "decimal": str, "thousands": str,
    "missing": list, "separator": str, "label_codes": dict, "rename_columns": dict, "small_counts": bool,
    "dictionary": str, "changed": str, "groups": str, "time": str,
    "magnitudes": bool,
}  # fmt: skip


@dataclass(frozen=True)
class SiloFile:
    """The settings of a silo, which only its own node knows."""

    silo: SiloId
    state: Path
    """The folder with persistent files: private states, a secret, the data as tensors."""
    source: str
    target: str | None = None
    categorical: tuple[str, ...] | None = None
    numeric: tuple[str, ...] | None = None
    decimal: str | None = None
    separator: str | None = None
    thousands: str | None = None
    missing: tuple[str | float, ...] | None = None
    device: str = "cpu"
    """The silo's device, as in engine.device."""
    peers: Path | None = None
    """The folder with the public keys of the other silos, NAME.pub, for secure aggregation; None to trust the first key
    of each name."""
    limits: Limits = field(default_factory=Limits)
    label_codes: tuple[LabelCode, ...] | None = None
    """The meanings of labels in its table."""
    rename_columns: tuple[OwnColumn, ...] | None = None
    """Columns with another name or unit in its table."""
    groups: str | None = None
    """The column with the group of each row in its table; for other sources as in `data.groups`."""
    time: str | None = None
    """The column with the time of each row in its table."""
    small_counts: bool = False
    """Whether counts below five may leave the silo."""
    magnitudes: bool = False
    """Whether the magnitude of the median of each column of numbers may leave the silo."""
    dictionary: tuple[DictionaryColumn, ...] | None = None
    """The data dictionary for its table; None for the dictionary in the server's configuration."""
    path: str = ""
    """The path of the file, for messages."""
    changed: str = "stop"
    """The reaction if the source has changed since the silo joined: one of `frozen_splits.CHANGES`."""

    @property
    def is_table(self) -> bool:
        return self.source.startswith("csv:")

    def settings(self, federation: DataSettings) -> DataSettings:
        """Return the federation's data settings with this silo's own source. Raises DataError if `federation` names a
        source, because each silo must decide on its source."""
        if federation.source != "on_site":
            raise DataError(f"the federation has data.source = {federation.source!r}, expected 'on_site'")
        return own_settings(federation, self.source, **{key: getattr(self, key) for key in OWN_KEYS})

    def secret(self) -> int:
        """Return a number that only this silo knows, drawn on first use."""
        path = self.private() / "secret"
        if not path.exists():
            part = path.with_name(f".secret.{os.getpid()}.part")
            part.unlink(missing_ok=True)
            with os.fdopen(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o600), "w") as file:
                token = secrets.token_hex(16)
                file.write(f"{token} {_checksum(token)}")
            # Atomic, and never replaces one that another process has just drawn.
            with contextlib.suppress(FileExistsError):
                os.link(part, path)
            part.unlink()
        token, *checksum = path.read_text(errors="replace").split() or [""]
        if checksum != [_checksum(token)] or len(token) != 32 or not set(token) <= set(string.hexdigits):
            raise RunError(f"{path} is damaged: restore it from a copy, because another secret yields different noise")
        return int(token, 16)

    def private(self, *names: str) -> Path:
        """Return a private folder in `state`, created if necessary; a created `state` is private, too. An existing
        `state` keeps its permissions, because it may contain other files."""
        self.state.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = self.state.joinpath(*names)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if names:
            close_to_others(folder)
        return folder


def _checksum(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()[:16]


def read_silo_file(path: Path) -> SiloFile:
    """Read a silo's `silo.toml`. Raises ConfigurationError with the file, the key and what was expected."""
    try:
        table = parse(path.read_text(encoding="utf-8-sig"), str(path)).table
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: cannot be read: {error}") from None
    _check(path, "", table, KEYS, required=("silo", "state", "data"))
    _check(path, "data.", table["data"], DATA_KEYS, required=("source",))
    name, data = str(table["silo"]), table["data"]
    try:
        check_silo_name(name, f"{path}: ")
    except DataError as error:
        raise ConfigurationError(str(error)) from None
    folder = path.resolve().parent
    own: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in data.items() if key in OWN_KEYS
    }
    own["device"] = str(table.get("device", "cpu"))
    own |= {key: bool(data.get(key, False)) for key in ("small_counts", "magnitudes")} | {"path": str(path)}
    own["peers"] = folder / Path(table["peers"]).expanduser() if "peers" in table else None
    own |= _declared(path, data)
    if "dictionary" in data:
        own["dictionary"] = read_dictionary(folder / Path(data["dictionary"]).expanduser())
    own["changed"] = str(data.get("changed", "stop"))
    if own["changed"] not in CHANGES:
        raise ConfigurationError(f"{path}: data.changed = {own['changed']!r}, expected one of {', '.join(CHANGES)}")
    file = SiloFile(name, folder / Path(table["state"]).expanduser(), beside(str(data["source"]), folder), **own)
    try:
        find_device(file.device, start=False, key="device")
        file = replace(file, limits=Limits.of(table.get("limits", {})))
        file.settings(DataSettings(source="on_site", target="any" if file.is_table else None))
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from None
    return file


def _declared(path: Path, data: Mapping[str, Any]) -> dict[str, Any]:
    """Read `[data.label_codes]` and `[data.rename_columns]`. Raises ConfigurationError for invalid entries."""
    given = {key: data[key] for key in ("label_codes", "rename_columns") if key in data}
    kinds: dict[str, Any] = {"label_codes": tuple[LabelCode, ...], "rename_columns": tuple[OwnColumn, ...]}
    made = {}
    for key, entries in as_lists(given).items():
        try:
            made[key] = TypeAdapter(kinds[key]).validate_json(json.dumps(entries), strict=True)
        except (ValidationError, ConfigurationError) as error:
            expected = (
                'CODE = "CLASS"' if key == "label_codes" else 'OWN = "NAME", OWN = false or OWN = {factor = 38.67}'
            )
            told = reason(error) if isinstance(error, ValidationError) else str(error)
            raise ConfigurationError(f"{path}: [data.{key}]: {told}; expected lines such as {expected}") from None
    return made


def _check(path: Path, prefix: str, table: Any, keys: Mapping[str, type], required: tuple[str, ...]) -> None:
    for key in table:
        if key not in keys:
            raise ConfigurationError(f"{path}: unknown key {prefix}{key}; available: {', '.join(keys)}")
    for key, kind in keys.items():
        if key not in table and key in required:
            raise ConfigurationError(f"{path}: {prefix}{key} is missing")
        if key in table and not isinstance(table[key], kind):
            raise ConfigurationError(f"{path}: {prefix}{key} = {table[key]!r}, expected {kind.__name__}")


def beside(source: str, folder: Path) -> str:
    """Return the source with absolute paths for files that exist in a folder."""
    kind, _, rest = source.partition(":")
    if not rest:
        return source
    names = [str(folder / name.strip()) if (folder / name.strip()).exists() else name for name in rest.split(",")]
    return f"{kind}:{','.join(names)}"
