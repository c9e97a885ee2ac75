"""Uncertainty of sampled class probabilities, in nats unless stated otherwise; higher means less certain.

Samples are (S, ..., C): S sampled predictions of C class probabilities each. Everything is computed and
returned in float64.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.overrides import wrap_torch_function


class Decomposition(NamedTuple):
    """A total uncertainty, its aleatoric part, caused by the data, and its epistemic part, caused by the model."""

    total: Tensor
    aleatoric: Tensor
    epistemic: Tensor


def entropy(probs: Tensor) -> Tensor:
    """Return the Shannon entropy over the last axis: (..., C) to (...), between 0 and ln C."""
    terms: Tensor = torch.special.entr(probs.double())
    return terms.sum(-1)


def expected_entropy(samples: Tensor) -> Tensor:
    """Return the mean entropy of the samples, the aleatoric uncertainty: (S, ..., C) to (...). It is unbiased."""
    return entropy(samples).mean(0)


def plug_in_mutual_information(samples: Tensor) -> Tensor:
    """Return the entropy of the mean sample minus the mean entropy: (S, ..., C) to (...), at least 0. It is biased down
    by O(1 / S), so values for different S are not comparable; see `mutual_information`."""
    return (entropy(samples.double().mean(0)) - expected_entropy(samples)).clamp_min(0)


def mutual_information(samples: Tensor) -> Tensor:
    """Return the mutual information of label and sampled model, the epistemic uncertainty: (S, ..., C) to (...).

    The jackknife removes the O(1 / S) bias of the plug-in estimate: S MI_S - (S - 1) times the mean of the S estimates
    that leave one sample out (Quenouille, 1956). The expected entropy has no bias and cancels, and by concavity the
    correction is never negative. The result is clipped to [0, ln C], the range of the true value; one sample gives 0.
    """
    samples = samples.double()
    count, classes = len(samples), samples.shape[-1]
    if count == 1:
        return samples.new_zeros(samples.shape[1:-1])
    total = entropy(samples.mean(0))
    correction = (count - 1) * (total - _leave_one_out(samples).mean(0))
    return (total - expected_entropy(samples) + correction).clamp(0, math.log(classes))


def decomposed(samples: Tensor) -> tuple[Tensor, Decomposition]:
    """Return the (N, C) mean of (S, N, C) probabilities, and its uncertainty's parts (N,), each at most the total."""
    samples = samples.double()
    probs = samples.mean(0)
    total = entropy(probs)
    # Rounding may put the mean entropy an ulp above the entropy of the mean.
    aleatoric = torch.minimum(expected_entropy(samples), total)
    epistemic = torch.minimum(mutual_information(samples), total)
    return probs, Decomposition(total, aleatoric, epistemic)


@wrap_torch_function(lambda logits: (logits,))
def decomposed_logits(logits: Tensor) -> tuple[Tensor, Decomposition]:
    """Return `decomposed` of the probabilities of (S, N, C) sampled logits."""
    # Classes precede inputs, as in the memory layout of the samples, which is ten times as fast.
    return decomposed(logits.transpose(1, 2).double().softmax(1).transpose(1, 2))


def decomposed_logits_directly(logits: Tensor) -> tuple[Tensor, Decomposition]:
    """Return `decomposed_logits` up to rounding, with few operators on all samples at once, for export. The entropy of
    a softmax is ln sum exp(d) - sum p d, which takes no logarithm of a probability."""
    count, classes = logits.shape[0], logits.shape[2]
    z = logits.transpose(1, 2)
    # Finite, so that a probability of 0 times its logarithm is 0.
    d = z.clamp_min(torch.finfo(z.dtype).min).double() - z.amax(1, keepdim=True).double()
    weights = d.exp()
    norm = weights.sum(1, keepdim=True)
    samples = weights / norm  # (S, C, N)
    pooled = samples.sum(0)
    probs = pooled / count
    total = _entropy_of_columns(probs)
    within = (norm.log().sum(0)[0] - (samples * d).flatten(0, 1).sum(0)) / count
    aleatoric = torch.minimum(within, total)
    if count == 1:
        return probs.transpose(0, 1), Decomposition(total, aleatoric, torch.zeros_like(total))
    left_out = _entropy_of_columns(((pooled - samples) / (count - 1)).flatten(0, 1)) / count
    epistemic = (total - within + (count - 1) * (total - left_out)).clamp(0, math.log(classes))
    return probs.transpose(0, 1), Decomposition(total, aleatoric, torch.minimum(epistemic, total))


def _entropy_of_columns(probs: Tensor) -> Tensor:
    """Return (N,) sums of -p ln p over (K, N) probabilities, some of which may be an ulp below zero."""
    positive = probs.clamp_min(torch.finfo(probs.dtype).tiny)
    return -(positive * positive.log()).sum(0)


def _leave_one_out(samples: Tensor) -> Tensor:
    """Return (S, ...) entropies of the means that leave one of (S, ..., C) samples out."""
    others = max(len(samples) - 1, 1)
    pooled = samples.sum(0)
    # Rounding may leave a probability an ulp below zero, where the entropy is -inf.
    return torch.stack([entropy(((pooled - sample) / others).clamp_min(0)) for sample in samples])
