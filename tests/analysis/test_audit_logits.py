"""What an audit asks of the logits' variance, on runs whose uncertainties are known."""

from __future__ import annotations

import torch
from torch import Tensor

from caveat.analysis.audit.claim_tests import about_logits
from caveat.analysis.audit.run_predictions import Observation, Observed
from caveat.core import Prediction

SEEDS = (0, 1, 2)


def uniform(seed: int) -> Tensor:
    return torch.rand(200, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def run(seed: int, variance: Tensor | None) -> Observed:
    probs, y = torch.full((200, 2), 0.5, dtype=torch.float64), torch.zeros(200, dtype=torch.int64)
    parts = {"epistemic": uniform(seed), "aleatoric": uniform(10 + seed), "total": uniform(20 + seed)}
    more = {} if variance is None else {"logit_variance": variance}
    return {"a": Observation.of(Prediction(probs, parts | more, y), y)}


def test_a_variance_of_its_own_that_seeds_agree_on_holds() -> None:
    two, seeds = about_logits([run(seed, uniform(99)) for seed in SEEDS])
    assert (two.name, seeds.name) == ("aleatoric and logit_variance", "seeds, logit_variance")
    assert (two.verdict, seeds.verdict) == ("holds", "holds")
    assert two.claim == "aleatoric and the logits' variance rank inputs differently"
    assert seeds.claim == "the logits' variance depends on the data, not on the seed"
    assert "rank correlation of the logits' variance" in seeds.sentence
    assert "epistemic" not in two.sentence + seeds.sentence


def test_aleatoric_uncertainty_by_another_name_does_not_hold() -> None:
    found = about_logits([run(seed, uniform(10 + seed)) for seed in SEEDS])
    assert [finding.verdict for finding in found] == ["does not hold", "does not hold"]


def test_without_such_a_variance_nothing_is_asked() -> None:
    assert about_logits([run(seed, None) for seed in SEEDS]) == ()
