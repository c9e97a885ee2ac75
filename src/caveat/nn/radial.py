"""Radial flows: one normalising flow per class over embeddings, all evaluated together.

Rezende & Mohamed, Variational Inference with Normalizing Flows, ICML 2015, section 4.1 and appendix A.2. A flow here
runs from the embedding to the standard normal, so that a density needs no inverse.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

NEAREST = 1e-3
"""The smallest alpha: without a bound the gradient at a centre has none either."""


class RadialFlows(nn.Module):
    """K densities over embeddings of D numbers, each a stack of L radial layers before N(0, I)."""

    def __init__(self, flows: int, features: int, layers: int) -> None:
        super().__init__()
        self.centre = nn.Parameter(torch.empty(flows, layers, features))
        self.radius = nn.Parameter(torch.empty(flows, layers))
        self.stretch = nn.Parameter(torch.empty(flows, layers))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw the parameters anew from torch's global generator; all flows start as the same one."""
        bound = 1 / math.sqrt(self.centre.shape[2])
        for parameter in (self.centre, self.radius, self.stretch):
            parameter.copy_(torch.empty_like(parameter[0]).uniform_(-bound, bound).expand_as(parameter))

    def log_prob(self, z: Tensor) -> Tensor:
        """(N, D) embeddings to (N, K) log-densities in nats."""
        return _log_prob(z[:, None], self.centre, self.radius, self.stretch)

    def log_prob_of(self, z: Tensor, flow: Tensor) -> Tensor:
        """(N, D) embeddings, each under the flow whose number `flow` (N,) says, to (N,) log-densities."""
        return _log_prob(z, *self._chosen(flow))

    def log_prob_twice(self, z: Tensor, fixed: Tensor, flow: Tensor) -> tuple[Tensor, Tensor]:
        """`log_prob_of` for `z`, and for `fixed`, which passes gradients to itself but none to the flows."""
        chosen = [torch.cat([p, p.detach()]) for p in self._chosen(flow)]
        first, second = _log_prob(torch.cat([z, fixed]), *chosen).chunk(2)
        return first, second

    def _chosen(self, flow: Tensor) -> list[Tensor]:
        # A product with a one-hot matrix: the gradient of an index is slow on a CPU.
        which = F.one_hot(flow, len(self.centre)).to(self.centre.dtype)
        return [(which @ p.flatten(1)).view(-1, *p.shape[1:]) for p in (self.centre, self.radius, self.stretch)]


def _log_prob(z: Tensor, centre: Tensor, radius: Tensor, stretch: Tensor) -> Tensor:
    """The log-density of z (..., D) under layers with parameters (..., L, D), (..., L) and (..., L).

    A layer maps z to z + beta / (alpha + r) (z - centre), r = |z - centre|. With s = alpha + beta > 0, which makes it
    invertible, its Jacobian is ((s + r) / (alpha + r))^(D-1) (r^2 + 2 alpha r + alpha s) / (alpha + r)^2: all terms
    are positive, so that nothing cancels where beta is close to -alpha.
    """
    features, tiny = z.shape[-1], torch.finfo(z.dtype).tiny
    alpha, s = F.softplus(radius) + NEAREST, F.softplus(stretch) + tiny
    log_det = z.new_zeros(())
    for layer in range(centre.shape[-2]):
        a, b = alpha[..., layer], s[..., layer]
        away = z - centre[..., layer, :]
        # The gradient of a norm at 0 is NaN; a centre on an embedding is rare, not impossible.
        r = (away.square().sum(-1) + tiny).sqrt()
        reach = a + r
        z = z + ((b - a) / reach)[..., None] * away
        log_det = log_det + (features - 1) * (b + r).log() + (r * (reach + a) + a * b).log()
        log_det = log_det - (features + 1) * reach.log()
    return log_det - 0.5 * (z.square().sum(-1) + features * math.log(2 * math.pi))
