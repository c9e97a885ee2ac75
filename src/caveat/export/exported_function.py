"""The exported function: from raw inputs to all outputs of a prediction.

It can be recorded, and its preprocessing is bit-identical to `Preparation.prepare`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core import ConfigurationError, Prediction, Reason, SiloId
from ..data import Preparation
from ..data.tables.allowed_values import usable
from ..data.tables.encoding import Encoder
from ..nn.frozen import rows
from ..runs.answering import AnsweringRun, AtSilo
from ..runs.frozen_features import features_of
from ..wrappers.alarms import GROUP, without_rows
from .recording import Outputs


@dataclass(frozen=True)
class RawInputs:
    """The raw inputs that a silo's exported model takes."""

    preparation: Preparation
    silo: SiloId

    @property
    def kind(self) -> str:
        """ "images", "table", "tokens", "series" or "features"."""
        if self.preparation.images:
            return "images"
        if self.preparation.encoders:
            return "table"
        if self.preparation.sequence_format is not None:
            return self.preparation.sequence_format.kind
        return "features" if self.preparation.dtype.is_floating_point else "tokens"

    @property
    def dtype(self) -> torch.dtype:
        if self.kind == "images":
            return torch.uint8
        return torch.float32 if self.kind == "table" else self.preparation.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input: (H, W) or (H, W, C) for images, the columns for tables."""
        if self.kind == "images":
            channels, *size = self.preparation.shape
            return tuple(size) if channels == 1 else (*size, channels)
        return (len(self.encoder.table),) if self.kind == "table" else self.preparation.shape

    @property
    def encoder(self) -> Encoder:
        return self.preparation.encoders[self.silo]

    def batch(self, size: int) -> Tensor:
        """Return random inputs (N, ...), always the same."""
        generator = torch.Generator().manual_seed(size)
        if self.kind == "images":
            return torch.randint(0, 256, (size, *self.shape), generator=generator, dtype=torch.uint8)
        if self.kind == "tokens":
            return torch.zeros(size, *self.shape, dtype=self.dtype)
        found = torch.randn(size, *self.shape, generator=generator)
        if self.kind == "table":
            for i, column in enumerate(self.encoder.table):
                if column.categories is not None:
                    codes = torch.randint(-1, len(column.categories), (size,), generator=generator)
                    found[:, i] = codes.to(found.dtype)
        return found

    def prepared(self, x: Tensor) -> Tensor:
        """Return model inputs (N, *shape) from raw inputs (N, ...)."""
        if self.kind == "images":
            constants = self.preparation.normalize
            if constants is None:
                raise ConfigurationError(
                    "the images of this run have no normalization constants, so the run cannot be exported"
                )
            images = x[:, None] if x.ndim == 3 else x.permute(0, 3, 1, 2)
            mean, std = (torch.tensor(each).view(-1, 1, 1) for each in (constants.mean, constants.std))
            return images.contiguous().float().div(255).sub(mean).div(std)
        if self.silo in self.preparation.scalings:
            return self.preparation.scalings[self.silo](x)
        return encoded(self.encoder, self.usable(x)[0]) if self.kind == "table" else x

    def usable(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return rows (N, D) of a table without values that the dictionary does not allow, and (N,) int64, the
        Reason why each row is not answered."""
        return usable(x, self.encoder.table, self.encoder.limits(self.silo))


def encoded(encoder: Encoder, raw: Tensor) -> Tensor:
    """Return features (N, F) of raw rows (N, D), as `Encoder` does."""
    place = {column.name: i for i, column in enumerate(encoder.table)}
    numbers, flags, one_hot = [], [], []
    constants = iter(zip(encoder.medians, encoder.means, encoder.scales, strict=True))
    for column in encoder.layout.columns:
        i = place[column.name]
        value, own = raw[:, i], encoder.table[i].categories
        if column.categories is not None:
            one_hot += [_are(value, own or (), category) for category in column.categories]
            continue
        median, mean, scale = (torch.tensor(each, dtype=raw.dtype) for each in next(constants))
        missing = value.isnan() if own is None else torch.ones_like(value, dtype=torch.bool)
        numbers.append((torch.where(missing, median, value) - mean) / scale)
        if column.name in encoder.layout.flagged:
            flags.append(missing)
    return torch.stack([each.float() for each in (*numbers, *flags, *one_hot)], 1)


def _are(value: Tensor, categories: Sequence[str], category: str) -> Tensor:
    """Return (N,) bool: whether a silo's codes mean a category."""
    if category not in categories:
        return torch.zeros_like(value, dtype=torch.bool)
    return value == categories.index(category)


def asked_at(run: AnsweringRun, silo: SiloId, training_features: bool) -> AtSilo:
    """Return what predictions at a silo need, with or without features of its training inputs."""
    at = run.at(silo)
    if training_features or GROUP not in at.state:
        return at
    return at._replace(state={**at.state, GROUP: without_rows(at.state[GROUP])})


def predicted(run: AnsweringRun, at: AtSilo, inputs: RawInputs, raw: Tensor) -> Prediction:
    """Return the run's prediction of raw inputs (N, ...) at a silo."""
    encoder, x = run.frozen_encoder, inputs.prepared(raw)
    found = run.complete_method.predict(*at, x if encoder is None else features_of(encoder, x, keep=False))
    return found.refusing(inputs.usable(raw)[1]) if inputs.kind == "table" else found


def answering(run: AnsweringRun, silo: SiloId, at: AtSilo) -> Callable[[Tensor], Outputs]:
    """Return a function without data-dependent branches from raw inputs (N, ...) to named tensors (N, ...)."""
    down, state, context = at
    inputs, method, encoder = RawInputs(run.preparation, silo), run.complete_method, run.frozen_encoder

    def answer(raw: Tensor) -> Outputs:
        x = inputs.prepared(raw)
        x = x if encoder is None else rows(encoder.module, x)
        found = method.decide(down, state, method.answer(down, state, context, x))
        return outputs(found.refusing(inputs.usable(raw)[1]) if inputs.kind == "table" else found)

    return answer


def outputs(found: Prediction) -> Outputs:
    """Return a prediction's tensors by the names of outputs in files."""
    undefined = ~found.probs.isfinite().all(-1)
    found = found.abstaining(undefined, Reason.UNDEFINED)  # as in `Method.predict`, if there are any
    of = {"label": found.label} if found.target is None else found.target.figures(found.probs, found.interval)
    told = {"probs": found.probs, **of, "decision": found.decision, "reason": found.reason}
    told["answered_by"] = found.answered_by
    told |= found.p_values
    told |= found.uncertainty
    if found.log_evidence is not None:
        told["log_evidence"] = found.log_evidence
    if found.sets is not None:
        told["sets"] = found.sets
    return told
