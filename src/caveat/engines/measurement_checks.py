"""Checks of measurements before the server adds them: their groups, and sums that are possible for their inputs."""

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor

from ..core import DataError, Payload, SiloId, Tensors, Update
from ..core.silo import MOST
from .update_checks import LARGEST, Form, by_itself, form, unlike_most

STREAMS = ("", "ood_local", "ood_global")
"""The evaluated split, and the streams of out-of-distribution inputs."""
ONE, TWO = frozenset({"sums"}), frozenset({"sums", "global", "local", "choice"})
"""The groups of a stream with one model, and with two models; for a quantity, there is no group "choice"."""
CLASSES_OF_TEST, SUBGROUPS = "classes", "subgroups"
"""Groups of the test split: for models with few enough classes, and for data with subgroups of inputs."""
SKILL, COMPARISONS = "skill", (
    "agreement", "ranking", "predictable", "errors", "majority", "reference",
)  # fmt: skip
"""The group of the test split with sums over the validation split, and its triples: observed, expected, variance."""
RIDGE_INPUTS = 500
"""Largest number of inputs of the triple "predictable", which is about the training split."""
SKILL_COUNTS = {"inputs": 0, "no_evidence": 0, "in_sets": 1, "calibration": 1}
"""The numbers of axes of the counts in this group; all counts but the first are optional."""
COUNTS = {"examples": (), "known": (), "correct": (), "answered": (), "answered_correct": (), "quadrants": (2, 2),
          "decisions": (3,)}  # fmt: skip
"""The shapes of sums that count inputs."""
SETS = frozenset({"covered", "set_sizes"})
"""The sums of prediction sets: how many contain the label, and how many have each size."""
ALARMS = frozenset({"unfamiliar", "novel", "unsure"})
"""Counts of inputs with an alarm, present if predictions have p-values."""
TOTALS = ("nll", "brier", "entropy", "aleatoric", "epistemic")
"""Sums that are not counts; only their magnitude is checked."""
MOST_EACH = {"nll": 709.0, "brier": 2.0}
"""Maximum per input, if known: for "nll", -ln of the smallest positive probability; for "brier", 1 + 1."""
BINNED = ("bin_count", "bin_confidence", "bin_correct")
"""The sums per bin; those per class have a prefix, such as "class_bin_count"."""
CLASSES = "class_"
SLACK = 1e-6
"""Allowed relative error in sums of probabilities."""


Read = Callable[[SiloId, Payload], object]
"""Reads a silo's measurements; raises any error if they are invalid."""


def left_out_measuring(
    updates: Mapping[SiloId, Update], most: Mapping[SiloId, int], read: Read = lambda silo, payload: None
) -> dict[SiloId, str]:
    """Return the silos whose measurements cannot be used, with reasons.

    Measurements must have the groups of `wrappers.evaluation.Evaluated`, contain sums that are possible for the
    update's number of inputs, and be readable by `read`. Then silos are compared: a group has the same form at all
    silos that have it, and a method's own numbers ("method") have the same names everywhere.
    """
    reasons = {
        silo: why
        for silo, update in updates.items()
        if (why := _by_itself(update, most[silo]) or _unreadable(silo, update.payload, read))
    }
    for kind in ("method", CLASSES_OF_TEST, SUBGROUPS, SKILL, *sorted(TWO)):
        rest = {silo: update.payload for silo, update in updates.items() if silo not in reasons}
        reasons |= unlike_most({silo: _form(each, kind) for silo, each in rest.items() if kind in each})
    return reasons


def _unreadable(silo: SiloId, payload: Payload, read: Read) -> str:
    try:
        read(silo, payload)
    except Exception as error:  # invalid numbers may raise anything
        return f"invalid measurements: {type(error).__name__}: {error}"
    return ""


def _form(payload: Payload, kind: str) -> Form:
    # A method's numbers may differ in size between silos.
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
    """Raise DataError for measurements that are impossible for this number of examples."""
    streams: dict[str, Payload] = {}
    for group, tensors in payload.items():
        stream, _, kind = group.rpartition(".")
        streams.setdefault(stream, {})[kind] = tensors
    own = streams.get("", {})
    classes, subgroups, skill = (own.pop(name, None) for name in (CLASSES_OF_TEST, SUBGROUPS, SKILL))
    if "method" not in own or own.keys() - {"method"} not in (ONE, TWO, TWO - {"choice"}):
        raise DataError(f"has {_listed(own)}, expected method and {_listed(ONE)} or {_listed(TWO)}")
    del own["method"]
    if classes is not None:
        _check_classes(classes, own["sums"].get("known", torch.zeros(())), examples)
    if subgroups is not None:
        counts = subgroups.get("examples", torch.zeros(()))
        if counts.ndim != 1 or not len(counts) or float(counts.sum()) > examples:
            raise DataError(f"subgroups have {counts.tolist()} inputs, expected at most {examples} in total")
        for number, count in enumerate(counts.tolist()):
            _check_sums({name: tensor[number] for name, tensor in subgroups.items()}, count)
    if skill is not None:
        _check_skill(skill)
    for stream, groups in streams.items():
        if stream not in STREAMS or groups.keys() != own.keys():
            raise DataError(
                f"stream {stream!r} has {_listed(groups)}, expected {_listed(own)} of stream "
                f"{' or '.join(map(repr, STREAMS[1:]))}"
            )
        n = groups["sums"].get("examples", torch.zeros(()))
        if n.numel() != 1 or not (1 <= float(n) <= LARGEST**2 if stream else float(n) == examples):
            expected = f"from 1 to {LARGEST**2:g}" if stream else f"{examples}"
            raise DataError(f"{stream or 'the split'}: sums of {n.flatten()[:1].tolist()} inputs, expected {expected}")
        for kind, tensors in groups.items():
            (_check_choice if kind == "choice" else _check_sums)(tensors, float(n))


def _check_choice(tensors: Tensors, n: float) -> None:
    if tensors.keys() != {"right"}:
        raise DataError(f"choice has {_listed(tensors)}, expected right")
    _check_counts("right", tensors["right"], (2, 2, 3), n)
    _check_total("right", tensors["right"], n)


def _check_classes(tensors: Tensors, known: Tensor, n: int) -> None:
    """Check that each input whose label is a class of the model is counted in one cell of the confusion matrix, and in
    one bin of each histogram in `ranks`."""
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


def _check_skill(tensors: Tensors) -> None:
    """Check that no comparison observes more than possible."""
    counts = tensors.keys() - {*COMPARISONS}
    if not {*COMPARISONS} <= tensors.keys() or "inputs" not in counts or counts - {*SKILL_COUNTS}:
        raise DataError(f"skill has {_listed(tensors)}, expected {_listed((*COMPARISONS, *SKILL_COUNTS))}")
    n = float(tensors["inputs"].flatten()[:1].sum())
    for name, axes in SKILL_COUNTS.items():
        if name in tensors:
            shape = tuple(tensors[name].shape) if tensors[name].ndim == axes else (-1,)
            _check_counts(name, tensors[name], shape, MOST if name in ("inputs", "calibration") else n)
    for name in COMPARISONS:
        triple = tensors[name]
        if (tuple(triple.shape), triple.dtype) != ((3,), torch.float64) or bool((triple < 0).any()):
            raise DataError(f"{name} must contain three numbers: observed, expected and variance")
        observed, expected, _ = triple.tolist()
        inputs = RIDGE_INPUTS if name == "predictable" else n
        most = n if name == "agreement" else 2 * expected + 1e-6 * (1 + expected)  # with room for rounding
        if observed > most or expected > inputs * max(inputs, 1):
            raise DataError(f"{name} observes more than is possible for {inputs:.0f} inputs")


def _check_sums(tensors: Tensors, n: float) -> None:
    if "crps" in tensors:
        _check_quantity(tensors, n)
        return
    scores = {name for name in tensors if name.startswith("score.")}
    expected = {*COUNTS, *TOTALS, *BINNED, *(CLASSES + name for name in BINNED)}
    expected |= SETS if SETS & tensors.keys() else set()
    expected |= ALARMS if ALARMS & tensors.keys() else set()
    if differing := (tensors.keys() - scores) ^ expected:
        raise DataError(f"unexpected or missing sums: {_listed(differing)}")
    for name in ALARMS & tensors.keys():
        _check_counts(name, tensors[name], (), n)
    for name in (*COUNTS, *scores):
        _check_counts(name, tensors[name], COUNTS.get(name, (2, *tensors[name].shape[1:2])), n)
    for name in TOTALS:
        tensor = tensors[name]
        if (tensor.shape, tensor.dtype) != ((), torch.float64) or not (
            abs(float(tensor)) <= MOST_EACH.get(name, LARGEST) * n * (1 + 1e-9)
        ):
            raise DataError(f"{name} is not a sum over {n:.0f} inputs")
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


def _check_quantity(tensors: Tensors, n: float) -> None:
    """Check sums about a quantity: counts of inputs, and otherwise finite sums; silos are compared by `unlike_most`."""
    counted = {
        *COUNTS,
        *ALARMS,
        "covered",
        "bounded",
        "events",
        *(name for name in tensors if name.startswith("score.")),
    }
    for name, tensor in tensors.items():
        if name in counted:
            _check_counts(name, tensor, COUNTS.get(name, tuple(tensor.shape)), n)
        elif name == "pit":  # a censored time is in several bins
            if tensor.dtype != torch.float64 or bool((tensor < 0).any()) or abs(float(tensor.sum()) - n) > 1e-6 * n:
                raise DataError(f"{name} does not sum to {n:.0f} inputs")
        elif (tensor.shape, tensor.dtype) != ((), torch.float64) or not tensor.isfinite():
            raise DataError(f"{name} is not a sum over {n:.0f} inputs")
        if name in ("decisions", "quadrants") or name.startswith("score."):
            _check_total(name, tensor, n)


def _check_bins(prefix: str, count: Tensor, confidence: Tensor, correct: Tensor, known: float) -> None:
    """Check that each input whose label is a class of the model is counted in one bin, and in sums by class in one bin
    of every class."""
    _check_counts(f"{prefix}bin_count", count, count.shape, known)
    _check_counts(f"{prefix}bin_correct", correct, count.shape, known)
    if bool((count.sum(-1) != known).any()) or bool((correct > count).any()):
        raise DataError(f"{prefix}bin_count or {prefix}bin_correct does not sum to {known:.0f} inputs")
    if (confidence.shape, confidence.dtype) != (count.shape, torch.float64) or not bool(
        ((confidence >= 0) & (confidence <= count * (1 + SLACK))).all()
    ):
        raise DataError(f"{prefix}bin_confidence is not a sum of probabilities")


def _check_counts(
    name: str, tensor: Tensor, shape: tuple[int, ...], n: float, dtype: torch.dtype = torch.float64
) -> None:
    if (tuple(tensor.shape), tensor.dtype) != (tuple(shape), dtype):
        found, wanted = f"{tuple(tensor.shape)} and type {tensor.dtype}", f"{tuple(shape)} and {dtype}"
        raise DataError(f"{name} has shape {found}, expected {wanted}")
    if not bool(((tensor >= 0) & (tensor <= n) & (tensor == tensor.floor())).all()):
        raise DataError(f"{name} has invalid counts, expected whole numbers from 0 to {n:.0f}")


def _check_total(name: str, tensor: Tensor, n: float) -> None:
    if float(tensor.sum()) != n:
        raise DataError(f"{name} does not sum to {n:.0f} inputs")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "nothing"
