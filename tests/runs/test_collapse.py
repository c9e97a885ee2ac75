"""Which predictions are called collapsed, and how rarely chance does it."""

from __future__ import annotations

import re

import torch

from caveat.core import Data, Prediction, Tensors
from caveat.files.schema import WarningRecord
from caveat.html.run.advice import shortfall
from caveat.metrics import skill
from caveat.runs.collapse import collapse

CLASSES = 4


def sums(n: int, better: float, seed: int, classes: int = CLASSES, confused: bool = False, train: int = 40) -> Tensors:
    """Of predictions whose logit of the true class is `better` standard deviations higher; `confused` ones are surer if
    wrong. Inputs do not tell the labels of the `train` training inputs.
    """
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(classes, (n,), generator=generator)
    logits = torch.randn(n, classes, generator=generator) + better * torch.nn.functional.one_hot(y, classes)
    if confused:
        logits = logits * (1 + 3 * (logits.argmax(1) != y)[:, None])
    x, known = torch.randn(n, 3, generator=generator), torch.randn(train, 3, generator=generator)
    labels = torch.randint(classes, (train,), generator=generator)
    return skill(Prediction.from_logits(logits[None]), Data(x, y), Data(known, labels))


def kinds(silos: dict[str, Tensors]) -> list[str]:
    return [each.kind for each in collapse(silos, 1.4, CLASSES)]


def test_predictions_without_skill_are_found_and_good_ones_are_not() -> None:
    """Chance makes one of two tests, each at 1 %, see skill where there is none."""
    bad = [kinds({f"s{k}": sums(40, 0.0, 10 * seed + k) for k in range(5)}) for seed in range(40)]
    assert sum(each == ["no_skill"] for each in bad) >= 37
    good = [kinds({f"s{k}": sums(40, 2.0, 10 * seed + k) for k in range(5)}) for seed in range(40)]
    assert sum(map(bool, good)) == 0


def test_a_lack_of_evidence_is_said_of_predictions_without_skill_too() -> None:
    """A posterior network whose densities learn nothing gives all inputs the same probabilities."""
    for missing, found in ((180.0, ["no_skill", "no_evidence"]), (20.0, ["no_skill"])):
        plateau = sums(200, 0.0, 3) | {"no_evidence": torch.tensor(missing, dtype=torch.float64)}
        assert kinds({"a": plateau}) == found


def test_one_silo_without_skill_is_named() -> None:
    found = list(collapse({f"s{k}": sums(60, 3.0 * (k != 2), k) for k in range(5)}, 1.0, CLASSES))
    assert [(each.kind, each.silos) for each in found] == [("no_skill", ("s2",))]
    assert found[0].text.startswith("Predictions are not shown to be better than chance at s2: accuracy ")
    assert "on 60 validation inputs" in found[0].text


def test_labels_that_nothing_predicts_are_found_with_few_validation_inputs() -> None:
    """A dozen validation inputs per silo say nothing about a model, but its training inputs about the labels."""
    found = [kinds({f"s{k}": sums(12, 0.0, 10 * seed + k, 2, train=120) for k in range(4)}) for seed in range(40)]
    assert sum("unpredictable_labels" in each or each == ["no_skill"] for each in found) >= 38
    silos = {f"s{k}": sums(12, 4.0 * (k != 2), k, 2, train=500) for k in range(4)}
    (one,) = collapse(silos, 0.7, 2)
    assert (one.kind, one.silos) == ("unpredictable_labels", ("s2",))
    assert one.text.startswith("Labels are not shown to be predictable at s2: a ridge classifier fitted to half of")


def test_labels_that_the_model_or_a_ridge_classifier_predicts_are_not_called_unpredictable() -> None:
    assert kinds({f"s{k}": sums(30, 3.0, k, 2, train=500) for k in range(4)}) == []
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(2, (500,), generator=generator)
    train = Data(y[:, None] + torch.randn(500, 1, generator=generator), y)
    guess = Prediction.from_logits(torch.randn(1, 12, 2, generator=generator))
    assert kinds({"a": skill(guess, train.part(torch.arange(12)), train)}) == []


def test_labels_that_a_ridge_classifier_ranks_moderately_are_rarely_called_unpredictable() -> None:
    """An AUROC of .75 is called unpredictable in about one of 200 runs, for the run and for any of its silos."""
    generator, called = torch.Generator().manual_seed(0), 0
    for _ in range(150):
        silos = {}
        for name in ("a", "b", "c"):
            y = torch.randint(2, (60,), generator=generator)
            train = Data(torch.randn(60, 4, generator=generator) + 0.65 * y[:, None], y)
            guess = Prediction.from_logits(torch.randn(1, 12, 2, generator=generator))
            silos[name] = skill(guess, train.part(torch.arange(12)), train)
        called += "unpredictable_labels" in kinds(silos)
    assert called <= 3


def test_predictions_that_agree_less_than_permuted_labels_have_no_skill_whatever_their_ranking() -> None:
    """The second most likely class is the label: its probability ranks well, and every prediction is wrong."""
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(CLASSES, (100,), generator=generator)
    one_hot = torch.nn.functional.one_hot
    logits = 2.0 * one_hot(y, CLASSES) + 3.0 * one_hot((y + 1) % CLASSES, CLASSES)
    x = torch.randn(100, 3, generator=generator)
    found = skill(Prediction.from_logits(logits[None]), Data(x, y), Data(x, y.roll(1)))
    assert found["ranking"][0] > found["ranking"][1]
    (first, *_) = collapse({"a": found}, 1.4, CLASSES)
    assert first.text.startswith("Predictions are worse than chance on the 100 validation inputs: accuracy 0.0 %")


def test_a_warning_of_no_skill_says_which_skill_it_leaves_open() -> None:
    """A weak model is not called as bad as chance: its kappa and AUROC are below the bounds that the text has."""
    found = [each for seed in range(40) for each in collapse({"a": sums(100, 0.2, seed, classes=2)}, 0.7, 2)]
    texts = [each.text for each in found if each.kind == "no_skill"]
    assert len(texts) >= 10
    for text in texts:
        assert text.startswith("Predictions are not shown to be better than chance on the 100 validation inputs")
        kappa, auroc = re.findall(r"at most (0\.\d+)", text)
        assert 0.11 < float(kappa) < 1 / 3  # the model has kappa .11 and AUROC .58
        assert 0.58 < float(auroc) < 0.75


def test_a_few_inputs_cause_no_warning() -> None:
    assert kinds({"a": sums(15, 0.0, 0, train=10)}) == []
    assert kinds({f"s{k}": sums(30, 2.0 * (k != 2), k, classes=2) for k in range(5)}) == []


def test_the_same_class_for_all_inputs_is_said() -> None:
    y = torch.arange(100) % CLASSES
    constant = Prediction.from_logits(torch.tensor([1.0, 0, 0, 0]).expand(1, 100, 4))
    data = Data(torch.randn(100, 3, generator=torch.Generator().manual_seed(0)), y)
    (found,) = collapse({"a": skill(constant, data, data)}, 1.386, CLASSES)
    assert found.kind == "no_skill"
    assert "the same class" in found.text
    assert "accuracy 25.0 %" in found.text


def test_the_frequent_class_for_all_inputs_is_not_worse_than_chance() -> None:
    """Permuted labels agree as often, but for rounding; a rare class makes no skill visible."""
    for n in range(40, 80):
        y = (torch.arange(n) < 6).long()
        data = Data(torch.randn(n, 3, generator=torch.Generator().manual_seed(0)), y)
        constant = Prediction.from_logits(torch.stack([torch.ones(n), torch.linspace(-1, 0, n).roll(n // 2)], 1)[None])
        assert kinds({"a": skill(constant, data, data)}) == []


def test_a_class_of_three_inputs_is_too_rare_to_show_no_skill() -> None:
    y = (torch.arange(110) < 3).long()
    data = Data(torch.randn(110, 3, generator=torch.Generator().manual_seed(0)), y)
    logits = torch.stack([torch.full((110,), 3.0), torch.linspace(-1, 1, 110)], 1)
    assert kinds({"a": skill(Prediction.from_logits(logits[None]), data, data)}) == []


def test_errors_with_less_uncertainty_are_said() -> None:
    assert kinds({f"s{k}": sums(100, 1.5, k, confused=True) for k in range(5)}) == ["misranked_errors"]


def test_a_model_far_below_its_baselines_is_said() -> None:
    """One that gets a half right, where a linear classifier gets all right, and the most frequent class nine tenths."""
    generator = torch.Generator().manual_seed(0)
    y = (torch.rand(400, generator=generator) < 0.1).long()
    data = Data(y[:, None] + 0.01 * torch.randn(400, 1, generator=generator), y)
    logits = torch.randn(1, 400, 2, generator=generator) + torch.nn.functional.one_hot(y, 2)
    found = list(collapse({"a": skill(Prediction.from_logits(logits), data, data)}, 0.7, 2))
    assert [each.kind for each in found] == ["below_majority", "below_reference"]
    assert all(not each.silos and each.text.count("most clearly at a") for each in found)  # over all silos
    for each in found:  # the page has them in its headline
        record = WarningRecord(kind=each.kind, text=each.text, against_baseline=dict(each.against_baseline))
        told = shortfall(record)
        points = (each.against_baseline["only_baseline"] - each.against_baseline["only_model"]) / 4
        assert f"is {points:.0f} points more accurate on 400 validation inputs (only it is right for " in told
        shares = f"is right for {50 + points:.1f} % of 400 validation inputs, this run for 50.0 %"
        assert shortfall(record, 0.5).endswith(shares)
