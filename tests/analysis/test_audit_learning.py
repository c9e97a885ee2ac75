"""Whether models have learnt at all, against labels dealt out at random."""

from __future__ import annotations

from itertools import permutations
from typing import get_args

import numpy as np
import pytest
import torch
from torch import Tensor

from caveat.analysis.audit.accuracy_against_chance import Accuracy, against_chance, by_chance, judged
from caveat.analysis.audit.claim_tests import CONFIDENCE
from caveat.analysis.audit.run_predictions import Observation
from caveat.files.schema import Finding, Verdict

CLASSES = 10


def said(labels: Tensor, y: Tensor, classes: int = CLASSES) -> Observation:
    """Labels predicted and true, (N,) each."""
    return Observation(torch.eye(classes, dtype=torch.float64)[labels], y, {"epistemic": torch.ones(len(y))})


def drawn(count: int, seed: int, classes: int = CLASSES) -> Tensor:
    return torch.randint(classes, (count,), generator=torch.Generator().manual_seed(seed))


def test_chance_has_the_mean_and_variance_of_all_permutations() -> None:
    labels, y = torch.tensor([0, 0, 1, 2, 1, 0]), torch.tensor([0, 1, 1, 2, 0, 0])
    shares = [float((labels[list(order)] == y).double().mean()) for order in permutations(range(6))]
    assert by_chance(said(labels, y)) == pytest.approx((4 / 6, np.mean(shares), np.var(shares)))


def test_inputs_without_a_label_are_left_out() -> None:
    labels, y = torch.tensor([0, 1, 2, 2]), torch.tensor([0, 1, -1, -1])
    assert by_chance(said(labels, y)) == by_chance(said(labels[:2], y[:2]))
    assert by_chance(said(labels, torch.full((4,), -1))) == (0, 0, 0)
    assert said(labels, y).means()["accuracy"] == 1


def test_guesses_are_at_chance_and_a_little_knowledge_is_not() -> None:
    """Of 100 seeds of guesses hardly one is three errors above chance, one-sided 0.1 %."""
    runs = [{s: said(drawn(200, 2 * i), drawn(200, 2 * i + 1)) for i, s in enumerate("abc", 3 * k)} for k in range(100)]
    found = [against_chance([run]) for run in runs]
    assert sum(not each.at_chance for each in found) <= 1
    assert np.mean([each.by_chance for each in found]) == pytest.approx(0.1, abs=0.002)
    scatter = np.std([each.mean - each.by_chance for each in found])
    assert scatter == pytest.approx(found[0].error, rel=0.25)
    y = drawn(600, 1)
    knows = torch.where(torch.arange(600) % 10 == 0, y, drawn(600, 2))
    assert not against_chance([{"a": said(knows, y)}]).at_chance


def test_one_label_for_all_is_chance_however_often_it_is_right() -> None:
    y = torch.tensor([3] * 90 + [1] * 10)
    found = against_chance([{"a": said(torch.full_like(y, 3), y)}])
    assert (found.mean, found.by_chance, found.at_chance) == (pytest.approx(0.9), pytest.approx(0.9), True)
    found = against_chance([{"a": said(y, y)}])
    assert (found.mean, found.at_chance) == (1, False)


def test_silos_of_one_class_each_do_not_tell() -> None:
    run = {str(label): said(y := torch.full((20,), label), y) for label in range(3)}
    assert not against_chance([run]).at_chance
    guessed = {"mixed": said(drawn(50, 1), drawn(50, 2))}
    assert against_chance([run | guessed]).at_chance


def test_more_seeds_do_not_make_the_same_errors_rarer() -> None:
    run = {"a": said(drawn(50, 1), drawn(50, 2))}
    assert against_chance([run] * 5).error == pytest.approx(against_chance([run]).error)


def test_without_learning_only_confidence_is_judged() -> None:
    made = [Finding(name, "", verdict, "as it was", {"limit": 1}) for name in ("seeds", CONFIDENCE)
            for verdict in get_args(Verdict)]  # fmt: skip
    nothing = Finding("seeds", "", "cannot say", "nothing to measure", {})
    learnt, not_learnt = Accuracy(0.9, 0.1, 0.01, False), Accuracy(0.1, 0.1, 0.01, True)
    assert judged(made, learnt) == tuple(made)
    assert learnt.warning is None
    found = judged([*made, nothing], not_learnt)
    assert [finding.verdict for finding in found[:4]] == ["cannot say"] * 3 + ["does not apply"]
    assert all("chance" in finding.sentence and finding.measured == {"limit": 1} for finding in found[:3])
    assert found[4:] == (*made[4:], nothing)
    assert "10.0 %" in (not_learnt.warning or "")
