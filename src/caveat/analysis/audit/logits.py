"""Findings about the variance of logits, where predictions have one: the second measure of a model's lack of data."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ...files.schema.audit import Finding
from .findings import seeds_agree, two_things
from .observations import LOGITS, Observed, has

EPISTEMIC, CALLED = "epistemic uncertainty", "the logits' variance"


def about_logits(runs: Sequence[Observed]) -> tuple[Finding, ...]:
    """What is asked of epistemic uncertainty, asked of the logits' variance: a run per seed. Empty where there is none.

    Whether it orders inputs otherwise than aleatoric uncertainty does, and whether another seed orders them alike.
    """
    if not has(runs, LOGITS):
        return ()
    in_its_place = [
        {
            silo: dataclasses.replace(seen, uncertainty={**seen.uncertainty, "epistemic": seen.uncertainty[LOGITS]})
            for silo, seen in run.items()
        }
        for run in runs
    ]
    return (
        _named(two_things(in_its_place), f"aleatoric and {LOGITS}"),
        _named(seeds_agree(in_its_place), f"seeds, {LOGITS}"),
    )


def _named(finding: Finding, name: str) -> Finding:
    claim, sentence = (text.replace(EPISTEMIC, CALLED) for text in (finding.claim, finding.sentence))
    return dataclasses.replace(finding, name=name, claim=claim, sentence=sentence)
