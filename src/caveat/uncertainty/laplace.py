"""Laplace approximation of the posterior of a linear last layer, from sums that add up over silos.

MacKay, A Practical Bayesian Framework for Backpropagation Networks, Neural Computation 1992, for the approximation;
Ritter et al., A Scalable Laplace Approximation for Neural Networks, ICLR 2018, for the Kronecker factors; Kristiadi et
al., Being Bayesian, Even Just a Bit, Fixes Overconfidence in ReLU Networks, ICML 2020, for the last layer alone;
Daxberger et al., Laplace Redux, NeurIPS 2021 (arXiv 2106.14806), for an overview.

Logits are W phi, with D numbers phi per input (hidden units, and a 1 for the bias) and C classes. The generalized
Gauss-Newton matrix of the cross-entropy is the sum over inputs of (diag p - p p') (x) phi phi', approximated by A (x) B
/ n with A = sum phi phi' and B = sum (diag p - p p'). A constant added to all logits of an input does not change the
softmax, so only the C - 1 other directions matter.

A layer that fits its training labels has almost no curvature. The marginal likelihood then prefers a prior without
precision (MacKay's fixed point lambda |w|^2 = gamma, where gamma, the number of determined parameters, is close to 0),
and the posterior is as wide as that prior. Here lambda has the upper bound of the fixed point, gamma = all parameters:
the prior variance is the mean square of the weights. The posterior is cold, like the posteriors of networks that
predict well (Wenzel et al., How Good is the Bayes Posterior in Deep Neural Networks Really?, ICML 2020).
"""

import math
from collections.abc import Iterator
from functools import lru_cache

import torch
from torch import Tensor, nn

from .measures import entropy

COLD = 64.0
"""Inverse temperature of the posterior, by which its variances are divided (docs/how-to/uncertainty.md)."""
CELLS = 1 << 15
"""Maximum size of an intermediate tensor; inputs are processed in chunks."""


def sums(hidden: Tensor, logits: Tensor) -> dict[str, Tensor]:
    """Return sums over inputs for a last layer: A "inputs" (D, D), B "outputs" (C, C) and n "examples" (), float64.
    `hidden` (N, D) are the inputs of the layer, with a 1 for its bias; `logits` (N, C) are its outputs."""
    phi, p = hidden.double(), logits.double().softmax(-1)
    examples = torch.tensor(len(phi), dtype=torch.float64)
    return {"inputs": phi.T @ phi, "outputs": p.sum(0).diag() - p.T @ p, "examples": examples}


def posterior(found: dict[str, Tensor], weight: Tensor) -> dict[str, Tensor]:
    """Return the posterior of a layer with `weight` (C, D), whose last column is the bias, from `sums` of all inputs.

    The columns of "inputs" (D, D) and "outputs" (C, C - 1) are directions, "variances" (D, C - 1) has the posterior
    variance of each pair of them, and "prior" () is the prior precision. All of them are on the CPU.
    """
    found, weight = {name: tensor.cpu() for name, tensor in found.items()}, weight.cpu()
    q = contrasts(len(weight))
    a, u = torch.linalg.eigh(found["inputs"])
    b, s = torch.linalg.eigh(q.T @ found["outputs"] @ q)
    curvature = (a.clamp_min(0)[:, None] * b.clamp_min(0)) / found["examples"].clamp_min(1)
    prior = 1 / (q.T @ weight.double()).square().mean().clamp_min(torch.finfo(torch.float64).tiny)
    return {
        # Contiguous, as after being sent or stored: products of other layouts differ in their last bits.
        "inputs": u.contiguous(),
        "outputs": (q @ s).contiguous(),
        "variances": 1 / (COLD * (curvature + prior)),
        "prior": prior,
    }


@lru_cache(maxsize=16)
def contrasts(classes: int) -> Tensor:
    """Return (C, C - 1) float64 orthonormal columns that each sum to 0 (Helmert contrasts)."""
    rows = torch.tril(torch.ones(classes, classes, dtype=torch.float64))[: classes - 1]
    rows[torch.arange(classes - 1), torch.arange(1, classes)] = -torch.arange(1, classes, dtype=torch.float64)
    normed: Tensor = rows / rows.square().sum(1, keepdim=True).sqrt()
    return normed.T.contiguous()


def direction_variances(found: dict[str, Tensor], hidden: Tensor) -> Tensor:
    """Return (N, C - 1) float64: the variances of the logits of `hidden` (N, D) along the columns of "outputs". Along
    these directions logits are independent: their covariance is outputs diag(variances) outputs'."""
    # The rotation is most of the cost. The model's precision suffices for it, because all terms are positive.
    turned = hidden @ found["inputs"].to(hidden.dtype)
    return (turned.square() @ found["variances"].to(hidden.dtype)).double()


def logit_variance(variances: Tensor) -> Tensor:
    """Return the variance (N,) of a logit minus the mean logit, averaged over classes."""
    return variances.sum(-1) / (variances.shape[-1] + 1)


def mean_probabilities(outputs: Tensor, logits: Tensor, variances: Tensor) -> Tensor:
    """Return (N, C) class probabilities expected under Gaussian logits, in closed form; rows sum to one.

    The log-odds of each class against all others are Gaussian to first order. MacKay's probit approximation, sigmoid(m
    / sqrt(1 + pi / 8 v)), gives their probabilities, which are then normalized. A constant added to all logits of an
    input makes no difference.
    """
    classes = len(outputs)
    rest = 1 - torch.eye(classes, dtype=outputs.dtype, device=outputs.device)
    # Classes precede inputs, also below, because operations are faster along the longer axis.
    pull = (rest[:, :, None] * outputs).transpose(1, 2).flatten(0, 1)  # (C (C - 1), C)
    parts = []
    for m, v in _chunks(classes**2, logits.T, variances.T):
        weights = (m - m.amax(0)).exp()
        others = (rest @ weights).clamp_min(torch.finfo(weights.dtype).tiny)
        gradient = outputs[:, :, None] - (pull @ weights).view(classes, classes - 1, -1) / others[:, None]
        variance = (gradient.square_() * v).sum(1)  # (C, N): of the log-odds
        odds = m - m.amax(0) - others.log()
        parts.append(nn.functional.logsigmoid(odds / (1 + math.pi / 8 * variance).sqrt()).softmax(0))
    return torch.cat(parts, 1).T


def draw_logits(outputs: Tensor, logits: Tensor, variances: Tensor, noise: Tensor) -> Tensor:
    """Return (S, C, N) logits around (N, C), for standard normal `noise` (S, C - 1) that all inputs share."""
    along = (noise[:, None] * outputs).flatten(0, 1)  # (S C, C - 1)
    return (along @ variances.T.sqrt()).view(len(noise), len(outputs), -1).add_(logits.T)


def decomposed(outputs: Tensor, logits: Tensor, variances: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean entropy of the probabilities of `draw_logits`, and their mutual information; (N,) nats each.

    The mutual information of the draws is multiplied by S / (S - 1) and clipped to [0, ln C]: if small, it is half the
    weighted variance of the probabilities, which S draws underestimate by (S - 1) / S.
    """
    count, classes = len(noise), len(outputs)
    found = []
    for m, v in _chunks(count * classes, logits.T, variances.T):
        log_p = draw_logits(outputs, m.T, v.T, noise).log_softmax(1)
        p = log_p.exp()
        total = entropy(p.mean(0).T)
        within = -(log_p.mul_(p)).sum((0, 1)) / count
        found.append(torch.stack([within, (total - within) * (count / max(count - 1, 1))]))
    within, between = torch.cat(found, 1)
    return within, between.clamp(0, math.log(classes))


def _chunks(width: int, *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Split tensors (..., N) along inputs, so that `width` numbers for each of them stay in a processor's cache."""
    return zip(*(torch.split(each, max(1, CELLS // width), -1) for each in tensors), strict=True)
