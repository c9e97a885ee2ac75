"""A silo's own file, `silo.toml`: its name in the federation, where its data are, and where its state is kept."""

import contextlib
import hashlib
import json
import os
import secrets
import string
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ...config import read_dictionary
from ...config.toml import parse
from ...core import ConfigurationError, DataError, RunError, SiloId, check_silo_name
from ...core.devices import find_device
from ...data import DataSettings
from ...data.agreement import own_settings
from ...data.schemas import reason
from ...data.tables.dictionary import DictionaryColumn, LabelCode, OwnColumn, as_lists
from ...files.writing import close_to_others
from .frozen_splits import CHANGES
from .limits import Limits

OWN_KEYS = ("target", "categorical", "numeric", "decimal", "separator", "label_codes", "rename_columns")
"""The settings of a table that a silo can have for itself."""
KEYS: Mapping[str, type] = {"silo": str, "state": str, "device": str, "data": dict, "limits": dict}
DATA_KEYS: Mapping[str, type] = {
    "source": str, "target": str, "categorical": list, "numeric": list, "decimal": str, "separator": str,
    "label_codes": dict, "rename_columns": dict, "small_counts": bool, "dictionary": str, "changed": str,
}  # fmt: skip


@dataclass(frozen=True)
class SiloFile:
    """What a silo says to its own node, and to nobody else."""

    silo: SiloId
    state: Path
    """The folder that holds what must survive: private states, a secret, the data as tensors."""
    source: str
    target: str | None = None
    categorical: tuple[str, ...] | None = None
    numeric: tuple[str, ...] | None = None
    decimal: str | None = None
    separator: str | None = None
    device: str = "cpu"
    """Where it computes, as engine.device says it elsewhere."""
    limits: Limits = field(default_factory=Limits)
    label_codes: tuple[LabelCode, ...] | None = None
    """What labels of its table mean."""
    rename_columns: tuple[OwnColumn, ...] | None = None
    """What its table calls columns, or has in another unit."""
    small_counts: bool = False
    """Whether counts of fewer than five rows may leave it."""
    dictionary: tuple[DictionaryColumn, ...] | None = None
    """The one data dictionary by which it reads its table; None for whichever the server's configuration has."""
    path: str = ""
    """Where this was read, for messages."""
    changed: str = "stop"
    """What to do where the source is not what it was when the silo joined: one of `frozen.CHANGES`."""

    @property
    def is_table(self) -> bool:
        return self.source.startswith("csv:")

    def settings(self, federation: DataSettings) -> DataSettings:
        """The federation's settings for data, with this silo's own source in them.

        Raises DataError for those of another source: what is each silo's own to say would be the server's to say.
        """
        if federation.source != "on_site":
            raise DataError(f"the federation has data.source = {federation.source!r}, expected 'on_site'")
        return own_settings(federation, self.source, **{key: getattr(self, key) for key in OWN_KEYS})

    def secret(self) -> int:
        """A number that nobody else knows, drawn when it is first asked for."""
        path = self.private() / "secret"
        if not path.exists():
            part = path.with_name(f".secret.{os.getpid()}.part")
            part.unlink(missing_ok=True)
            with os.fdopen(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o600), "w") as file:
                token = secrets.token_hex(16)
                file.write(f"{token} {_checksum(token)}")
            # Whole or not at all, and never over one that another process has just drawn.
            with contextlib.suppress(FileExistsError):
                os.link(part, path)
            part.unlink()
        token, *checksum = path.read_text(errors="replace").split() or [""]
        if checksum != [_checksum(token)] or len(token) != 32 or not set(token) <= set(string.hexdigits):
            raise RunError(f"{path} is damaged: put it back from a copy; noise that is drawn from another would differ")
        return int(token, 16)

    def private(self, *names: str) -> Path:
        """A folder in `state`, made if it is not there; nobody else may look into it, nor into `state` if that is made.

        A `state` that is there is left as it is, since other things may be in it.
        """
        self.state.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = self.state.joinpath(*names)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if names:
            close_to_others(folder)
        return folder


def _checksum(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()[:16]


def read_silo_file(path: Path) -> SiloFile:
    """Read a silo's `silo.toml`. Raises ConfigurationError naming the file, the key and what was expected."""
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
    own |= {"small_counts": bool(data.get("small_counts", False)), "path": str(path)}
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
    """`[data.label_codes]` and `[data.rename_columns]`. Raises ConfigurationError, naming the file, otherwise."""
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
            raise ConfigurationError(f"{path}: {prefix}{key} is no key; there are: {', '.join(keys)}")
    for key, kind in keys.items():
        if key not in table and key in required:
            raise ConfigurationError(f"{path}: {prefix}{key} is missing")
        if key in table and not isinstance(table[key], kind):
            raise ConfigurationError(f"{path}: {prefix}{key} = {table[key]!r}, expected {kind.__name__}")


def beside(source: str, folder: Path) -> str:
    """The source with those of its paths made absolute that exist in a folder."""
    kind, _, rest = source.partition(":")
    if not rest:
        return source
    names = [str(folder / name.strip()) if (folder / name.strip()).exists() else name for name in rest.split(",")]
    return f"{kind}:{','.join(names)}"
