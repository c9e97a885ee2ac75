"""Export of a finished run: a file that answers, and abstains, as one of its silos does."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..core import ConfigurationError, RunError, SiloId
from ..core.errors import one_of
from ..core.settings import path_of
from ..engines.placement import one_thread
from ..runs.answering import AnsweringRun
from ..runs.local import Run
from .formats import ASKED, SUFFIXES, WRITERS, Arrays, check_installed
from .model_card import card, metadata
from .predictor import RawInputs, answering, outputs
from .program import Program
from .recording import NotRecordable, program_of

PROBES = 64
"""Random inputs of which a written file is asked."""
CLOSE = 1e-4
"""How far probabilities may be from the run's."""
TIED = 0.05
"""The largest share of these inputs whose label, decision or p-value may be another: those next to a tie."""


def export_model(run: Run, silo: SiloId, format: str = "onnx", out: str | Path | None = None) -> Path:
    """Write a silo's model of a finished run to a file, with all that it takes to answer and to abstain without caveat.

    `format` is "onnx", "torch" (a program of `torch.export`) or "mlflow" (a folder). `out` is by default the name of
    the run and of the silo, here. Beside it goes a model card, `out` with ".md" in place of its suffix. What is written
    has been asked of random inputs and says the same as the run. Returns the path.

    Raises ConfigurationError for an unknown format or silo, for a place that is taken or cannot be written, for what a
    format needs and is not installed, and for a model that cannot be written down as operators; RunError if the file
    would say something else than the run.
    """
    if format not in WRITERS:
        raise ConfigurationError(f"format = {format!r}: no such format{one_of(format, list(WRITERS))}")
    if silo not in run.preparation.names:
        raise ConfigurationError(f"silo = {silo!r}: no such silo{one_of(silo, run.preparation.names)}")
    path = _place(run, silo, format, out)
    check_installed(format)
    program = _program(run.experiment, silo)
    raw, part = RawInputs(run.preparation, silo), path.with_name(f".{path.name}.part{SUFFIXES[format]}")
    try:
        WRITERS[format](program, raw, metadata(run.experiment, silo, program), part)
        _check(run.experiment, silo, raw, lambda x: ASKED[format](part, x))
        card_of(path).write_text(card(run, silo, format, path.name, program), encoding="utf-8")
        os.replace(part, path)
    except OSError as error:
        raise ConfigurationError(f"out = {str(path)!r}: {error.strerror}") from error
    finally:
        shutil.rmtree(part) if part.is_dir() else part.unlink(missing_ok=True)
    return path


def card_of(path: Path) -> Path:
    """Where the card of an exported model is."""
    return path.with_suffix(".md")


def _place(run: Run, silo: SiloId, format: str, out: str | Path | None) -> Path:
    """Where to, where nothing is yet and something can be."""
    path = path_of(out, "out") if out else Path(f"{run.folder.resolve().name}-{silo}{SUFFIXES[format]}")
    if path.suffix == ".md":
        raise ConfigurationError(f"out = {str(path)!r}: the model card has this suffix, name another")
    for each in (path, card_of(path)):
        if os.path.lexists(each):
            raise ConfigurationError(f"out = {str(path)!r}: {each} exists already; name another place")
    if not path.parent.is_dir():
        raise ConfigurationError(f"out = {str(path)!r}: there is no folder {path.parent}")
    if not os.access(path.parent, os.W_OK):
        raise ConfigurationError(f"out = {str(path)!r}: the folder {path.parent} cannot be written to")
    return path


def _program(run: AnsweringRun, silo: SiloId) -> Program:
    try:
        with one_thread():
            return program_of(answering(run, silo), RawInputs(run.preparation, silo).batch)
    except (NotRecordable, NotImplementedError) as error:
        raise NotRecordable(
            f"this model cannot be exported: {error}; models that come with caveat can, and of one's own whose dropout "
            "is within a layer those of runs with uncertainty.source = 'laplace' or 'ensemble'"
        ) from error


def _check(run: AnsweringRun, silo: SiloId, raw: RawInputs, ask: Callable[[NDArray[Any]], Arrays]) -> None:
    """Raises RunError unless the file says what the run says of random inputs."""
    x = raw.batch(PROBES)
    with torch.no_grad():
        expected = outputs(run.predictor(silo)(raw.prepared(x)))
    found = ask(x.numpy())
    for name, each in expected.items():
        theirs: NDArray[Any] = each.numpy()
        if name == "probs":
            wrong = not np.allclose(found[name], theirs, rtol=0, atol=CLOSE, equal_nan=True)
        else:
            wrong = name in ("label", "decision", "familiarity") and float((found[name] != theirs).mean()) > TIED
        if wrong or found[name].shape != theirs.shape:
            raise RunError(f"the exported model says another {name!r} than the run; nothing is written")
