"""Encoders and heads: a model consists of an encoder from inputs to tokens and a head from tokens to logits.

Tokens are (N, T, D). Codebooks, flows and evidence use them, independently of the encoder.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..core import ConfigurationError


class Tokens(nn.Module):
    """Reshape feature maps (N, D, H, W) to tokens (N, H*W, D), and features (N, D) to one token (N, 1, D)."""

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
    """Return UEFL's encoder of three residual blocks, each after a convolution and before 2x2 pooling.

    The widths are `width`, 2 `width`, 4 `width` (128 in the authors' code, 8 to 32 for a CPU); 28x28 images become 9
    tokens of 4 `width` features.
    """
    stages: list[nn.Module] = []
    for out in (width, 2 * width, 4 * width):
        stages += [nn.Conv2d(channels, out, 3, padding=1), Block(out), nn.MaxPool2d(2)]
        channels = out
    return nn.Sequential(*stages, Tokens())


def lenet5(shape: tuple[int, ...], features: int) -> nn.Sequential:
    """Return LeNet-5 without BatchNorm up to its last hidden layer: one token of `features` (84 in the original)."""
    convolutions = nn.Sequential(
        nn.Conv2d(shape[0], 6, 5, padding=2 if min(shape[1:]) < 32 else 0), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5 if min(shape[1:]) >= 24 else 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
    )  # fmt: skip
    flat = convolutions(torch.zeros(1, *shape)).shape[1]
    return nn.Sequential(convolutions, nn.Linear(flat, 120), nn.ReLU(), nn.Linear(120, features), Tokens())


def cnn(channels: int, width: int) -> nn.Sequential:
    """Return two 3x3 convolutions, each with ReLU and 2x2 pooling, as in FMLU's CNN: 28x28 images become 49 tokens. The
    widths are `width` and 2 `width`, because the paper does not state them."""
    stages: list[nn.Module] = []
    for out in (width, 2 * width):
        stages += [nn.Conv2d(channels, out, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        channels = out
    return nn.Sequential(*stages, Tokens())


def normed(channels: int, width: int) -> nn.Sequential:
    """Return three 5x5 convolutions with BatchNorm, as FedBN's for digits: 28x28 images become 49 tokens. The widths
    are `width`, `width`, 2 `width` (64 in the authors' code); the first two are followed by 2x2 pooling."""
    stages: list[nn.Module] = []
    for out, pooling in ((width, True), (width, True), (2 * width, False)):
        stages += [nn.Conv2d(channels, out, 5, padding=2), nn.BatchNorm2d(out), nn.ReLU()]
        stages += [nn.MaxPool2d(2)] if pooling else []
        channels = out
    return nn.Sequential(*stages, Tokens())


def mlp(shape: tuple[int, ...], hidden: int, features: int) -> nn.Sequential:
    """Return two layers for features and tables: one token of `features`."""
    size = math.prod(shape)
    return nn.Sequential(nn.Flatten(), nn.Linear(size, hidden), nn.ReLU(), nn.Linear(hidden, features), Tokens())


class Head(nn.Sequential):
    """A classifier on all tokens, which can be run in two halves: up to its hidden units, and from there."""

    def __init__(self, inner: Sequence[nn.Module], outer: Sequence[nn.Module]) -> None:
        super().__init__(*inner, *outer)
        self.depth = len(inner)

    def hidden(self, tokens: Tensor) -> Tensor:
        """Map (N, T, D) tokens to (N, H) hidden units, before their dropout."""
        return self._run(tokens, range(self.depth))

    def output(self, hidden: Tensor) -> Tensor:
        """Map (N, H) hidden units to (N, C) logits."""
        return self._run(hidden, range(self.depth, len(self)))

    def _run(self, x: Tensor, stages: range) -> Tensor:
        for stage in stages:
            x = self[stage](x)
        return x


def head(
    tokens: int,
    features: int,
    hidden: int,
    classes: int,
    dropout: float,
    dropout_logits: bool,
    norm: bool = False,
    second: int | None = None,
) -> Head:
    """Return a classifier on all tokens: hidden layers of `hidden` and `second` units, if given, with GELU and dropout.

    With `norm`, the units are batch normalized. `dropout_logits` also drops logits, as the authors of UEFL do. With
    `hidden` = 0 there is no hidden layer: the logits are linear in the tokens, some of which are dropped.
    """

    def layer(inputs: int, outputs: int) -> list[nn.Module]:
        return [nn.Linear(inputs, outputs), *([nn.BatchNorm1d(outputs)] if norm else []), nn.GELU()]

    # In the order of the layers, because initial weights are drawn in this order.
    inner: list[nn.Module] = [nn.Flatten(), *(layer(tokens * features, hidden) if hidden else [])]
    hidden = hidden or tokens * features
    outer: list[nn.Module] = [nn.Dropout(dropout)]
    if second is not None:
        outer += [*layer(hidden, second), nn.Dropout(dropout)]
    outer += [nn.Linear(second or hidden, classes)]
    if dropout_logits:
        outer += [nn.Dropout(dropout)]
    return Head(inner, outer)


def linear(shape: tuple[int, ...], classes: int, dropout: float) -> Linear:
    """Return a logistic regression: logits are linear in the inputs, some of which are dropped in training."""
    return Linear(math.prod(shape), classes, dropout)


class Linear(nn.Sequential):
    """A linear layer without an encoder, because methods that send an encoder's features would send the inputs."""

    def __init__(self, inputs: int, classes: int, dropout: float) -> None:
        super().__init__(nn.Flatten(), nn.Dropout(dropout), nn.Linear(inputs, classes))


def parts(module: nn.Module, method: str) -> Model:
    """Return a module as a `Model`. Raises ConfigurationError unless it consists of an encoder and a head."""
    if isinstance(module, Model):
        return module
    if isinstance(module, Linear):
        raise ConfigurationError(
            f"{method} needs a model with an encoder and a head, but model 'linear' has no encoder; use 'mlp'", "model"
        )
    name = type(module).__name__
    has_both = all(isinstance(getattr(module, part, None), nn.Module) for part in ("encoder", "head"))
    raise ConfigurationError(
        f"{method} needs a model that computes head(encoder(x)), but {name}, which has both, computes something else: "
        "move all other steps into `encoder` or `head` (a flatten between them may stay)"
        if has_both
        else f"{method} needs a model with an encoder and a head, but {name} does not have both: give it modules "
        "`encoder` and `head` as attributes, and let it compute head(encoder(x))",
        "model",
    )


class Model(nn.Sequential):
    """An encoder and a head. Attributes `tokens` and `features` give the shape between them, and `shape` gives the
    shape of an input of numbers; it is None for token ids, or if unknown."""

    encoder: nn.Module
    head: Head

    def __init__(
        self, encoder: nn.Module, classifier: Head, tokens: int, features: int, shape: tuple[int, ...] | None = None
    ) -> None:
        super().__init__()
        self.encoder, self.head = encoder, classifier
        self.tokens, self.features, self.shape = tokens, features, shape
