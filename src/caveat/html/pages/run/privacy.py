"""The page's section of what left the silos: who sent how much, in which form, and when."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from ....files.run_folder import RunFolder, natural
from ....files.schema.ledger import Form
from ....files.sent import Sent, Total
from ...text import listed, plain, ranges, size, times
from .sections import HtmlCell, HtmlColumn, HtmlTable, table

_MOST_SILOS = 200
_MOST_FORMS = 20
_MOST_TENSORS = 400
_MOST_ROUNDS = 50
_MOST_BESIDE = 20
"""Silos side by side."""


@dataclass(frozen=True)
class SiloShare:
    """A table, and what it shows: all, or how much of it."""

    table: HtmlTable
    caption: str


@dataclass(frozen=True)
class Manifest:
    """The tensors of a form."""

    form: str
    about: str
    part: SiloShare


@dataclass(frozen=True)
class PrivacySection:
    method: str
    about: str
    silos: SiloShare
    forms: SiloShare
    manifests: Sequence[Manifest]
    rounds: SiloShare | None


def privacy(run: RunFolder) -> list[PrivacySection]:
    """Of the run and of each beside it that has a ledger."""
    runs = {run.title: run, **run.beside}
    return [_privacy(name, each.sent) for name, each in runs.items() if each.sent]


def _privacy(method: str, sent: Sent) -> PrivacySection:
    total = sent.total
    about = f"{total.messages:,} messages of {len(sent.silos):,} silos, {size(total.bytes)} in all"
    forms = _largest(sent)
    manifests = [Manifest(form.form, holds(form), tensor_part(form)) for form in forms]
    return PrivacySection(method, about, _silos(sent), _forms(sent, forms), manifests, _rounds(sent))


def holds(form: Form) -> str:
    """The number of tensors in each of its groups."""
    groups = [f"{plain(group)} ({count})" for group, count in form.groups.items()]
    return listed(groups, 12) or "nothing but the number of examples"


def _largest(sent: Sent) -> list[Form]:
    """The forms that came to the most bytes, in the order in which they first occur."""
    bytes_of = Counter[str]()
    for (name, _), use in sent.uses.items():
        bytes_of[name] += use.bytes
    shown = {name for name, _ in bytes_of.most_common(_MOST_FORMS)}
    return [form for name, form in sent.forms.items() if name in shown]


def _silos(sent: Sent) -> SiloShare:
    names = sorted(sent.silos, key=natural)[:_MOST_SILOS]
    totals = [*(sent.silos[name] for name in names), sent.total]
    caption = f"What each silo sent, in bytes of tensors{_hidden(len(sent.silos) - len(names), 'silos')}."
    first = HtmlColumn("silo", [*(HtmlCell(plain(name)) for name in names), HtmlCell("all")], words=True)
    return SiloShare(table([first, *_total_columns(totals)]), caption)


def _total_columns(totals: Sequence[Total]) -> list[HtmlColumn]:
    rounds = [HtmlCell(f"{len(total.rounds):,}" if total.rounds else "") for total in totals]
    return [
        HtmlColumn("messages", [HtmlCell(f"{total.messages:,}") for total in totals]),
        HtmlColumn("rounds", rounds, "in which its update was counted"),
        HtmlColumn("training", [HtmlCell(size(total.training)) for total in totals], "the method's own rounds"),
        HtmlColumn("measuring", [HtmlCell(size(total.measuring)) for total in totals], "sums that figures are made of"),
        HtmlColumn("in all", [HtmlCell(size(total.bytes)) for total in totals]),
    ]


def _forms(sent: Sent, forms: Sequence[Form]) -> SiloShare:
    """A row per form and purpose, in the order in which silos first sent it."""
    shown = {form.form for form in forms}
    uses = [(name, purpose, use) for (name, purpose), use in sent.uses.items() if name in shown]
    known = [sent.forms[name] for name, _, _ in uses]
    caption = f"What messages hold, by form: tensors in groups{_hidden(len(sent.forms) - len(forms), 'forms')}."
    return SiloShare(table([
        HtmlColumn("form", [HtmlCell(plain(name)) for name, _, _ in uses], words=True),
        HtmlColumn("to", [HtmlCell(plain(purpose)) for _, purpose, _ in uses], words=True),
        HtmlColumn("groups of tensors", [HtmlCell(holds(form)) for form in known], words=True),
        HtmlColumn("messages", [HtmlCell(f"{use.messages:,}") for _, _, use in uses]),
        HtmlColumn("bytes each", [HtmlCell(f"{form.bytes:,}") for form in known]),
        HtmlColumn("in all", [HtmlCell(size(use.bytes)) for _, _, use in uses]),
    ]), caption)  # fmt: skip


def tensor_part(form: Form, most: int = _MOST_TENSORS) -> SiloShare:
    found = list(form.tensors.items())[:most]
    hidden = _hidden(len(form.tensors) - len(found), "tensors")
    caption = f"Tensors of form {plain(form.form)}, {form.bytes:,} bytes{hidden}."
    return SiloShare(table([
        HtmlColumn("tensor", [HtmlCell(plain(name)) for name, _ in found], words=True),
        HtmlColumn("shape", [HtmlCell(times(tensor.shape)) for _, tensor in found], words=True),
        HtmlColumn("type", [HtmlCell(plain(tensor.dtype)) for _, tensor in found], words=True),
        HtmlColumn("bytes", [HtmlCell(f"{tensor.bytes:,}") for _, tensor in found]),
    ]), caption)  # fmt: skip


def _rounds(sent: Sent) -> SiloShare | None:
    """A row per stretch of rounds in which all silos sent as much; None in a ledger without rounds."""
    names = sorted(sent.silos, key=natural)
    beside, stretches = names[:_MOST_BESIDE], list(_stretches(sent.rounds))
    if not stretches:
        return None
    half = _MOST_ROUNDS // 2
    shown = stretches if len(stretches) <= _MOST_ROUNDS else [*stretches[:half], *stretches[-half:]]
    hidden = [f"{len(names) - len(beside):,} silos"] if len(names) > len(beside) else []
    if len(shown) < len(stretches):
        skipped = [number for numbers, _ in stretches[half:-half] for number in numbers]
        hidden.append(f"rounds {skipped[0]} to {skipped[-1]}")
    caption = "Bytes by round and silo, figures on splits included; rounds alike are one row"
    caption += f"; not shown: {', '.join(hidden)}." if hidden else "."
    silos = [
        HtmlColumn(plain(name), [HtmlCell(size(of[name]) if name in of else "") for _, of in shown]) for name in beside
    ]
    in_all = HtmlColumn("all silos", [HtmlCell(size(sum(of.values()))) for _, of in shown], "in each of these rounds")
    return SiloShare(
        HtmlTable(
            [HtmlColumn("round", [HtmlCell(ranges(numbers, 1)) for numbers, _ in shown], words=True), in_all, *silos]
        ),
        caption,
    )


def _stretches(rounds: Mapping[int, Mapping[str, int]]) -> Iterator[tuple[list[int], Mapping[str, int]]]:
    """Consecutive rounds in which every silo sent the same number of bytes."""
    # Of consecutive numbers, the difference to their place in the list is the same.
    places = enumerate(sorted(rounds))
    for (_, bytes_of), alike in groupby(places, key=lambda each: (each[1] - each[0], rounds[each[1]])):
        yield [number for _, number in alike], bytes_of


def _hidden(count: int, what: str) -> str:
    return f"; {count:,} more {what} are not shown" if count > 0 else ""
