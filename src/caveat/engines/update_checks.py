"""Checks of updates before the server aggregates them.

A silo may be broken, out of date, or malicious.
"""

from collections import Counter
from collections.abc import Mapping

import torch
from torch import Tensor

from ..core import Payload, Round, SiloId, Update
from ..core.aggregation import all_finite
from ..core.silo import SiloInfo

LARGEST = 1e6
"""Maximum ratio of a tensor's largest entry to the median silo's (or to what was sent, or to 1)."""

DTYPES = (
    torch.float64, torch.float32, torch.float16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8,
    torch.bool,
)  # fmt: skip
"""Types for which all operations on updates are defined."""
VARIANCES = frozenset({"exp_avg_sq", "running_var"})
"""Parts of names of tensors that are means of squares, whose root is taken."""

Form = tuple[tuple[str, str, str, str], ...]
"""Group, name, shape and type of every tensor, in order."""


def left_out(
    updates: Mapping[SiloId, Update], sent: Payload, most: Mapping[SiloId, int], variances: frozenset[str] = VARIANCES
) -> dict[SiloId, str]:
    """Return the silos whose updates cannot be aggregated, with reasons.

    Each update is first checked alone: at most `most` examples, shapes and types as sent, finite numbers, and no
    negative ones in tensors with one of `variances` in their name. Then updates are compared: all must have the tensors
    that most silos have, with entries of similar magnitude.
    """
    reasons = {silo: why for silo, update in updates.items() if (why := by_itself(update, sent, most[silo], variances))}
    rest = {silo: update for silo, update in updates.items() if silo not in reasons}
    reasons |= unlike_most({silo: form(update.payload) for silo, update in rest.items()}, form(sent))
    rest = {silo: update for silo, update in rest.items() if silo not in reasons}
    return reasons | _out_of_proportion(rest, sent)


def form(payload: Payload) -> Form:
    return tuple(
        (group, name, str(tuple(tensor.shape)), str(tensor.dtype))
        for group, tensors in sorted(payload.items())
        for name, tensor in sorted(tensors.items())
    )


def by_itself(update: Update, sent: Payload, most: int, variances: frozenset[str] = VARIANCES) -> str:
    """Return what is wrong with an update alone; "" if nothing is."""
    if not 0 < update.examples <= most:
        return f"has weight {update.examples}, expected 1 to {most}"
    for group, tensors in update.payload.items():
        for name, tensor in tensors.items():
            known = sent.get(group, {}).get(name)
            if known is not None and (tensor.shape, tensor.dtype) != (known.shape, known.dtype):
                found, wanted = (f"{tuple(each.shape)} and type {each.dtype}" for each in (tensor, known))
                return f"{group}/{name} has shape {found}, expected {wanted} as sent"
            if tensor.dtype not in DTYPES:
                return f"{group}/{name} has unsupported type {tensor.dtype}"
            if not all_finite(tensor):
                return f"{group}/{name} is not finite"
            if variances.intersection(name.split(".")) and bool((tensor < 0).any()):
                return f"{group}/{name} is a mean of squares but has a negative entry"
    return ""


def unlike_most(forms: Mapping[SiloId, Form], sent: Form = ()) -> dict[SiloId, str]:
    """Return the silos whose tensors differ from the tensors of most silos, with reasons. If several forms are equally
    common, the one most similar to `sent` is expected."""
    if len(set(forms.values())) < 2:
        return {}
    counts = Counter(forms.values())
    largest = max(counts.values())
    usual = min((each for each, n in counts.items() if n == largest), key=lambda each: len({*each} ^ {*sent}))
    return {silo: _difference(each, usual) for silo, each in forms.items() if each != usual}


def _difference(each: Form, usual: Form) -> str:
    found, expected = ({(group, name): rest for group, name, *rest in of} for of in (each, usual))
    for path in sorted(found.keys() | expected.keys()):
        if found.get(path) != expected.get(path):
            there = " ".join(found.get(path, ["missing"]))
            if path not in expected:
                return f"{'/'.join(path)} is missing in the updates of most silos"
            return f"{'/'.join(path)} is {there}, expected {' '.join(expected[path])} as in the updates of most silos"
    return "has other tensors than most silos"


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
                    reasons.setdefault(
                        silo, f"{group}/{name} has an entry of {size:.3g}, but the median silo's is {median:.3g}"
                    )
    return reasons


def _largest(tensor: Tensor) -> float:
    return float(tensor.double().abs().max()) if tensor.numel() else 0.0


def miscounted(step: Round, updates: Mapping[SiloId, Update], infos: Mapping[SiloId, SiloInfo]) -> dict[SiloId, str]:
    """Return the silos whose updates have a number of examples that differs from what they reported, with reasons.

    That number is the weight in means, so a silo could otherwise choose any weight up to the size of its largest split.
    In rounds that are neither linear nor sums, only the number of training examples limits it.
    """
    reasons: dict[SiloId, str] = {}
    for silo, update in updates.items():
        examples = infos[silo].examples
        if step.linear == "silos":
            expected, least = 1, 1
        elif step.sums is not None:
            expected = least = examples[step.sums.split]
        else:
            expected = examples["train"]
            least = expected if step.linear == "examples" else 1
        if not least <= update.examples <= expected:
            reasons[silo] = (
                f"has weight {update.examples:,}, expected {expected:,}, the number of examples that the silo reported"
            )
    return reasons


def impossible_sums(
    step: Round, updates: Mapping[SiloId, Update], infos: Mapping[SiloId, SiloInfo]
) -> dict[SiloId, str]:
    """Return the silos whose updates cannot be sums over their inputs, with reasons."""
    reasons: dict[SiloId, str] = {}
    if (sums := step.sums) is None:
        return reasons
    for silo, update in updates.items():
        try:
            why = sums.wrong(update.payload, infos[silo])
        except Exception as error:  # invalid numbers may raise anything
            why = f"invalid sums: {type(error).__name__}: {error}"
        if why:
            reasons[silo] = why
    return reasons
