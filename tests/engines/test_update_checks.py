"""Which updates are counted, and what is said of those that are not; no engine is needed to tell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from caveat.core import Data, DataError, Decision, Payload, Prediction, Round, SumOver, Update
from caveat.core.silo import SiloInfo
from caveat.engines import measurement_checks
from caveat.engines.flower_messages import pack, unpack
from caveat.engines.measurement_checks import left_out_measuring
from caveat.engines.update_checks import left_out, miscounted
from caveat.methods import FedAvg
from caveat.metrics import class_sums, skill
from caveat.metrics.skill import ROWS
from caveat.wrappers.evaluation import measured

SENT: Payload = {"model": {"w": torch.ones(2), "n": torch.tensor(3)}}


def honest(scale: float = 1.0) -> Payload:
    return {"model": {"w": torch.full((2,), scale), "n": torch.tensor(4)}, "more": {"v": torch.ones(3)}}


def model(**tensors: torch.Tensor) -> Payload:
    return honest() | {"model": honest()["model"] | tensors}


HOSTILE: dict[str, tuple[Payload, str]] = {
    "nan": (model(w=torch.tensor([1.0, torch.nan])), "model/w is not finite"),
    "wrong shape": (
        model(w=torch.ones(3)),
        r"model/w has shape \(3,\) and type torch.float32, expected \(2,\) and type",
    ),
    "wrong type": (model(w=torch.ones(2).double()), "torch.float64, expected .* torch.float32 as sent"),
    "another name": (honest() | {"more": {"x": torch.ones(3)}}, "more/v is missing, expected"),
    "a group more": (
        honest() | {"labels": {"y": torch.ones(9)}},
        "labels/y is missing in the updates of most silos",
    ),
    "nothing": ({}, "is missing, expected"),
    "1e30": (model(w=torch.full((2,), 1e30)), r"model/w has an entry of 1e\+30"),
    "a negative variance": (
        model(**{"bn.running_var": -torch.ones(2)}),
        "running_var is a mean of squares",
    ),
    "negative second moments": (
        honest() | {"moments": {"exp_avg_sq.w": -torch.ones(2)}},
        "moments/exp_avg_sq.w is a mean of squares",
    ),
    "complex": (honest() | {"more": {"v": torch.ones(3, dtype=torch.complex64)}}, "unsupported type torch.complex64"),
    "larger": (honest() | {"more": {"v": torch.ones(30)}}, r"more/v is \(30,\)"),
}


@pytest.mark.parametrize("what", list(HOSTILE))
@pytest.mark.parametrize("name", ["a", "z"])
def test_a_hostile_update_is_left_out_and_the_honest_ones_are_not(what: str, name: str) -> None:
    payload, said = HOSTILE[what]
    updates = {"b": Update(honest(), 5), "c": Update(honest(2.0), 5), name: Update(payload, 5)}
    found = left_out(updates, SENT, dict.fromkeys(updates, 5))
    assert set(found) == {name}
    with pytest.raises(ValueError, match=said):
        raise ValueError(found[name])


@pytest.mark.parametrize("examples", [0, -1, 6, 10**9])
def test_nobody_speaks_for_more_examples_than_there_are(examples: int) -> None:
    updates = {"a": Update(honest(), examples), "b": Update(honest(), 5)}
    assert left_out(updates, SENT, {"a": 5, "b": 5}) == {"a": f"has weight {examples}, expected 1 to 5"}


def test_honest_updates_of_different_size_are_counted() -> None:
    updates = {name: Update(honest(size), 5) for name, size in (("a", 0.01), ("b", 3.0), ("c", 900.0))}
    assert left_out(updates, SENT, dict.fromkeys(updates, 5)) == {}
    assert left_out({}, SENT, {}) == {}


def test_noise_may_make_a_variance_negative_where_there_is_noise() -> None:
    updates = {"a": Update({"model": {"running_var": -torch.ones(2)}}, 5)}
    assert set(left_out(updates, {}, {"a": 5})) == {"a"}
    assert left_out(updates, {}, {"a": 5}, frozenset({"exp_avg_sq"})) == {}


@pytest.mark.parametrize("other", [{}, {"junk": {"y": torch.ones(3)}}, {"model": {"w": torch.ones(2)}}])
@pytest.mark.parametrize("name", ["a", "z"])
def test_of_two_silos_the_one_that_sends_what_it_was_sent_counts(name: str, other: Payload) -> None:
    own: Payload = {"model": {"w": torch.ones(2), "n": torch.tensor(4)}}
    updates = {"b": Update(own, 5), name: Update(other, 5)}
    assert set(left_out(updates, SENT, dict.fromkeys(updates, 5))) == {name}


# Measurements

N, Y = 8, torch.tensor([0, 1, 2, 0, 1, 2, 0, -1])


def answer(whose: Decision, seed: int) -> Prediction:
    probs = torch.rand(N, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).softmax(1)
    zero = torch.zeros(N, dtype=torch.float64)
    uncertainty = {"total": zero + 0.5, "aleatoric": zero, "epistemic": zero + 0.5}
    return Prediction(probs, uncertainty, torch.full((N,), int(whose)))


def measurements(seed: int = 0, models: int = 2, streams: tuple[str, ...] = ("", "ood_local.")) -> Payload:
    whose = (Decision.GLOBAL, Decision.LOCAL)[:models]
    answers = {each: answer(each, seed + i) for i, each in enumerate(whose)}
    found = measured(answers[whose[-1]], answers, Y)
    payload: Payload = {f"{stream}{group}": dict(t) for stream in streams for group, t in found.items()}
    return {"method": {}, "classes": class_sums(answers[whose[-1]], Y)} | payload


def test_measurements_of_silos_with_one_model_two_and_streams_are_counted() -> None:
    payloads = {"a": measurements(1), "b": measurements(2, models=1), "c": measurements(3, streams=("",))}
    assert left_out_measuring({name: Update(p, N) for name, p in payloads.items()}, dict.fromkeys(payloads, N)) == {}


def setting(group: str, **values: float) -> Callable[[Payload], None]:
    def change(payload: Payload) -> None:
        for name, value in values.items():
            payload[group][name] = torch.full_like(payload[group][name], value)

    return change


MISMEASURED: dict[str, tuple[Callable[[Payload], object], str]] = {
    "nothing": (lambda p: p.clear(), "has nothing"),
    "no sums": (lambda p: p.pop("sums"), "has .*expected method and sums"),
    "another group": (lambda p: p.update({"junk": {}}), "has .*junk"),
    "another stream": (lambda p: p.update({"ood.sums": p["sums"]}), "stream 'ood' has sums"),
    "half a stream": (lambda p: p.pop("ood_local.choice"), "stream 'ood_local' has .*, expected choice"),
    "other numbers": (lambda p: p["sums"].update({"zzz": torch.zeros(1)}), "unexpected or missing sums: zzz"),
    "a number less": (lambda p: p["local"].pop("nll"), "unexpected or missing sums: nll"),
    "of no inputs": (setting("sums", examples=0), "sums of .0.0. inputs, expected 8"),
    "of 1e-320 inputs": (setting("sums", examples=1e-320), "sums of .* inputs"),
    "a stream of 1e300": (setting("ood_local.sums", examples=1e300), "ood_local: sums of .1e.300. inputs"),
    "negative": (setting("global", correct=-1), "correct has invalid counts, expected whole numbers from 0 to 8"),
    "halves": (setting("sums", answered=0.5), "answered has invalid counts"),
    "more than all": (setting("sums", quadrants=9), "quadrants has invalid counts"),
    "too few": (setting("sums", decisions=0), "decisions does not sum to 8"),
    "histograms": (setting("sums", **{"score.total": 1}), "score.total does not sum"),
    "bins": (setting("sums", bin_count=1), "bin_count or bin_correct does not sum to 7"),
    "negative bins": (setting("sums", class_bin_count=-1), "class_bin_count has invalid counts"),
    "confidence": (setting("sums", bin_confidence=7), "bin_confidence is not a sum of probabilities"),
    "more correct than known": (setting("sums", correct=8), "correct is larger than known"),
    "nats": (setting("sums", nll=1e300), "nll is not a sum over 8 inputs"),
    "integers": (
        lambda p: p["sums"].update({"decisions": p["sums"]["decisions"].long()}),
        "decisions has shape .3,. and type torch.int64",
    ),
    "choice": (setting("choice", right=0), "right does not sum"),
    "nan": (setting("sums", brier=torch.nan), "sums/brier is not finite"),
    "other sums of classes": (lambda p: p["classes"].pop("ranks"), "classes has confusion of 3 classes"),
    "a calibration split of several": (
        lambda p: p["classes"].update({"calibration": p["classes"]["ranks"][0]}),
        "classes has calibration, confusion, ranks of 3 classes",
    ),
    "who was taken for whom": (setting("classes", confusion=1), "confusion does not sum to 7"),
    "negative confusion": (setting("classes", confusion=-1), "confusion has invalid counts"),
    "ranks": (setting("classes", ranks=1), "ranks does not sum to 7"),
    "ranks of others": (
        lambda p: p["classes"].update({"ranks": p["classes"]["ranks"].flip(1)}),
        "ranks does not sum to 3",
    ),
    "ranks of fewer classes": (
        lambda p: p["classes"].update({"ranks": p["classes"]["ranks"][:1]}),
        r"ranks has shape .1, 2, 1024. and type torch.int32, expected .3, 2, 1024.",
    ),
    "ranks of another type": (
        lambda p: p["classes"].update({"ranks": p["classes"]["ranks"].double()}),
        "torch.float64, expected .3, 2, 1024. and torch.int32",
    ),
}


def test_sums_of_two_classes_have_those_of_calibration_splits_too() -> None:
    payloads = {name: measurements(i) for i, name in enumerate("abc")}
    for payload in payloads.values():
        y = torch.arange(N) % 2
        y[-1] = -1
        two = class_sums(replace(answer(Decision.GLOBAL, 0), probs=torch.full((N, 2), 0.5)), y)
        payload["classes"] = two | {"calibration": two["ranks"][0]}
    del payloads["c"]["classes"]["calibration"]
    payloads["b"]["classes"]["calibration"] = -payloads["b"]["classes"]["calibration"]
    found = left_out_measuring({name: Update(p, N) for name, p in payloads.items()}, dict.fromkeys(payloads, N))
    assert set(found) == {"b", "c"}
    assert "calibration has invalid counts" in found["b"]


@pytest.mark.parametrize("what", list(MISMEASURED))
def test_measurements_that_cannot_be_are_left_out(what: str) -> None:
    change, said = MISMEASURED[what]
    payloads = {name: measurements(i) for i, name in enumerate("abc")}
    change(payloads["a"])
    found = left_out_measuring({name: Update(p, N) for name, p in payloads.items()}, dict.fromkeys(payloads, N))
    assert set(found) == {"a"}
    with pytest.raises(ValueError, match=said):
        raise ValueError(found["a"])


def test_a_silo_whose_measurements_cannot_be_read_does_not_outvote_one_whose_can() -> None:
    def read(silo: str, payload: Payload) -> None:
        if "score.total" not in payload["sums"]:
            raise KeyError("score.total")

    payloads = {"a": measurements(models=1), "b": measurements(models=1)}
    for stream in ("", "ood_local."):
        del payloads["a"][f"{stream}sums"]["score.total"]
    found = left_out_measuring({name: Update(p, N) for name, p in payloads.items()}, dict.fromkeys(payloads, N), read)
    assert found == {"a": "invalid measurements: KeyError: 'score.total'"}


def silo_info(name: str, train: int, **others: int) -> SiloInfo:
    examples = {"train": train, "validation": 6, "calibration": 6, "test": 9} | others
    return SiloInfo(name, name, examples, (train,))


@pytest.mark.parametrize(
    ("step", "fair"),
    [
        (Round(dict, FedAvg.train, linear="examples", name="train"), 5),
        (Round(dict, FedAvg.train, linear="silos", name="temperature"), 1),
        (Round(dict, FedAvg.train, name="count", sums=SumOver("calibration", lambda payload, card: "")), 6),
        (Round(dict, FedAvg.train, name="score"), 5),
    ],
    ids=["examples", "silos", "sums", "others"],
)
def test_an_update_weighs_what_its_silo_said_to_have(step: Round, fair: int) -> None:
    """Up to the size of its largest split a silo could have any weight in what means and sums come to."""
    cards = {"a": silo_info("a", 5, test=10**9), "b": silo_info("b", 5)}
    told = f"expected {fair}, the number of examples that the silo reported"
    for examples in (fair + 1, 9, 10**9):
        found = miscounted(step, {"a": Update({}, examples), "b": Update({}, fair)}, cards)
        assert found == {"a": f"has weight {examples:,}, {told}"}
    assert miscounted(step, {"a": Update({}, fair)}, cards) == {}


def test_a_reply_that_names_a_group_again_is_none() -> None:
    """Each is decoded by itself: 20,000 times the same model would hold up the server for half a minute."""
    records = pack(honest())
    records.config_records["order"]["groups"] = ["model"] * 20_000
    with pytest.raises(ValueError, match="20000 groups, expected no duplicates"):
        unpack(records)


def test_how_predictable_labels_are_is_limited_by_the_inputs_of_the_ridge_classifier() -> None:
    """It is about the training split, of which a silo uses at most 500 inputs, not about the validation split."""
    assert measurement_checks.RIDGE_INPUTS == ROWS
    x, y = torch.randn(600, 3, generator=torch.Generator().manual_seed(0)), torch.arange(600) % 3
    few = Data(x[:6], y[:6])
    found = skill(Prediction.from_logits(torch.zeros(1, 6, 3)), few, Data(x, y))
    measurement_checks._check_skill(found)
    with pytest.raises(DataError, match="predictable observes more than is possible for 500 inputs"):
        measurement_checks._check_skill(found | {"predictable": 10 * found["predictable"]})
    # All pairs ranked correctly; the mean over permutations is rounded.
    perfect = torch.tensor([99.0, 49.499999999999986, 173.25], dtype=torch.float64)
    measurement_checks._check_skill(found | {"errors": perfect, "inputs": torch.tensor(20.0, dtype=torch.float64)})
