"""Methods that predict with several models are named beside the accuracy of each alone."""

from __future__ import annotations

from caveat.files.schema import Summary
from caveat.html.comparison.models_alone import models_alone


def summary(policy: str, **accuracy: float | None) -> Summary:
    models = {name: {"mean": {} if value is None else {"accuracy": value}} for name, value in accuracy.items()}
    content = {"schema": 1, "method": "ditto", "rounds_run": 1, "complete": True, "silos": []}
    return Summary.model_validate({**content, "policy": {"name": policy}, "models": models})


def test_the_accuracy_of_each_model_is_the_mean_over_runs() -> None:
    runs = [summary("blend", switch=0.9, **{"local": low, "global": 0.8}) for low in (0.6, 0.8)]
    alone = [summary("always", **{"global": 0.8})]
    found = models_alone({("", "ditto"): runs, ("", "fedavg"): alone, ("other", "apfl"): runs}, "")
    told = "ditto uses its local and global models (policy blend); alone, these are right for 70.0 % and 80.0 %."
    assert found == {"ditto": told}


def test_a_method_that_answers_with_one_of_its_models_is_not_named() -> None:
    runs = [summary("always", **{"local": 0.6, "global": 0.8})]
    assert models_alone({("", "ditto"): runs}, "") == {}


def test_models_without_accuracy_are_named_without_it() -> None:
    runs = [summary("blend", **{"local": None, "global": None})]
    assert models_alone({("", "ditto"): runs}, "") == {
        "ditto": "ditto uses its local and global models (policy blend)."
    }
