"""Methods of a comparison that choose or mix the predictions of several models, compared with each model alone."""

from collections.abc import Mapping, Sequence
from statistics import fmean

from ...core.text import joined, percent
from ...files.schema import Summary

MODELS = ("local", "global")
"""Models of a silo that can predict alone, by their names in summary.json."""
ONE_MODEL = "always"
"""The policy that answers with one of the models, also if others are evaluated."""
Summaries = Mapping[tuple[str, str], Sequence[Summary]]
"""The summaries of the finished runs, by the names of a setting and a method."""


def models_alone(summaries: Summaries, setting: str) -> dict[str, str]:
    """Return by method how it uses several models under a setting, and the mean accuracy of each model alone, over
    runs and silos. Methods with one model are left out."""
    of = {name: runs for (place, name), runs in summaries.items() if place == setting and runs}
    return {name: told for name, runs in of.items() if (told := _told(name, runs))}


def _told(name: str, runs: Sequence[Summary]) -> str:
    policies = {run.policy.name for run in runs}
    models = [model for model in MODELS if all(model in run.models for run in runs)]
    if len(policies) != 1 or ONE_MODEL in policies or len(models) < 2:
        return ""
    alone = [[run.models[model].mean.accuracy for run in runs] for model in models]
    known = [percent(fmean(values)) for each in alone if len(values := [v for v in each if v is not None]) == len(runs)]
    text = f"{name} uses its {joined(models)} models (policy {policies.pop()})"
    return f"{text}; alone, these are right for {joined(known)}." if len(known) == len(models) else f"{text}."
