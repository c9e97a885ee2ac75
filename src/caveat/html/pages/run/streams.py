"""What came of each stream of test inputs, as numbers that the terminal and the page both show."""

from __future__ import annotations

from collections.abc import Mapping

from ....files.run_folder import RunFolder
from ....files.schema.figures import INSIDE, NOBODY, ORACLE, Stream

ABOUT = {
    INSIDE: "what the silo knows: its own test split",
    "ood_local": "what other silos have learned and this one has not, for the federation's model to answer",
    "mix": f"{INSIDE} and ood_local together",
    NOBODY: "what nobody in the federation has learned: no answer is right, only abstaining is",
}
KINDS = ("local", "global", "abstain")
"""What is decided, in the order in which it is shown."""
OWN, CHOSEN = "own", "switch"
"""The policy by which every input is answered, by the silo's own model where it has one; and what is predicted."""
_MODELS = ("local", "global", CHOSEN, ORACLE)


def streams(run: RunFolder) -> dict[str, Stream]:
    """By name; empty where there was nothing to decide: one model, asked for all inputs of the test split."""
    tested = run.summary.tested if run.summary else {}
    chances = [len(stream.models) > 1 or stream.decisions.get("abstain", 0.0) > 0 for stream in tested.values()]
    return tested if len(tested) > 1 or any(chances) else {}


def models(tested: Mapping[str, Stream]) -> list[str]:
    """The names of all models, the oracle included, in the order in which they are shown."""
    found = dict.fromkeys(name for stream in tested.values() for name in stream.models)
    if any(stream.oracle for stream in tested.values()):
        found[ORACLE] = None
    return sorted(found, key=lambda name: _MODELS.index(name) if name in _MODELS else -1)


def label(run: RunFolder, model: str) -> str:
    """What a model is called: that of a policy that chooses nothing is no switch.

    Where some silos lack a model, it says over how many of them the models are compared.
    """
    name = "answered" if model == CHOSEN and run.summary and run.summary.policy.name == OWN else model
    found = run.summary.models.get(CHOSEN if model == ORACLE else model) if run.summary else None
    few = found is not None and found.silos is not None and found.silos < len(run.silos)
    return f"{name} ({found.silos} of {len(run.silos)} silos)" if few and found else name


def accuracy(name: str, stream: Stream, model: str) -> float | None:
    """A model's mean accuracy over silos; None where no answer can be right."""
    if name == NOBODY:
        return None
    if model == ORACLE:
        return stream.oracle.accuracy if stream.oracle else None
    return stream.models[model].mean.accuracy if model in stream.models else None


def accuracy_answered(name: str, stream: Stream) -> float | None:
    """The accuracy among the answered inputs of all silos together.

    No mean over silos, whose answered inputs can be so few that it says little.
    """
    return None if name == NOBODY else stream.chosen.pooled.accuracy_answered


def abstains(tested: Mapping[str, Stream]) -> bool:
    return any(stream.decisions.get("abstain", 0.0) > 0 for stream in tested.values())


def kinds(*decisions: Mapping[str, float]) -> list[str]:
    """The kinds of decision that were made anywhere, in the order of `KINDS`."""
    return [kind for kind in KINDS if any(shares.get(kind, 0.0) > 0 for shares in decisions)]
