"""Encoders and heads: a model is an encoder from inputs to tokens and a head from tokens to logits.

Tokens are (N, T, D): codebooks, flows and evidence attach to them, whatever the encoder.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Tokens(nn.Module):
    """A feature map (N, D, H, W) as tokens (N, H*W, D); features (N, D) as one token (N, 1, D)."""

    def forward(self, features: Tensor) -> Tensor:
        return features[:, None] if features.ndim == 2 else features.flatten(2).transpose(1, 2)


class Block(nn.Module):
    """A residual block of two 3x3 convolutions with BatchNorm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.convolve1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.convolve2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm1(self.convolve1(x))
        z: Tensor = self.norm2(self.convolve2(y.relu()))
        return (x + z).relu()


def residual(channels: int, width: int) -> nn.Sequential:
    """UEFL's encoder of three residual blocks, each behind a convolution and before a 2x2 pooling.

    The widths are `width`, 2 `width`, 4 `width` (128 in the authors' code, 8 to 32 for a CPU); 28x28
    images become 9 tokens of 4 `width` features.
    """
    stages: list[nn.Module] = []
    for out in (width, 2 * width, 4 * width):
        stages += [nn.Conv2d(channels, out, 3, padding=1), Block(out), nn.MaxPool2d(2)]
        channels = out
    return nn.Sequential(*stages, Tokens())


def lenet5(shape: tuple[int, ...], features: int) -> nn.Sequential:
    """LeNet-5 without BatchNorm up to its last hidden layer: one token of `features` (84 in the original)."""
    convolutions = nn.Sequential(
        nn.Conv2d(shape[0], 6, 5, padding=2 if min(shape[1:]) < 32 else 0), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5 if min(shape[1:]) >= 24 else 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
    )  # fmt: skip
    flat = convolutions(torch.zeros(1, *shape)).shape[1]
    return nn.Sequential(convolutions, nn.Linear(flat, 120), nn.ReLU(), nn.Linear(120, features), Tokens())


def mlp(shape: tuple[int, ...], hidden: int, features: int) -> nn.Sequential:
    """Two layers for features and tables: one token of `features`."""
    size = int(torch.tensor(shape).prod())
    return nn.Sequential(nn.Flatten(), nn.Linear(size, hidden), nn.ReLU(), nn.Linear(hidden, features), Tokens())


def head(tokens: int, features: int, hidden: int, classes: int, dropout: float, dropout_logits: bool) -> nn.Sequential:
    """A classifier on all tokens: one hidden layer, GELU, dropout.

    The authors of UEFL also drop the logits; `dropout_logits` does so.
    """
    stages: list[nn.Module] = [nn.Flatten(), nn.Linear(tokens * features, hidden), nn.GELU(), nn.Dropout(dropout)]
    stages += [nn.Linear(hidden, classes)]
    return nn.Sequential(*stages, nn.Dropout(dropout)) if dropout_logits else nn.Sequential(*stages)


class Model(nn.Sequential):
    """An encoder and a head. Attributes `tokens`, `features` give the shape of what lies between."""

    encoder: nn.Module
    head: nn.Module

    def __init__(self, encoder: nn.Module, classifier: nn.Module, tokens: int, features: int) -> None:
        super().__init__()
        self.encoder, self.head = encoder, classifier
        self.tokens, self.features = tokens, features
