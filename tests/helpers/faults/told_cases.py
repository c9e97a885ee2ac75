"""Cases of what a user says: a silo that is to begin afresh, and a key that was edited while a run was interrupted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from . import actions
from .bits import bits
from .children import in_child
from .material import Material, fresh, material
from .outcomes import REFUSED, SAID, Outcome, compared, cost, failed, refusal

EDITS = {
    "seed": ("seed = 0", "seed = 1"),
    "rounds": ("rounds = ", "rounds = 1"),
    "training.batch_size": ("batch_size = 8", "batch_size = 6"),
    "uncertainty.mc_samples": ("mc_samples = 2", "mc_samples = 3"),
    "data.samples_per_silo": ("samples_per_silo = 24", "samples_per_silo = 25"),
    "engine.workers": ("workers = 1", "workers = 2"),
    "engine.sync_seconds": ("sync_seconds = ", "sync_seconds = 1"),
}
"""Edits of `config.toml`, by the key: it is for readers, and changes no result."""


def names(subject: str) -> Iterator[str]:
    known = material(subject)
    for stage in known.stages:
        if not (known.folder(stage) / "summary.json").exists():
            yield f"{subject}:{stage}:reset"
            for key in EDITS:
                yield f"{subject}:{stage}:edit={key}"


def carry_out(name: str) -> Outcome:
    """What a case has come to."""
    subject, stage, what = name.split(":")
    known = material(subject)
    folder = fresh(known.folder(stage))
    return _reset(known, folder) if what == "reset" else _edited(known, folder, what.removeprefix("edit="))


def _reset(known: Material, folder: Path) -> Outcome:
    """A silo that kept a state begins afresh, and the summary says so; of one without any that is refused."""
    silo = known.subject.silo
    ended = in_child(partial(actions.command, "resume", folder, "--reset", silo, "--quiet"))
    found = cost(ended, known.ran)
    if found is not None:
        return found
    if ended.status in REFUSED:
        return refusal(ended, [f"--reset {silo}"])
    reset = json.loads((folder / "summary.json").read_text()).get("reset", [])
    if [each["silo"] for each in reset] != [silo]:
        return failed("other bits", f"the summary says that these began afresh: {reset}")
    return Outcome(SAID)


def _edited(known: Material, folder: Path, key: str) -> Outcome:
    was, now = EDITS[key]
    path = folder / "config.toml"
    text = path.read_text()
    if was not in text:
        return failed("unnamed", f"{was!r} is not in config.toml")
    path.write_text(text.replace(was, now, 1))
    ended = in_child(partial(actions.resume, known.subject, folder))
    found = cost(ended, known.ran)
    if found is not None:
        return found
    if ended.status in REFUSED:
        return failed("status", f"refused, but {key} changes nothing: {ended.err}")
    return compared(known.bits, bits(folder), folder)
