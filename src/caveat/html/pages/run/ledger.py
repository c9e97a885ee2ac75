"""A ledger on the terminal: every tensor that left a silo, then who sent how much."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from ....core.errors import MissingError
from ....core.text import plain, times
from ....files.ledger_totals import Sent, Total, read_sent
from ....files.manifest import check_file, manifest_of
from ....files.reading import record_of
from ....files.run_folder import natural
from ....files.schema.ledger import Form
from ....files.schema.small_files import OwnState

FILE, KEPT = "ledger.jsonl", "kept.json"
PARTS = ("delivered", "undone/*", "beside/*", "beside/*/delivered")
"""Folders of a run that have ledgers of their own."""


def ledger_tables(folder: Path) -> Iterator[Text | Table]:
    """Of the folder of a run, of what was delivered when it was finished, of what a rollback has undone, and of each
    method beside it, or of the folder that a silo keeps of one method.

    A heading and a table per form of message, with its tensors, then one with a row per silo; bytes without units.
    Raises MissingError if the folder holds no ledger, DataError if it holds a damaged one.
    """
    more = (each for pattern in PARTS for each in sorted(folder.glob(pattern)))
    found = {part: _sent(part) for part in (folder, *more)}
    ledgers = {path: sent for path, sent in found.items() if sent}
    if not ledgers:
        raise MissingError(_without(folder))
    for path, sent in ledgers.items():
        heading = f"{path.relative_to(folder)}: " if path != folder else ""
        for form in sent.forms.values():
            yield from _tensors(form, sent, heading)
        yield from _silos(sent, heading)


def _sent(folder: Path) -> Sent | None:
    """Raises DataError for a ledger that is not the one that the folder's other files know of."""
    manifest_of(folder).check(FILE)
    own = record_of(folder / KEPT, OwnState)
    if own is not None and own.ledger is not None:
        check_file(folder / FILE, own.ledger, growing=True)
    return read_sent(folder / FILE)


def _without(folder: Path) -> str:
    """A silo keeps a folder per federation and method: name those that are there."""
    parts = sorted(str(path.parent) for path in folder.glob(f"*/*/{FILE}"))
    if parts:
        return f"{folder} holds no {FILE}, but these do: {', '.join(parts)}"
    if (folder / FILE).exists():
        return f"{folder / FILE}: no message has been counted yet"
    return f"{folder} holds no {FILE}; expected the folder of a run, or STATE/FEDERATION/METHOD of a silo"


def _tensors(form: Form, sent: Sent, heading: str) -> tuple[Text, Table]:
    uses = [f"{use.messages:,} to {plain(purpose)}" for (name, purpose), use in sent.uses.items() if name == form.form]
    title = f"{heading}form {plain(form.form)}, {form.bytes:,} bytes: {', '.join(uses) or 'no message'}"
    rows = [(plain(name), times(t.shape), plain(t.dtype), f"{t.bytes:,}") for name, t in form.tensors.items()]
    return _headed(title, ("tensor", "shape", "type", "bytes"), 3, rows)


def _silos(sent: Sent, heading: str) -> tuple[Text, Table]:
    title = f"{heading}what left {'the silo' if len(sent.silos) == 1 else f'{len(sent.silos):,} silos'}, in bytes"
    rows = [(plain(name), *_figures(sent.silos[name], sent)) for name in sorted(sent.silos, key=natural)]
    if len(rows) > 1:
        rows.append(("all", *_figures(sent.total, sent)))
    rounds = ("rounds",) if sent.rounds else ()
    return _headed(title, ("silo", "messages", *rounds, "training", "measuring"), 1, rows)


def _figures(total: Total, sent: Sent) -> list[str]:
    rounds = [len(total.rounds)] if sent.rounds else []
    return [f"{number:,}" for number in (total.messages, *rounds, total.training, total.measuring)]


def _headed(title: str, headers: Sequence[str], words: int, rows: Sequence[Sequence[str]]) -> tuple[Text, Table]:
    """The first `words` columns stand left. The heading is none of the table, which would fold it to its own width."""
    made = Table(box=SIMPLE_HEAD, show_edge=False, padding=0)
    for i, header in enumerate(headers):
        made.add_column(Text(header), justify="left" if i < words else "right", overflow="fold", no_wrap=i > 0)
    for row in rows:
        made.add_row(*map(Text, row))
    return Text(f"\n{title}"), made
