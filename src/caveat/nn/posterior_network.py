"""Posterior networks: an encoder, a classifier head, and densities of embeddings that determine the evidence.

Charpentier et al., Posterior Network, NeurIPS 2020, and Natural Posterior Network, ICLR 2022; as in FedPN.

The densities are radial flows, one normalizing flow per class over embeddings, all evaluated together: Rezende &
Mohamed, Variational Inference with Normalizing Flows, ICML 2015, section 4.1 and appendix A.2. A flow here maps the
embedding to the standard normal, so a density needs no inverse.

A density needs only an embedding's squared distances from the centers and from the origin. A layer moves an embedding
along the line through a center, which changes the distances from all other points by Stewart's theorem. So many flows
are evaluated at a cost per layer that does not depend on D.
"""

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.overrides import wrap_torch_function

from ..uncertainty.histograms import beside
from .encoders import Model

NEAREST = 1e-3
"""The smallest alpha and alpha + beta: without a bound the gradient at a center is unbounded."""
BLOCK = 2**19
"""Number of distances processed at a time, so they stay in a core's cache."""
TOGETHER = 6
"""Number of layers after which distances from later centers are updated, by a matrix product; few enough that a product
of their ratios stays within float64 for any float32 parameters."""


class RadialFlows(nn.Module):
    """K densities over embeddings (D,), each a stack of L radial layers before N(0, I)."""

    def __init__(self, flows: int, features: int, layers: int) -> None:
        super().__init__()
        self.center = nn.Parameter(torch.empty(flows, layers, features))
        self.radius = nn.Parameter(torch.empty(flows, layers))
        self.stretch = nn.Parameter(torch.empty(flows, layers))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw the parameters from torch's global generator; all flows start equal."""
        bound = 1 / math.sqrt(self.center.shape[2])
        for parameter in (self.center, self.radius, self.stretch):
            parameter.copy_(torch.empty_like(parameter[0]).uniform_(-bound, bound).expand_as(parameter))

    @torch.no_grad()
    def log_prob(self, z: Tensor, wanted: Tensor | None = None) -> Tensor:
        """Return (N, K) log-densities in nats of (N, D) embeddings, computed in float64 and without gradients.

        They are -inf for flows that are not `wanted`, (K,) bool; at least one flow must be wanted.
        """
        if wanted is not None and not wanted.all():
            found, at = z.new_full((len(z), len(wanted)), -math.inf), beside(wanted.nonzero()[:, 0], z)
            found[:, at] = self._densities(z, self.center[at], self.radius[at], self.stretch[at])
            return found
        return self._densities(z, self.center, self.radius, self.stretch)

    def _densities(self, z: Tensor, center: Tensor, radius: Tensor, stretch: Tensor) -> Tensor:
        points = F.pad(center.double(), (0, 0, 0, 1))  # the last one is the origin
        between = torch.cdist(points, points).square_()
        alpha, s = (_positive(p.double()).T[..., None] for p in (radius, stretch))
        flows, count, features = points.shape
        points = points.transpose(0, 1).flatten(0, 1)

        def block(part: Tensor) -> Tensor:
            squares = _squares(points, part).view(count, flows, -1)
            return density(squares, between, alpha, s, features)

        parts = torch.split(z.double(), max(BLOCK // (flows * count), 1))
        return torch.cat([block(part) for part in parts], 1).T.to(z.dtype)

    def log_prob_of(self, z: Tensor, flow: Tensor) -> Tensor:
        """Return (N,) log-densities of (N, D) embeddings, each under the flow with number `flow` (N,)."""
        return _log_prob(z, *self._chosen(flow))

    def log_prob_twice(self, z: Tensor, fixed: Tensor, flow: Tensor) -> tuple[Tensor, Tensor]:
        """Return `log_prob_of` for `z` and for `fixed`, whose result passes gradients to `fixed` but not to the
        flows."""
        chosen = [torch.cat([p, p.detach()]) for p in self._chosen(flow)]
        first, second = _log_prob(torch.cat([z, fixed]), *chosen).chunk(2)
        return first, second

    def _chosen(self, flow: Tensor) -> list[Tensor]:
        # A product with a one-hot matrix: the gradient of an index is slow on a CPU.
        which = F.one_hot(flow, len(self.center)).to(self.center.dtype)
        return [(which @ p.flatten(1)).view(-1, *p.shape[1:]) for p in (self.center, self.radius, self.stretch)]


def _log_prob(z: Tensor, center: Tensor, radius: Tensor, stretch: Tensor) -> Tensor:
    """Return the log-density of z (..., D) under layers with parameters (..., L, D), (..., L) and (..., L)."""
    shape = np.broadcast_shapes(z.shape[:-1], radius.shape[:-1])  # torch.broadcast_shapes imports sympy
    alpha, s = _positive(radius), _positive(stretch)
    end, log_det = _Layers.apply(
        z.expand(*shape, -1), center.expand(*shape, -1, -1), alpha.expand(*shape, -1), s.expand(*shape, -1)
    )  # type: ignore[no-untyped-call]
    density: Tensor = log_det + _log_normal(end.square().sum(-1), z.shape[-1])
    return density


def _positive(parameter: Tensor) -> Tensor:
    return F.softplus(parameter) + NEAREST


def _log_normal(square: Tensor, features: int) -> Tensor:
    """Return the log-density of N(0, I) at a squared distance from the origin."""
    return -0.5 * (square + features * math.log(2 * math.pi))


def _squares(points: Tensor, z: Tensor) -> Tensor:
    """Return (P, N) squared distances of (P, D) points and (N, D) embeddings, some below 0 by rounding."""
    squares = torch.addmm(z.square().sum(-1), points, z.T, alpha=-2)
    return squares.add_(points.square().sum(-1, keepdim=True))


@wrap_torch_function(lambda squares, *others: (squares,))
def density(squares: Tensor, between: Tensor, alpha: Tensor, s: Tensor, features: int) -> Tensor:
    """Return (K, N) log-densities of N embeddings under K stacks of L layers, from the arguments of `_move`."""
    return _move(squares, between, alpha, s, features) + _log_normal(squares[-1], features)


def density_directly(squares: Tensor, between: Tensor, alpha: Tensor, s: Tensor, features: int) -> Tensor:
    """Return `density` up to rounding, without in-place operations, for export."""
    log_det = torch.zeros_like(squares[0])
    for start in range(0, len(alpha), TOGETHER):
        stop = min(start + TOGETHER, len(alpha))
        a, b, ahead, later = alpha[start:stop], s[start:stop], squares[: stop - start], squares[stop - start :]
        within = between[:, start:stop, start:stop]
        own, kept, shares = [], torch.ones_like(log_det), list[Tensor]()
        for layer in range(len(a)):
            own.append(ahead[0].clamp_min(0))
            pull = (a - b)[layer] / (a[layer] + own[-1].sqrt())
            ahead = ahead[1:] + pull * (within[:, layer, layer + 1 :].T[..., None] - ahead[1:])
            ahead = ahead - (pull - pull * pull) * own[-1]
        before = torch.stack(own)
        r = before.sqrt()
        along = (b + r) / (a + r)
        for layer in reversed(range(len(a))):
            shares.insert(0, ((a - b) / (a + r))[layer] * kept)
            kept = kept * along[layer]
        share = torch.stack(shares)
        across = (torch.addcmul(r, a, along) / (a + r)).log().sum(0)
        log_det = log_det + kept.log() * (features - 1) + across
        pulled = (between[:, stop:, start:stop] @ share.transpose(0, 1)).transpose(0, 1)
        squares = later * kept - (along * before * share).sum(0) + pulled
    return log_det + _log_normal(squares[-1], features)


def _move(squares: Tensor, between: Tensor, alpha: Tensor, s: Tensor, features: int) -> Tensor:
    """Move N embeddings through K stacks of L layers, using only their squared distances from points.

    `squares` (L + 1, K, N) are the squared distances from the centers and from one more point, and are changed in
    place; `between` (K, L + 1, L + 1) are those between the points; alpha and s are (L, K, 1). Returns the (K, N)
    logarithms of the Jacobians; see `_Layers`. Close to a center, differences of squares lose half of the digits, which
    leaves the precision of float32.
    """
    log_det = torch.zeros_like(squares[0])
    for start in range(0, len(alpha), TOGETHER):
        stop = min(start + TOGETHER, len(alpha))
        now, later = slice(start, stop), slice(stop, None)
        own, a, b = squares[now], alpha[now], s[now]
        r = _distances(own, between[:, now, now], a, b)
        reach = a + r
        # Factors by which a layer scales the distance from its center, and the distance between neighbors on a line to
        # it.
        along = (b + r).div_(reach)
        across = torch.addcmul(r, a, along).div_(reach)
        kept = torch.ones_like(log_det)
        shares = (a - b) / reach
        for layer in reversed(range(len(r))):
            shares[layer].mul_(kept)
            kept.mul_(along[layer])
        log_det += kept.log().mul_(features - 1).add_(across.prod(0).log_())
        # After these layers, an embedding is `kept` of itself plus `shares` of the centers, weights that sum to 1.
        lost = along.mul_(own).mul_(shares).sum(0)
        squares[later].mul_(kept).sub_(lost)
        squares[later].transpose(0, 1).baddbmm_(between[:, later, now], shares.transpose(0, 1))
    return log_det


def _distances(squares: Tensor, between: Tensor, alpha: Tensor, s: Tensor) -> Tensor:
    """Return the (B, K, N) distances from each of B layers' centers before the layer, as in `_move`.

    `squares` (B, K, N) also become the ones before the layers.
    """
    distances = torch.empty_like(squares)
    for layer, (own, r) in enumerate(zip(squares, distances, strict=True)):
        torch.sqrt(own.clamp_(min=0), out=r)
        if layer + 1 < len(squares):
            # Relative step towards the center, -beta / (alpha + r): 0 is no step, 1 reaches the center.
            pull = (alpha - s)[layer] / (alpha[layer] + r)
            others = squares[layer + 1 :]
            others.lerp_(between[:, layer, layer + 1 :].T[..., None], pull)
            others.sub_(torch.addcmul(pull, pull, pull, value=-1).mul_(own))
    return distances


class _Layers(torch.autograd.Function):
    """The layers z -> z + k d, d = z - center, r = |d|, k = beta / (alpha + r), and the logarithm of their Jacobian.

    With s = alpha + beta > 0, which makes a layer invertible, the Jacobian is ((s + r) / (alpha + r))^(D-1) (r^2 + 2
    alpha r + alpha s) / (alpha + r)^2: all terms are positive, so nothing cancels if beta is close to -alpha. The
    gradient is explicit, because autograd takes five times as long: only values that depend on the previous layer are
    computed layer by layer.
    """

    @staticmethod
    def forward(ctx: Any, z: Tensor, center: Tensor, alpha: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
        beta, least = s - alpha, torch.finfo(z.dtype).tiny ** 0.5
        aways, distances, steps = [], [], []
        for layer in range(center.shape[-2]):
            away = z - center[..., layer, :]
            # Never 0, because it is a divisor; an embedding at a center is rare, but possible.
            distance = torch.linalg.vector_norm(away, dim=-1).clamp_min(least)
            step = beta[..., layer] / (alpha[..., layer] + distance)
            z = torch.addcmul(z, step[..., None], away)
            aways.append(away)
            distances.append(distance)
            steps.append(step)
        r, k = torch.stack(distances, -1), torch.stack(steps, -1)
        ctx.save_for_backward(torch.stack(aways, -2), r, k, alpha, s)
        reach = alpha + r
        log_det = (z.shape[-1] - 1) * (s + r).log() + (r * (reach + alpha) + alpha * s).log()
        return z, (log_det - (z.shape[-1] + 1) * reach.log()).sum(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        away, r, k, alpha, s = ctx.saved_tensors
        along, of_log_det = gradients[0], gradients[1][..., None]
        features, reach = away.shape[-1], alpha + r
        q, spread = r * (reach + alpha) + alpha * s, (features - 1) / (s + r)
        by_r = of_log_det * (spread + 2 * reach / q - (features + 1) / reach)
        by_step, outwards = torch.empty_like(r), torch.empty_like(away)
        for layer in reversed(range(away.shape[-2])):
            d, step = away[..., layer, :], k[..., layer]
            by_step[..., layer] = (along * d).sum(-1)
            pull = (by_r[..., layer] - by_step[..., layer] * step / reach[..., layer]) / r[..., layer]
            outwards[..., layer, :] = torch.addcmul(pull[..., None] * d, step[..., None], along)
            along = along + outwards[..., layer, :]
        by_alpha = of_log_det * ((2 * r + s) / q - (features + 1) / reach) - by_step * (1 + k) / reach
        return along, -outwards, by_alpha, of_log_det * (spread + alpha / q) + by_step / reach


LEAST, MOST = -25.0, 50.0
"""Bounds in nats to which log-evidence is clamped before exponentiation. e^50 is finite in float32, with room for sums;
1 + e^-25 p still depends on p in float64, so the smallest evidence still determines a label."""


class Posterior(nn.Module):
    """The part after the encoder, which a silo replaces by its own."""

    def __init__(self, head: nn.Module, flows: RadialFlows) -> None:
        super().__init__()
        self.head, self.flows = head, flows

    @property
    def classes(self) -> int:
        return len(self.flows.center)

    def forward(self, tokens: Tensor, log_prior: Tensor) -> tuple[Tensor, Tensor]:
        """Map (N, T, D) tokens to (N, C) log-probabilities and (N,) log-evidence in nats, not clamped.

        The density is the mixture of the class flows with log-weights `log_prior` (C,), -inf for an absent class.
        Log-weights may be on the CPU, which avoids synchronization to find absent classes.
        """
        densities = self.flows.log_prob(embedding(tokens), wanted=log_prior > -math.inf)
        mixture = torch.logsumexp(densities + beside(log_prior, densities), -1)
        return self.head(tokens).log_softmax(-1), log_evidence(mixture, tokens.shape[-1])


class PosteriorNetwork(nn.Module):
    """An encoder from inputs to tokens, and a `Posterior` of them with `layers` radial layers per class."""

    def __init__(self, model: Model, layers: int, normalize: bool) -> None:
        super().__init__()
        with torch.no_grad():
            classes = model.head.eval()(torch.zeros(1, model.tokens, model.features)).shape[1]
        norm = nn.LayerNorm(model.features, elementwise_affine=False)
        self.encoder = nn.Sequential(model.encoder, norm) if normalize else model.encoder
        self.posterior = Posterior(model.head, RadialFlows(classes, model.features, layers))


def embedding(tokens: Tensor) -> Tensor:
    """Return the mean (N, D) of (N, T, D) tokens."""
    return tokens.mean(1)


def log_evidence(log_density: Tensor, features: int) -> Tensor:
    """Return a log-density plus NatPN's certainty budget "normal", ln(4 pi) / 2 for each of `features` features."""
    return log_density + 0.5 * math.log(4 * math.pi) * features


def clamped(evidence: Tensor) -> Tensor:
    """Return clamped log-evidence with the gradient of the unclamped one, because saturated inputs would have none."""
    return evidence + (evidence.clamp(LEAST, MOST) - evidence).detach()


def log_alpha(log_probs: Tensor, evidence: Tensor) -> Tensor:
    """Return (N, C) logarithms of the parameters of Dir(1 + exp(evidence) probs), eq. 1 and 2 of FedPN."""
    return torch.logaddexp(log_probs.new_zeros(()), clamped(evidence)[:, None] + log_probs)


def uncertain_cross_entropy(log_alpha: Tensor, y: Tensor) -> Tensor:
    """Return the (N,) expected cross-entropy under the Dirichlet, psi(alpha_0) - psi(alpha_y), eq. 5 of FedPN."""
    own = log_alpha.gather(1, y[:, None])[:, 0]
    return torch.digamma(log_alpha.logsumexp(1).exp()) - torch.digamma(own.exp())
