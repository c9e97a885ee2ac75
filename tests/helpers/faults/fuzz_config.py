"""Configurations that are wrong: values of other types and sizes, misspelt keys, texts that are no TOML."""

from __future__ import annotations

import json
import math
import random
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from caveat import config as configuration
from caveat import data
from caveat.runs.start import check

from .actions import command, python_errors
from .children import Ended
from .fuzz import Trial
from .subjects import SUBJECTS

VALUES = [
    "-1", "0", "1", "2", "0.5", "-0.5", "1e-300", "1e300", "1e30", str(10**30), str(2**63 - 1), str(2**63), "nan",
    "-nan", "inf", "-inf", '"nan"', '""', '"x"', '"-"', "true", "false", "[]", "[0]", "[1, 2]", "[nan]", "[[1]]", "{}",
    "{x = 1}", "1979-05-27", "07:32:00", '"' + "y" * 10_000 + '"', "9" * 5000, "0x7f", "1_000", "+1", ".5", "1.",
    "[" * 900 + "]" * 900, '["test", "test"]', '"\\u0000"', '"=1+1"', '"../x"', '"npz:~nobody/x"', '"npz:/dev/zero"',
    '"npz:' + "z" * 5000 + '"', '"csv:/dev/null"', "[1e300]", "[0, -50, nan]", '"\\u202e"', "1e400", "-0.0",
]  # fmt: skip
HEAVY = {"rounds", "local_epochs", "local_steps", "batch_size", "mc_samples", "iterations", "extra_rounds", "layers"}
"""Keys of which a great value is meant, and takes its time."""


@cache
def text(subject: str) -> str:
    """The whole configuration of a subject."""
    return configuration.dump(configuration.load("digits", SUBJECTS[subject].sets))


@cache
def flat_keys(subject: str) -> list[str]:
    return list(_flat(tomllib.loads(text(subject)), ""))


def _flat(table: dict[str, Any], prefix: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in table.items():
        found |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return found


def one_value(choose: random.Random, place: Path) -> Trial:
    """`--set KEY=VALUE`, checked as a run is before it begins; what is accepted must be what was given."""
    subject = choose.choice(sorted(SUBJECTS))
    key, value = choose.choice([*flat_keys(subject), *_flat_sections(subject)]), choose.choice(VALUES)
    sets = [*SUBJECTS[subject].sets, f"{key}={value}"]
    return Trial(lambda: _checked(place, sets, key, value), _names(subject), f"{subject} {key}={value}", _said)


def _flat_sections(subject: str) -> list[str]:
    return sorted({key.rpartition(".")[0] for key in flat_keys(subject)} - {""})


def _names(subject: str) -> set[str]:
    return {part for key in [*flat_keys(subject), *_flat_sections(subject)] for part in (key, key.split(".")[-1])} | {
        "config.toml", "--set",
    }  # fmt: skip


def _checked(place: Path, sets: list[str], key: str, value: str) -> None:
    with python_errors():
        config = configuration.load("digits", sets)
        if (told := otherwise(key, value, config)) is not None:
            print(f"SILENTLY: {told}")
        silos = data.load(config.data, config.seed)
        check(config, silos, place / "run")


def otherwise(key: str, value: str, config: configuration.Config) -> str | None:
    """What an accepted value has become, if it is another."""
    found = _flat(tomllib.loads(configuration.dump(config)), "")
    try:
        given = tomllib.loads(f"v = {value}")["v"]
    except (tomllib.TOMLDecodeError, RecursionError, ValueError):
        given = value
    if "nan" in json.dumps(given, default=str).replace('"nan"', "").lower():
        return f"{key} = {value[:50]} is accepted"
    known = found.get(key)
    same = known == given or (
        isinstance(given, int | float) and isinstance(known, float) and math.isclose(known, given)
    )
    empty = given in ({}, []) and known in (None, [], {})
    if same or empty or (key not in found and isinstance(given, dict)):
        return None
    if isinstance(given, list) and isinstance(known, list) and [*map(float, known)] == [*map(float, given)]:
        return None
    return f"{key} = {value[:50]} has become {str(known)[:50]}"


def _said(ended: Ended) -> str:
    return "; ".join(line for line in ended.out.splitlines() if line.startswith("SILENTLY"))


def whole_text(choose: random.Random, place: Path) -> Trial:
    """A file of which lines are missing, doubled, exchanged, misspelt or damaged; if it is accepted, it is run."""
    subject = choose.choice(sorted(SUBJECTS))
    lines = text(subject).splitlines()
    about = []
    for _ in range(choose.choice([1, 1, 2, 4])):
        change = choose.choice([_drop, _double, _exchange, _misspell, _replace, _garble, _insert])
        about.append(change.__name__)
        change(lines, choose)
    content = "\n".join(lines).encode("utf-8", "surrogateescape")
    if choose.random() < 0.2:
        at = choose.randrange(len(content))
        content, about = content[:at] + choose.randbytes(choose.choice([1, 3])) + content[at + 1 :], [*about, "bytes"]
    file = place / "config.toml"
    file.write_bytes(content)
    return Trial(lambda: _run_if_light(file, place / "run"), _names(subject), f"{subject} {' '.join(about)}", _said)


def _run_if_light(file: Path, out: Path) -> None:
    """Run a configuration, unless it asks for much: then it is checked only."""
    with python_errors():
        config = configuration.load(str(file))
        if configuration.loads(configuration.dump(config), "dump") != config:
            print("SILENTLY: a configuration is another one when it is written and read again")
        found = _flat(tomllib.loads(configuration.dump(config)), "")
        heavy = [key for key, value in found.items() if isinstance(value, int) and value > 64 and key != "seed"]
        if heavy or found["data.source"] != "digits" or found["engine.name"] != "single_machine":
            check(config, data.load(config.data, config.seed), out)
            return
    command("run", file, "--out", out, "--quiet")


def _drop(lines: list[str], choose: random.Random) -> None:
    del lines[choose.randrange(len(lines))]


def _double(lines: list[str], choose: random.Random) -> None:
    lines.insert(choose.randrange(len(lines)), choose.choice(lines))


def _exchange(lines: list[str], choose: random.Random) -> None:
    a, b = choose.randrange(len(lines)), choose.randrange(len(lines))
    lines[a], lines[b] = lines[b], lines[a]


def _valued(lines: list[str], choose: random.Random) -> int:
    return choose.choice([i for i, line in enumerate(lines) if "=" in line and not line.startswith("#")])


def _misspell(lines: list[str], choose: random.Random) -> None:
    i = _valued(lines, choose)
    at = choose.randrange(lines[i].index("=") or 1)
    lines[i] = lines[i][:at] + choose.choice("aeiou_.-") + lines[i][at + choose.choice([0, 1]) :]


def _replace(lines: list[str], choose: random.Random) -> None:
    i = _valued(lines, choose)
    key = lines[i].partition("=")[0]
    value = choose.choice(VALUES)
    if key.strip().split(".")[-1] not in HEAVY or len(value) < 4:
        lines[i] = f"{key}= {value}"


def _garble(lines: list[str], choose: random.Random) -> None:
    i = choose.randrange(len(lines))
    at = choose.randrange(len(lines[i]) + 1)
    lines[i] = (
        lines[i][:at] + choose.choice(['"', "'", "[", "]", "=", "\\", "#", "\t", "\x00", "é", "{"]) + lines[i][at:]
    )


def _insert(lines: list[str], choose: random.Random) -> None:
    lines.insert(
        choose.randrange(len(lines)), choose.choice(["[x]", "[model]", "x = 1", "[[personal]]", "a.b = 2", "="])
    )


FAMILIES = {"value": one_value, "config": whole_text}
