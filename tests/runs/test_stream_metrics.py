"""What silos' evaluations come to, where not all of them have the same models."""

from __future__ import annotations

import pytest
import torch

from caveat.core import Decision, Payload, Prediction
from caveat.files.schema import as_json
from caveat.methods import APFL, FedAvg
from caveat.runs.run_metrics import by_model, mean_of_silos, summarize_streams
from caveat.wrappers.evaluation import measured

Y = torch.tensor([0, 1, 2, 0])


def answer(labels: list[int], whose: Decision) -> Prediction:
    probs = 0.7 * torch.nn.functional.one_hot(torch.tensor(labels), 3).double() + 0.1
    zero = torch.zeros(len(labels), dtype=torch.float64)
    uncertainty = {"total": zero + 0.5, "aleatoric": zero, "epistemic": zero + 0.5}
    return Prediction(probs, uncertainty, torch.full((len(labels),), int(whose)), log_evidence=zero + 5 * int(whose))


def both(local: list[int], federation: list[int], taken: Decision, y: torch.Tensor = Y) -> Payload:
    answers = {whose: answer(labels, whose) for whose, labels in
               ((Decision.GLOBAL, federation), (Decision.LOCAL, local))}  # fmt: skip
    return measured(answers[taken], answers, y)


def alone(labels: list[int]) -> Payload:
    only = answer(labels, Decision.GLOBAL)
    return measured(only, {Decision.GLOBAL: only}, Y)


RIGHT, HALF, WRONG = [0, 1, 2, 0], [0, 1, 0, 1], [1, 2, 0, 1]


def test_models_are_compared_over_the_silos_that_have_all_of_them() -> None:
    """Means over other silos cannot be compared: the best choice would come out below one of the models."""
    payloads = {"a": alone(HALF), "b": both(RIGHT, HALF, Decision.LOCAL), "c": both(WRONG, RIGHT, Decision.LOCAL)}
    found = summarize_streams(APFL(), payloads)["ind"]
    accuracy = {name: each.mean.accuracy for name, each in found.models.items()}
    assert accuracy == pytest.approx({"switch": (1 + 0) / 2, "global": (0.5 + 1) / 2, "local": (1 + 0) / 2})
    assert {each.silos for each in found.models.values()} == {2}
    assert found.oracle is not None
    assert found.oracle.accuracy == pytest.approx((1 + 1) / 2)
    # What is predicted is counted at all of them, in the silos' mean and where inputs are added up.
    assert mean_of_silos(APFL(), payloads).accuracy == pytest.approx((0.5 + 1 + 0) / 3)
    assert found.chosen.pooled.accuracy == pytest.approx((2 + 4 + 0) / 12)
    assert found.silos == 3
    assert found.examples == 12


def test_the_only_model_goes_by_its_own_name() -> None:
    assert list(by_model(FedAvg(), alone(HALF))) == ["global"]
    assert list(summarize_streams(FedAvg(), {"a": alone(HALF)})["ind"].models) == ["global"]
    # Before silos have models of their own.
    assert list(by_model(APFL(), alone(HALF))) == ["global"]


def test_streams_are_told_from_what_is_known_per_silo_and_pooled() -> None:
    inside = {"a": both(RIGHT, HALF, Decision.LOCAL), "b": both(RIGHT, HALF, Decision.LOCAL)}
    outside = torch.full((4,), -1)
    payloads = {
        silo: payload | {f"ood_global.{k}": v for k, v in both(RIGHT, HALF, Decision.GLOBAL, outside).items()}
        for silo, payload in inside.items()
    }
    found = summarize_streams(APFL(), payloads)
    assert set(found) == {"ind", "ood_global"}
    scores = found["ood_global"].outside["switch"]
    # Known inputs were answered with a log-evidence of 5, the others with one of 0.
    assert scores["log_evidence"].auroc == 1
    assert scores["log_evidence"].pooled.auroc == 1
    assert scores["log_evidence"].worst.auroc == 1
    assert scores["total"].auroc == pytest.approx(0.5)
    entropies = {name: each.chosen.uncertainty for name, each in found.items()}
    assert {name: sum(each["right"].count) for name, each in entropies.items()} == {"ind": 8, "ood_global": 0}
    wrong = entropies["ood_global"]["wrong"]
    (place,) = (i for i, count in enumerate(wrong.count) if count)
    assert wrong.count[place] == 8
    assert wrong.start[place] < 0.5 <= wrong.start[place] + wrong.step  # the entropy of `answer`
    histogram = found["ind"].models["local"].log_evidence
    assert histogram is not None
    # In a bin from 4.95 to 5.04, whose middle is below 5.
    assert as_json(histogram) == {"from": [4.5], "count": [8.0], "step": 0.5}
    assert found["ood_global"].quadrants == {
        "global_sure": 8, "global_unsure": 0, "local_sure": 0, "local_unsure": 0,
    }  # fmt: skip
