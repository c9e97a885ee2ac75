"""Posterior networks: an encoder, a classifier head, and densities of embeddings that say how much evidence there is.

Charpentier et al., Posterior Network, NeurIPS 2020, and Natural Posterior Network, ICLR 2022; as FedPN has them.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ..uncertainty.histograms import beside
from .encoders import Model
from .radial import RadialFlows

LEAST, MOST = -25.0, 50.0
"""Nats between which log-evidence is clamped where it is exponentiated. e^50 is finite in float32, with room for sums;
1 + e^-25 p still depends on p in float64, so that the least evidence leaves a label and not a tie."""


class Posterior(nn.Module):
    """What lies behind the encoder, and what a silo replaces by its own."""

    def __init__(self, head: nn.Module, flows: RadialFlows) -> None:
        super().__init__()
        self.head, self.flows = head, flows

    @property
    def classes(self) -> int:
        return len(self.flows.centre)

    def forward(self, tokens: Tensor, log_prior: Tensor) -> tuple[Tensor, Tensor]:
        """(N, T, D) tokens to (N, C) log-probabilities and (N,) log-evidence in nats, not clamped.

        The density is the mixture of the class flows with log-weights `log_prior` (C,), -inf for an absent class. They
        may be on the CPU, so that no device is waited for to know which classes are absent.
        """
        densities = self.flows.log_prob(embedding(tokens), wanted=log_prior > -math.inf)
        mixture = torch.logsumexp(densities + beside(log_prior, densities), -1)
        return self.head(tokens).log_softmax(-1), log_evidence(mixture, tokens.shape[-1])


class PosteriorNetwork(nn.Module):
    """An encoder of inputs to tokens, and a `Posterior` of them with `layers` radial layers per class."""

    def __init__(self, model: Model, layers: int, normalise: bool) -> None:
        super().__init__()
        with torch.no_grad():
            classes = model.head.eval()(torch.zeros(1, model.tokens, model.features)).shape[1]
        norm = nn.LayerNorm(model.features, elementwise_affine=False)
        self.encoder = nn.Sequential(model.encoder, norm) if normalise else model.encoder
        self.posterior = Posterior(model.head, RadialFlows(classes, model.features, layers))


def embedding(tokens: Tensor) -> Tensor:
    """(N, T, D) tokens to (N, D): their mean, where an encoder gives several."""
    return tokens.mean(1)


def log_evidence(log_density: Tensor, features: int) -> Tensor:
    """A log-density over so many features plus NatPN's certainty budget "normal", ln(4 pi) / 2 for each."""
    return log_density + 0.5 * math.log(4 * math.pi) * features


def clamped(evidence: Tensor) -> Tensor:
    """Log-evidence within the limits; its gradient is that of the unclamped one, or saturated inputs would be lost."""
    return evidence + (evidence.clamp(LEAST, MOST) - evidence).detach()


def log_alpha(log_probs: Tensor, evidence: Tensor) -> Tensor:
    """(N, C) logarithms of the parameters of Dir(1 + exp(evidence) probs), eq. 1 and 2 of FedPN."""
    return torch.logaddexp(log_probs.new_zeros(()), clamped(evidence)[:, None] + log_probs)


def uncertain_cross_entropy(log_alpha: Tensor, y: Tensor) -> Tensor:
    """(N,) cross-entropy expected under the Dirichlet, psi(alpha_0) - psi(alpha_y), eq. 5 of FedPN."""
    own = log_alpha.gather(1, y[:, None])[:, 0]
    return torch.digamma(log_alpha.logsumexp(1).exp()) - torch.digamma(own.exp())
