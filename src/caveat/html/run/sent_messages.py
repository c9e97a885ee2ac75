"""Messages of silos: metadata before the first round, messages by silo and form, and privacy."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from ...core.text import count, listed, plain, size, times
from ...files import RunFolder, Sent, natural
from ...files.schema import DataSchemaRecord, FederationFile, Form, PrivacyRecord, SecureRecord
from ..templates import Table, column, table, words

_MOST_NAMES = 12
"""Maximum number of named labels or columns."""


def metadata_sent(greeting: FederationFile | None) -> str:
    """Return a sentence on what silos sent before the first round; empty if this is unknown."""
    if greeting is None:
        return ""
    sketches = list(greeting.sketches.values())
    if not sketches:
        return ""
    texts = [_labels(sketches), _told_columns(sketches) or "the shape of an input"]
    if greeting.silos:
        texts.append("for each split its size, samples per class and a hash")
    silos = "the silo" if len(sketches) == 1 else f"each of {len(sketches)} silos"
    return f"Before the first round, {silos} sent its name, {'; '.join(texts)}."


def _labels(sketches: Sequence[DataSchemaRecord]) -> str:
    labels = dict.fromkeys(label for sketch in sketches for label in sketch.labels)
    return f"its labels ({listed(list(map(plain, labels)), _MOST_NAMES)})"


def _told_columns(sketches: Sequence[DataSchemaRecord]) -> str:
    found: dict[str, set[str]] = {}
    for sketch in sketches:
        for each in sketch.columns:
            found.setdefault(each.name, set()).update(each.categories)
    if not found:
        return ""
    known = {name: len(categories) for name, categories in found.items() if categories}
    names = listed(list(map(plain, found)), _MOST_NAMES)
    text = f"the names of its columns ({names}), which of these have numbers or missing values"
    if known:
        counts = [f"{plain(name)}: {count} in total" for name, count in known.items()]
        text += f", and the categories in its training split ({listed(counts, _MOST_NAMES)})"
    return text


_MOST_SILOS = 200
_MOST_FORMS = 20
_MOST_TENSORS = 400


def privacy(run: RunFolder) -> list[dict[str, Any]]:
    """Return tables and texts of the messages in the run and in each baseline."""
    runs = {run.title: run, **run.baselines}
    return [_privacy(name, each.sent) for name, each in runs.items() if each.sent]


def secured(record: SecureRecord | None) -> str:
    """Return what the server saw only as a sum over silos; empty for a run without secure aggregation."""
    if record is None:
        return ""
    told = f"Secure aggregation: of evaluations and the rounds {listed(record.sums, _MOST_SILOS) or '(none)'}, "
    told += f"the server saw only sums over silos ({len(record.silos)} silos in the last sum)."
    if record.single:
        told += f" Not secured: {listed(record.single, _MOST_SILOS)}, which need each silo's own update."
    return told


def protection(record: PrivacyRecord | None) -> str:
    """Return the privacy guarantee of clipping and noise, at silo and record level; empty without clipping."""
    if record is None or record.clip_norm is None:
        return ""
    noise = " (that of the smallest sums)" if record.where == "sum" else ""
    sentence = (
        f"Training updates were clipped to a norm of {record.clip_norm:g}, with a noise multiplier of "
        f"{record.noise_multiplier:g}{noise}. At silo level, epsilon is {_epsilon(record.epsilon)} against all who "
        f"see models, and {_epsilon(record.epsilon_server)} against the server, with delta {record.delta:g}"
    )
    if record.row is not None:
        sentence += f"; at record level, it is {_epsilon(record.row.epsilon)} and {_epsilon(record.row.epsilon_server)}"
    left = f" Not covered: {listed(record.not_covered, _MOST_SILOS)}." if record.not_covered else ""
    return f"{sentence}.{left}"


def _epsilon(value: float | None) -> str:
    return "infinite" if value is None else f"{value:.3g}"


def _privacy(method: str, sent: Sent) -> dict[str, Any]:
    # The forms with the most bytes in total, in the order of first occurrence.
    bytes_of = Counter[str]()
    for (name, _), use in sent.uses.items():
        bytes_of[name] += use.bytes
    shown = {name for name, _ in bytes_of.most_common(_MOST_FORMS)}
    forms = [form for name, form in sent.forms.items() if name in shown]
    return {
        "method": method,
        "about": f"{sent.total.messages:,} messages of {len(sent.silos):,} silos, {size(sent.total.bytes)} in total",
        "silos": _silos(sent),
        "forms": _forms(sent, forms),
        "manifests": [(form.form, holds(form), tensor_table(form)) for form in forms],
    }


def holds(form: Form) -> str:
    """Return the number of tensors in each group of a form."""
    groups = [f"{plain(group)} ({count})" for group, count in form.groups.items()]
    found = listed(groups, 12) or "only the number of examples"
    return f"{found}; seen only as a sum over silos" if form.summed else found


def _silos(sent: Sent) -> Table | None:
    names = sorted(sent.silos, key=natural)[:_MOST_SILOS]
    shown = list(map(plain, names))
    totals = [*(sent.silos[name] for name in names), sent.total]
    columns = [
        words("silo", [*shown, "all"]),
        column("messages", (count(total.messages) for total in totals)),
        column("rounds", (count(len(t.rounds) or None) for t in totals), "in which the silo's update was aggregated"),
        column("training", (size(total.training) for total in totals), "the method's own rounds"),
        column("measuring", (size(total.measuring) for total in totals), "sums for metrics"),
        column("in total", (size(total.bytes) for total in totals)),
    ]
    caption = f"Bytes of the tensors that each silo sent{_hidden(len(sent.silos) - len(names), 'silos')}."
    return table(columns, caption, shown, footer=1)


def _forms(sent: Sent, forms: Sequence[Form]) -> Table | None:
    """Return a row per form and purpose, in the order of first occurrence."""
    shown = {form.form for form in forms}
    uses = [(sent.forms[name], purpose, use) for (name, purpose), use in sent.uses.items() if name in shown]
    columns = [
        words("form", (plain(form.form) for form, _, _ in uses)),
        words("to", (plain(purpose) for _, purpose, _ in uses)),
        words("groups of tensors", (holds(form) for form, _, _ in uses)),
        column("messages", (count(use.messages) for _, _, use in uses)),
        column("bytes each", (count(form.bytes) for form, _, _ in uses)),
        column("in total", (size(use.bytes) for _, _, use in uses)),
    ]
    hidden = _hidden(len(sent.forms) - len(forms), "forms")
    about = "Content of the messages. Messages of one form have tensors of the same names, shapes and types; the "
    return table(columns, f"{about}numbers of tensors in groups are in brackets{hidden}.")


def tensor_table(form: Form, most: int = _MOST_TENSORS) -> Table | None:
    """Return a row for each of the first `most` tensors."""
    found = list(form.tensors.items())[:most]
    columns = [
        words("tensor", (plain(name) for name, _ in found)),
        words("shape", (times(tensor.shape) for _, tensor in found)),
        words("type", (plain(tensor.dtype) for _, tensor in found)),
        column("bytes", (count(tensor.bytes) for _, tensor in found)),
    ]
    hidden = _hidden(len(form.tensors) - len(found), "tensors")
    return table(columns, f"Tensors of form {plain(form.form)}, {form.bytes:,} bytes{hidden}.")


def _hidden(count: int, what: str) -> str:
    return f"; {count:,} more {what} are not shown" if count > 0 else ""
