"""What an update has to be like to be counted: a silo may be broken, out of date, or hostile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from torch import Tensor

from ..core import Payload, SiloId, Update

LARGEST = 1e6
"""How many times as large as the median silo's (or as what was sent, or as 1) a tensor's largest entry may be."""

Form = tuple[tuple[str, str, str, str], ...]
"""Group, name, shape and type of every tensor, in order."""


def left_out(updates: Mapping[SiloId, Update], sent: Payload, most: Mapping[SiloId, int]) -> dict[SiloId, str]:
    """The silos whose updates cannot be counted, and why.

    An update is judged by itself first: `most` are the examples that each silo may speak for, what was sent under the
    same name gives a tensor's shape and type, and all numbers have to be finite. Then by the others: it has the
    tensors that most of them have, and none whose entries are out of all proportion.
    """
    reasons = {silo: why for silo, update in updates.items() if (why := _by_itself(update, sent, most[silo]))}
    rest = {silo: update for silo, update in updates.items() if silo not in reasons}
    reasons |= _unlike_most({silo: form(update.payload) for silo, update in rest.items()})
    rest = {silo: update for silo, update in rest.items() if silo not in reasons}
    return reasons | _out_of_proportion(rest, sent)


def left_out_measuring(
    updates: Mapping[SiloId, Update], sent: Payload, most: Mapping[SiloId, int]
) -> dict[SiloId, str]:
    """The same of measurements: sums that differ in size between silos by right, for what only some of them have.

    Every silo measures the same on its own split, so that these groups have one form; groups of streams,
    "ood_local.sums" for instance, are of the form of the group that they are named after, and a method's own numbers
    ("method") have the same names everywhere.
    """
    reasons = {silo: why for silo, update in updates.items() if (why := _by_itself(update, {}, most[silo]))}
    rest = {silo: update.payload for silo, update in updates.items() if silo not in reasons}
    own = {silo: {group: t for group, t in each.items() if "." not in group and group != "method"}
           for silo, each in rest.items()}  # fmt: skip
    reasons |= _unlike_most({silo: form(payload) for silo, payload in own.items()})
    reasons |= _unlike_most({
        silo: tuple(("method", name, "", str(t.dtype)) for name, t in sorted(each.get("method", {}).items()))
        for silo, each in rest.items() if silo not in reasons
    })  # fmt: skip
    for silo, each in rest.items():
        for group in (group for group in each if "." in group and silo not in reasons):
            base = own[silo].get(group.rpartition(".")[2], {})
            if base.keys() - each[group].keys() or any(each[group][n].shape != t.shape for n, t in base.items()):
                reasons[silo] = f"{group} is not measured as {group.rpartition('.')[2]} is"
    return reasons


def form(payload: Payload) -> Form:
    return tuple(
        (group, name, str(tuple(tensor.shape)), str(tensor.dtype))
        for group, tensors in sorted(payload.items())
        for name, tensor in sorted(tensors.items())
    )


def _by_itself(update: Update, sent: Payload, most: int) -> str:
    if not 0 < update.examples <= most:
        return f"speaks for {update.examples} examples, expected 1 to {most}"
    for group, tensors in update.payload.items():
        for name, tensor in tensors.items():
            known = sent.get(group, {}).get(name)
            if known is not None and (tensor.shape, tensor.dtype) != (known.shape, known.dtype):
                return (
                    f"{group}/{name} is {tuple(tensor.shape)} {tensor.dtype}, expected {tuple(known.shape)} "
                    f"{known.dtype} as sent"
                )
            if not bool(tensor.isfinite().all()):
                return f"{group}/{name} is not finite"
    return ""


def _unlike_most(forms: Mapping[SiloId, Form]) -> dict[SiloId, str]:
    """Those whose tensors are not the ones that most silos have; of equally many, the first silo's count."""
    if len(set(forms.values())) < 2:
        return {}
    usual, _ = Counter(forms.values()).most_common(1)[0]
    return {silo: _difference(each, usual) for silo, each in forms.items() if each != usual}


def _difference(each: Form, usual: Form) -> str:
    found, expected = ({(group, name): rest for group, name, *rest in of} for of in (each, usual))
    for path in sorted(found.keys() | expected.keys()):
        if found.get(path) != expected.get(path):
            said = " ".join(found.get(path, ["missing"]))
            return f"{'/'.join(path)} is {said}, of most silos {' '.join(expected.get(path, ['missing']))}"
    return "other tensors than most silos"


def _out_of_proportion(updates: Mapping[SiloId, Update], sent: Payload) -> dict[SiloId, str]:
    reasons: dict[SiloId, str] = {}
    first = next(iter(updates.values()), None)
    for group, tensors in first.payload.items() if first else ():
        for name in tensors:
            sizes = {silo: _largest(update.payload[group][name]) for silo, update in updates.items()}
            median = sorted(sizes.values())[(len(sizes) - 1) // 2]
            known = sent.get(group, {}).get(name)
            usual = max(1.0, median if known is None else min(median, LARGEST * max(1.0, _largest(known))))
            for silo, size in sizes.items():
                if size > LARGEST * usual:
                    reasons.setdefault(silo, f"{group}/{name} has an entry of {size:.3g}, of most silos {median:.3g}")
    return reasons


def _largest(tensor: Tensor) -> float:
    return float(tensor.double().abs().max()) if tensor.numel() else 0.0
