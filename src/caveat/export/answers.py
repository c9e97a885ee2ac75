"""What an exported model says: one function from raw inputs to all that the run says of them."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from ..core import Prediction, SiloId
from ..nn.frozen import rows
from ..runs.answering import AnsweringRun
from .inputs import RawInputs
from .recording import Outputs


def answering(run: AnsweringRun, silo: SiloId) -> Callable[[Tensor], Outputs]:
    """A function from raw inputs (N, ...) to named tensors (N, ...) that no branch of Python in it decides about."""
    down, state, site = run.at(silo)
    inputs, method, encoder = RawInputs(run.preparation, silo), run.complete_method, run.frozen_encoder

    def answer(raw: Tensor) -> Outputs:
        x = inputs.prepared(raw)
        x = x if encoder is None else rows(encoder.module, x)
        return outputs(method.decide(down, state, method.answer(down, state, site, x)))

    return answer


def outputs(found: Prediction) -> Outputs:
    """A prediction by the names that it has in files."""
    undefined = ~found.probs.isfinite().all(-1)
    found = found.abstaining(undefined)  # as `Method.predict` does, if there are any
    told = {"probs": found.probs, "label": found.label, "decision": found.decision, "answerer": found.answerer}
    if found.familiarity is not None:
        told["familiarity"] = found.familiarity
    told |= found.uncertainty
    if found.log_evidence is not None:
        told["log_evidence"] = found.log_evidence
    if found.sets is not None:
        told["sets"] = found.sets
    return told
