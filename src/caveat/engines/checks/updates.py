"""What an update has to be like to be counted: a silo may be broken, out of date, or hostile."""

from collections import Counter
from collections.abc import Mapping

import torch
from torch import Tensor

from ...core import Payload, Round, SiloId, Update
from ...core.aggregation import all_finite
from ...core.silo_info import SiloInfo

LARGEST = 1e6
"""How many times as large as the median silo's (or as what was sent, or as 1) a tensor's largest entry may be."""

DTYPES = (
    torch.float64, torch.float32, torch.float16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8,
    torch.bool,
)  # fmt: skip
"""Types of which everything that is done with an update is defined."""
VARIANCES = frozenset({"exp_avg_sq", "running_var"})
"""Parts of the names of tensors that are means of squares: a root is taken of them."""

Form = tuple[tuple[str, str, str, str], ...]
"""Group, name, shape and type of every tensor, in order."""


def left_out(
    updates: Mapping[SiloId, Update], sent: Payload, most: Mapping[SiloId, int], variances: frozenset[str] = VARIANCES
) -> dict[SiloId, str]:
    """The silos whose updates cannot be counted, and why.

    An update is judged by itself first: `most` are the examples that each silo may speak for, what was sent under the
    same name gives a tensor's shape and type, all numbers have to be finite, and those of tensors with one of
    `variances` in their name not negative. Then by the others: it has the tensors that most of them have, and none
    whose entries are out of all proportion.
    """
    reasons = {silo: why for silo, update in updates.items() if (why := by_itself(update, sent, most[silo], variances))}
    rest = {silo: update for silo, update in updates.items() if silo not in reasons}
    reasons |= unlike_most({silo: form(update.payload) for silo, update in rest.items()}, form(sent))
    rest = {silo: update for silo, update in rest.items() if silo not in reasons}
    return reasons | _out_of_proportion(rest, sent)


def form(payload: Payload) -> Form:
    """The form of a payload: its tensors without their numbers."""
    return tuple(
        (group, name, str(tuple(tensor.shape)), str(tensor.dtype))
        for group, tensors in sorted(payload.items())
        for name, tensor in sorted(tensors.items())
    )


def by_itself(update: Update, sent: Payload, most: int, variances: frozenset[str] = VARIANCES) -> str:
    """What is wrong with an update, whatever others send; empty if nothing is."""
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
            if tensor.dtype not in DTYPES:
                return f"{group}/{name} is of type {tensor.dtype}"
            if not all_finite(tensor):
                return f"{group}/{name} is not finite"
            if variances.intersection(name.split(".")) and bool((tensor < 0).any()):
                return f"{group}/{name} has a negative entry, and is a mean of squares"
    return ""


def unlike_most(forms: Mapping[SiloId, Form], sent: Form = ()) -> dict[SiloId, str]:
    """The silos whose tensors are not the ones that most silos have, and why.

    Where several forms are equally common, the one nearest to `sent` counts as that of most silos.
    """
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


def miscounted(step: Round, updates: Mapping[SiloId, Update], cards: Mapping[SiloId, SiloInfo]) -> dict[SiloId, str]:
    """The silos whose updates speak for another number of examples than they said to have, and why that counts.

    Means weigh by it, so that a silo could have any weight up to that of its largest split. Of a round that is not
    linear, and makes no sums, no more is known than that it is of training.
    """
    reasons: dict[SiloId, str] = {}
    for silo, update in updates.items():
        examples = cards[silo].examples
        if step.linear == "silos":
            expected, least = 1, 1
        elif step.sums is not None:
            expected = least = examples[step.sums.split]
        else:
            expected = examples["train"]
            least = expected if step.linear == "examples" else 1
        if not least <= update.examples <= expected:
            reasons[silo] = f"speaks for {update.examples:,} examples, expected {expected:,} by what it said to have"
    return reasons


def impossible_sums(
    step: Round, updates: Mapping[SiloId, Update], cards: Mapping[SiloId, SiloInfo]
) -> dict[SiloId, str]:
    """The silos whose updates cannot be sums over the inputs that they say to have, and why."""
    reasons: dict[SiloId, str] = {}
    if (sums := step.sums) is None:
        return reasons
    for silo, update in updates.items():
        try:
            why = sums.wrong(update.payload, cards[silo])
        except Exception as error:  # whatever numbers that make no sense make anything raise
            why = f"sums that make no sense: {type(error).__name__}: {error}"
        if why:
            reasons[silo] = why
    return reasons
