"""What version 0.1 wrote, by its rules: a default that has changed since is no reason to compute something else."""

from __future__ import annotations

import dataclasses
import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..core.settings import plain
from ..data.settings import DataSettings
from ..wrappers.uncertainty import Uncertainty

DEFAULTS: Mapping[str, Mapping[str, Any]] = {"uncertainty": {"temperature": False, "familiarity": False}}
"""By section, the keys whose defaults were others in version 0.1, or that it had not, with what it did."""
OTHER_TEMPERATURES = "fitted temperatures in other rounds and on other splits than this version does"
"""What version 0.1 did."""


def is_earlier(table: Mapping[str, Any]) -> bool:
    """Whether version 0.1 wrote settings in full: `uncertainty.familiarity` is not among them."""
    section = table.get("uncertainty")
    return not (isinstance(section, Mapping) and "familiarity" in section)


def wrote(file: Path) -> bool:
    """Whether version 0.1 wrote the `config.toml` that a folder keeps; False where there is none, or one is damaged."""
    try:
        return file.is_file() and is_earlier(tomllib.loads(file.read_text(encoding="utf-8-sig")))
    except (OSError, ValueError, RecursionError):
        return False  # whoever loads it says what is wrong with it


def began(folder: Path) -> bool:
    """Whether version 0.1 began the run of a folder, or the one that it is beside, from a configuration or a call."""
    whole = folder.parent.parent if folder.parent.name == "beside" else folder
    try:
        return wrote(whole / "config.toml") or is_earlier(json.loads((whole / "call.json").read_text("utf-8")))
    except (OSError, ValueError, RecursionError, AttributeError):
        return False  # whoever reads it says what is wrong with it


def with_defaults(table: dict[str, Any]) -> dict[str, Any]:
    """The table of a configuration, with what version 0.1 took for keys that are left out."""
    sections = {name: table.get(name, {}) for name in DEFAULTS}
    return table | {name: {**DEFAULTS[name], **each} for name, each in sections.items() if isinstance(each, dict)}


def completed(uncertainty: Mapping[str, Any]) -> dict[str, Any]:
    """An `[uncertainty]` as a call or an audit keeps it: where version 0.1 did, with the keys that it had not."""
    return (
        {**plain(Uncertainty()), **DEFAULTS["uncertainty"], **uncertainty}
        if is_earlier({"uncertainty": uncertainty})
        else dict(uncertainty)
    )


def how_to_continue(uncertainty: Mapping[str, Any]) -> str:
    """What to say to whoever goes on in Python with what version 0.1 began with that `[uncertainty]`."""
    temperature = bool(uncertainty.get("temperature"))
    return (
        "version 0.1 began it, whose defaults were others: it goes on with "
        f"uncertainty=caveat.Uncertainty(temperature={temperature}, familiarity=False), beside what it was given"
    )


def had_no_classes(text: str) -> bool:
    """Whether the version that wrote a configuration, kept as a text, had no `data.classes` yet."""
    return "classes" not in tomllib.loads(text.removeprefix("\ufeff")).get("data", {})


def by_own_rules(settings: DataSettings, text: str) -> DataSettings:
    """The `[data]` of a configuration that a folder keeps as a text, by the rules of the version that wrote it.

    Version 0.1 did not turn images as their EXIF data say, and had no `data.exif_rotation` to say so. Nor did it, and
    versions before `data.duplicates`, put equal rows of a table together.
    """
    said = tomllib.loads(text.removeprefix("\ufeff")).get("data", {})
    earlier: dict[str, Any] = {}
    if "exif_rotation" not in said and settings.reads_images:
        earlier["exif_rotation"] = False
    if "duplicates" not in said and settings.reads_tables:
        earlier["duplicates"] = "drawn"
    return dataclasses.replace(settings, **earlier) if earlier else settings
