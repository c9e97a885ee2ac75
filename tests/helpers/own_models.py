"""Models of one's own, of two features and three classes, such as users bring."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from caveat.nn.custom_model import as_model, made

SHAPE, CLASSES = (2,), 3


class Plain(nn.Module):
    """An encoder and a head, and nothing unusual."""

    def __init__(self, shape: tuple[int, ...] = SHAPE, classes: int = CLASSES) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(shape[0], 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 6))
        self.head = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, classes))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.encoder(x))
        return out


class Adapter(nn.Module):
    """A low-rank adapter beside a linear layer that stays as it is (LoRA: Hu et al., 2022)."""

    def __init__(self, inner: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.inner = inner.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, inner.in_features) / rank)
        self.up = nn.Parameter(torch.zeros(inner.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x) + x @ self.down.T @ self.up.T
        return out


class Adapted(nn.Module):
    """A frozen beginning with BatchNorm and a frozen layer with an adapter, as `peft` leaves a model."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(2, 6), nn.BatchNorm1d(6), nn.ReLU(), Adapter(nn.Linear(6, 6)), nn.ReLU())
        self.encoder[:2].requires_grad_(False)
        self.head = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.encoder(x))
        return out


class Within(nn.Module):
    """Tied weights, buffers of all types, and a parameter that nothing can draw anew."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = nn.Linear(2, 6), nn.Linear(6, 6), nn.Linear(6, 6)
        self.three.weight = self.two.weight
        self.token = nn.Parameter(torch.randn(1, 6))
        self.register_buffer("mask", torch.ones(6, dtype=torch.bool))
        self.register_buffer("order", torch.arange(6))
        self.register_buffer("share", torch.zeros((), dtype=torch.float64))
        self.norm, self.drop = nn.BatchNorm1d(6), nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        h = (self.one(x) + self.token).relu() * self.mask
        out: Tensor = self.norm(self.three(self.drop(self.two(h).relu())))[:, self.order]
        return out


class Unusual(nn.Module):
    """`Within` for an encoder, and a head of one."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = Within()
        self.head = nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 3))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.encoder(x))
        return out


class Headless(nn.Module):
    """`Within`, and what it decides by, without a name for either."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.out = Within(), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.body(x))
        return out


def model_of(code: type[nn.Module]) -> nn.Module:
    """What a run makes of a class; what a method puts around it is drawn from torch's generator, as it is left."""
    torch.manual_seed(0)
    return as_model(made(code, SHAPE, torch.float32, CLASSES, 0, "model"), SHAPE, torch.float32, CLASSES, "model")
