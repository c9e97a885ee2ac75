"""Checks of updates and measurements before the server aggregates them.

A silo may be broken, out of date, or malicious.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor

from ..core import DataError, Payload, Round, SiloId, Tensors, Update
from ..core.aggregation import all_finite
from ..core.silo import MOST, SiloInfo

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


STREAMS = ("", "ood_local", "ood_global")
"""The split that was measured, and inputs that a silo does not know."""
ONE, TWO = frozenset({"sums"}), frozenset({"sums", "global", "local", "choice"})
"""The groups of a stream, where one model answers and where one of two is chosen."""
CLASSES_OF_TEST = "classes"
"""A group of the test split, of models of not too many classes."""
COUNTS = {"examples": (), "known": (), "correct": (), "answered": (), "answered_correct": (), "quadrants": (2, 2),
          "decisions": (3,)}  # fmt: skip
"""The shapes of the sums that count inputs."""
SETS = frozenset({"covered", "set_sizes"})
"""The sums of predictions with sets: how many hold the label, and how many there are of each size."""
UNFAMILIAR = "unfamiliar"
"""A count of inputs that is only there where predictions have a familiarity."""
TOTALS = ("nll", "brier", "entropy", "aleatoric", "epistemic")
"""Sums of numbers that are not counts, and of which only the size is checked."""
MOST_EACH = {"nll": 709.0, "brier": 2.0}
"""What an input comes to at most, where that is known: -ln of the smallest probability that is told from 0; 1 + 1."""
BINNED = ("bin_count", "bin_confidence", "bin_correct")
"""The sums per bin; there are others of each class, such as "class_bin_count"."""
CLASSES = "class_"
SLACK = 1e-6
"""The relative error that is allowed in sums of probabilities."""


Read = Callable[[SiloId, Payload], object]
"""Reads a silo's measurements, and raises anything if they make no sense."""


def left_out_measuring(
    updates: Mapping[SiloId, Update], most: Mapping[SiloId, int], read: Read = lambda silo, payload: None
) -> dict[SiloId, str]:
    """The silos whose measurements cannot be counted, and why.

    Each by itself: the groups of `wrappers.evaluation.Evaluated`, of sums that can be sums, over as many inputs as
    the update speaks for, and they can be read. Then by the others: a group has one form at all silos that have it,
    and a method's own numbers ("method") have the same names everywhere.
    """
    reasons = {
        silo: why
        for silo, update in updates.items()
        if (why := _by_itself(update, most[silo]) or _unreadable(silo, update.payload, read))
    }
    for kind in ("method", CLASSES_OF_TEST, *sorted(TWO)):
        rest = {silo: update.payload for silo, update in updates.items() if silo not in reasons}
        reasons |= unlike_most({silo: _form(each, kind) for silo, each in rest.items() if kind in each})
    return reasons


def _unreadable(silo: SiloId, payload: Payload, read: Read) -> str:
    try:
        read(silo, payload)
    except Exception as error:  # whatever numbers that make no sense make anything raise
        return f"measurements that make no sense: {type(error).__name__}: {error}"
    return ""


def _form(payload: Payload, kind: str) -> Form:
    # A method's numbers differ in size between silos by right, for what only some of them have.
    return tuple(
        (group, name, "" if kind == "method" else shape, kept)
        for group, name, shape, kept in form({kind: payload[kind]})
    )


def _by_itself(update: Update, most: int) -> str:
    if why := by_itself(update, {}, most):
        return why
    try:
        _check(update.payload, update.examples)
    except DataError as error:
        return str(error)
    return ""


def _check(payload: Payload, examples: int) -> None:
    """Raises DataError for measurements that cannot be those of so many examples."""
    streams: dict[str, Payload] = {}
    for group, tensors in payload.items():
        stream, _, kind = group.rpartition(".")
        streams.setdefault(stream, {})[kind] = tensors
    own = streams.get("", {})
    told_apart = own.pop(CLASSES_OF_TEST, None)
    if "method" not in own or own.keys() - {"method"} not in (ONE, TWO):
        raise DataError(f"measures {_listed(own)}, expected method and {_listed(ONE)} or {_listed(TWO)}")
    del own["method"]
    if told_apart is not None:
        _check_classes(told_apart, own["sums"].get("known", torch.zeros(())), examples)
    for stream, groups in streams.items():
        if stream not in STREAMS or groups.keys() != own.keys():
            raise DataError(f"measures {_listed(groups)} of {stream!r}, expected {_listed(own)} of {STREAMS[1:]}")
        n = groups["sums"].get("examples", torch.zeros(()))
        if n.numel() != 1 or not (1 <= float(n) <= LARGEST**2 if stream else float(n) == examples):
            raise DataError(f"{stream or 'the split'}: sums of {n.flatten()[:1].tolist()} inputs, expected {examples}")
        for kind, tensors in groups.items():
            (_check_choice if kind == "choice" else _check_sums)(tensors, float(n))


def _check_choice(tensors: Tensors, n: float) -> None:
    if tensors.keys() != {"right"}:
        raise DataError(f"choice has {_listed(tensors)}, expected right")
    _check_counts("right", tensors["right"], (2, 2, 3), n)
    _check_total("right", tensors["right"], n)


def _check_classes(tensors: Tensors, known: Tensor, n: int) -> None:
    """Each input whose label is a class of the model is in one cell, and in one bin of every histogram."""
    confusion = tensors.get("confusion", torch.zeros(0))
    classes = len(confusion)
    expected = {"confusion", "ranks"} | ({"calibration"} if classes == 2 else set())
    if tensors.keys() != expected or classes < 2:
        raise DataError(f"classes has {_listed(tensors)} of {classes} classes, expected {_listed(expected)}")
    bins = tensors["ranks"].shape[-1] if tensors["ranks"].ndim else 0
    _check_counts("confusion", tensors["confusion"], (classes, classes), n)
    _check_counts("ranks", tensors["ranks"], (1 if classes == 2 else classes, 2, bins), n, torch.int32)
    _check_total("confusion", tensors["confusion"], float(known))
    for each, own in zip(tensors["ranks"], confusion.sum(1)[-len(tensors["ranks"]) :], strict=True):
        _check_total("ranks", each, float(known))
        _check_total("ranks", each[1], float(own))
    if "calibration" in tensors:
        _check_counts("calibration", tensors["calibration"], (2, bins), MOST, torch.int32)


def _check_sums(tensors: Tensors, n: float) -> None:
    scores = {name for name in tensors if name.startswith("score.")}
    expected = {*COUNTS, *TOTALS, *BINNED, *(CLASSES + name for name in BINNED)}
    expected |= SETS if SETS & tensors.keys() else set()
    if differing := (tensors.keys() - scores - {UNFAMILIAR}) ^ expected:
        raise DataError(f"sums differ in {_listed(differing)} from what was to be measured")
    if UNFAMILIAR in tensors:
        _check_counts(UNFAMILIAR, tensors[UNFAMILIAR], (), n)
    for name in (*COUNTS, *scores):
        _check_counts(name, tensors[name], COUNTS.get(name, (2, *tensors[name].shape[1:2])), n)
    for name in TOTALS:
        tensor = tensors[name]
        if (tensor.shape, tensor.dtype) != ((), torch.float64) or not (
            abs(float(tensor)) <= MOST_EACH.get(name, LARGEST) * n * (1 + 1e-9)
        ):
            raise DataError(f"{name} is no sum over {n:.0f} inputs")
    for name in ("decisions", "quadrants", *scores):
        _check_total(name, tensors[name], n)
    if SETS & tensors.keys():
        _check_counts("covered", tensors["covered"], (), float(tensors["known"]))
        _check_counts("set_sizes", tensors["set_sizes"], (tensors["set_sizes"].numel(),), n)
        _check_total("set_sizes", tensors["set_sizes"], n)
    for less, more in (("correct", "known"), ("answered_correct", "correct"), ("answered_correct", "answered")):
        if tensors[less] > tensors[more]:
            raise DataError(f"{less} is larger than {more}")
    for prefix, axes in (("", 1), (CLASSES, 2)):
        count, confidence, correct = (tensors[prefix + name] for name in BINNED)
        if count.ndim != axes:
            raise DataError(f"{prefix}bin_count has {count.ndim} axes, expected {axes}")
        _check_bins(prefix, count, confidence, correct, float(tensors["known"]))


def _check_bins(prefix: str, count: Tensor, confidence: Tensor, correct: Tensor, known: float) -> None:
    """Each input whose label is a class of the model has to be in one bin, of the top class and of every class."""
    _check_counts(f"{prefix}bin_count", count, count.shape, known)
    _check_counts(f"{prefix}bin_correct", correct, count.shape, known)
    if bool((count.sum(-1) != known).any()) or bool((correct > count).any()):
        raise DataError(f"{prefix}bin_count or {prefix}bin_correct do not add up to {known:.0f} inputs")
    if (confidence.shape, confidence.dtype) != (count.shape, torch.float64) or not bool(
        ((confidence >= 0) & (confidence <= count * (1 + SLACK))).all()
    ):
        raise DataError(f"{prefix}bin_confidence are no sums of probabilities")


def _check_counts(
    name: str, tensor: Tensor, shape: tuple[int, ...], n: float, dtype: torch.dtype = torch.float64
) -> None:
    if (tuple(tensor.shape), tensor.dtype) != (tuple(shape), dtype):
        raise DataError(f"{name} is {tuple(tensor.shape)} {tensor.dtype}, expected {tuple(shape)} {dtype}")
    if not bool(((tensor >= 0) & (tensor <= n) & (tensor == tensor.floor())).all()):
        raise DataError(f"{name} are no counts of {n:.0f} inputs")


def _check_total(name: str, tensor: Tensor, n: float) -> None:
    if float(tensor.sum()) != n:
        raise DataError(f"{name} do not add up to {n:.0f} inputs")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "nothing"
