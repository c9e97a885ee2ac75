"""A model of one's own, by which a process that is handed it comes to know of the stand-in device."""

from __future__ import annotations

from shadow import on_shadow
from torch import Tensor, nn

on_shadow()


class Learning(nn.Module):
    """An encoder of two numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 6), nn.BatchNorm1d(6), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x)
        return out
