"""What is done with a run's folder: commands, and `load` in Python; and what each of them answers."""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from markupsafe import escape

import caveat
from caveat.cli.main import app
from caveat.core import CaveatError, ConfigurationError, DataError

from .bits import bits
from .children import Ended
from .subjects import Subject

Answer = Mapping[str, str]
"""What a command has come to, by parts; equal answers are the same bits."""
PAGE = "report.html"


def command(*arguments: object) -> None:
    """Carry out a command line, and exit as it does."""
    os.environ.pop("CAVEAT_DEBUG", None)
    app([str(argument) for argument in arguments], prog_name="caveat")


def run(subject: Subject, folder: Path, *sets: str) -> None:
    items = [part for item in (*subject.sets, *sets) for part in ("--set", item)]
    command("run", "digits", *items, "--out", folder, "--quiet")


def resume(subject: Subject, folder: Path) -> None:
    command("resume", folder, "--quiet")


def report(subject: Subject, folder: Path) -> None:
    command("report", folder)


def write_inputs(path: Path) -> None:
    """Images like digits, of which predictions are asked."""
    np.savez(path, x=(np.arange(6 * 64).reshape(6, 8, 8) * 7 % 17 * 15).astype(np.uint8))


def predict(subject: Subject, folder: Path) -> None:
    command("predict", folder, folder.parent / "inputs.npz", "--silo", subject.silo)


def load(subject: Subject, folder: Path) -> None:
    """Open a run in Python, and print what its models say of each silo's test inputs."""
    with python_errors():
        opened = caveat.load(folder)
        for silo in opened.silos:
            said = opened.predictor(silo.name)(silo.test.x)
            numbers = hashlib.sha256(said.probs.numpy().tobytes() + said.decision.numpy().tobytes())
            print(silo.name, numbers.hexdigest())


@contextmanager
def python_errors(*more: type[Exception]) -> Iterator[None]:
    """Errors of caveat as the command line would say them: a line, and a status by their kind."""
    try:
        yield
    except (CaveatError, *more) as error:
        for line in str(error).splitlines():
            print(f"error: {line}", file=sys.stderr)
        kinds = {ConfigurationError: 2, DataError: 3}
        raise SystemExit(next((status for kind, status in kinds.items() if isinstance(error, kind)), 4)) from None


KEY = re.compile(r"\b[a-z_]+(\.[a-z_]+)*(?= = )")
"""How a line names a key of a configuration, with its value."""


def keys_in(errors: str) -> set[str]:
    """The keys of a configuration that lines name."""
    return {found.group() for found in KEY.finditer(errors)}


ACTIONS: dict[str, Callable[[Subject, Path], None]] = {
    "predict": predict, "load": load, "report": report, "resume": resume,
}  # fmt: skip


def answer(action: str, ended: Ended, folder: Path) -> Answer:
    """What a command that ended well has answered."""
    if action == "resume":
        return {**bits(folder), **page(folder)}
    return page(folder) if action == "report" else {"output": ended.out}


def page(folder: Path) -> Answer:
    """The report, without the configuration's text; of a run that has been measured anew its times are others."""
    config = folder / "config.toml"
    text = str(escape(config.read_text(errors="replace"))) if config.is_file() else "\0"
    shown = (folder / PAGE).read_text().replace(text, "")
    return {PAGE: hashlib.sha256(shown.encode()).hexdigest()}


def unfinished(folder: Path) -> bool:
    """Whether a run has no summary, and its page says so."""
    return not (folder / "summary.json").exists() and 'class="state unfinished"' in (folder / PAGE).read_text()


def without_beside(folder: Path) -> bool:
    """Whether a method that was to run beside a run is not there at all, and the page names it."""
    named = "</strong>: this comparison was configured" in (folder / PAGE).read_text()
    return named and not list((folder / "baselines").glob("*/summary.json"))
