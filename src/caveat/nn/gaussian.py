"""Representations that are Gaussian: a mean and a standard deviation for each number, of which one is drawn."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class GaussianUnits(nn.Module):
    """(N, 2 Z) numbers to (N, Z) units: drawn anew for each input in training, and their means in evaluation.

    A pass of `mc_dropout` draws once for all inputs. The stage also holds a Gaussian of the units of each class, with
    which those of inputs can be compared.
    """

    def __init__(self, units: int, classes: int) -> None:
        super().__init__()
        self.class_means = nn.Parameter(torch.empty(classes, units))
        self.class_spreads = nn.Parameter(torch.empty(classes, units))
        self.scale = nn.Parameter(torch.empty(()))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        self.class_means.zero_()
        self.class_spreads.fill_(1)
        self.scale.fill_(1)

    def moments(self, h: Tensor) -> tuple[Tensor, Tensor]:
        """The means and standard deviations, (..., Z) each, that numbers (..., 2 Z) stand for."""
        mean, spread = h.chunk(2, -1)
        return mean, F.softplus(spread)

    def drawn(self, h: Tensor, noise: Tensor) -> Tensor:
        """(..., Z) units with so many standard deviations from their means."""
        mean, deviation = self.moments(h)
        return mean + deviation * noise

    def forward(self, h: Tensor) -> Tensor:
        mean = h.chunk(2, -1)[0]
        return self.drawn(h, torch.randn_like(mean)) if self.training else mean

    def divergence(self, h: Tensor, y: Tensor) -> Tensor:
        """(N,) Kullback-Leibler divergences in nats of the units, times `scale`, from the Gaussians of the labels."""
        mean, deviation = (each * self.scale for each in self.moments(h))
        centre, width = self.class_means[y], F.softplus(self.class_spreads)[y]
        apart = (deviation.square() + (mean - centre).square()) / (2 * width.square())
        return (width.log() - deviation.log() + apart - 0.5).sum(1)
