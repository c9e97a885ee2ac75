"""A custom model: a transformer on token ids. Each digit is a text of 64 ids, the gray levels of its pixels.

python examples/transformer_on_tokens.py [METHOD ...]
"""

from __future__ import annotations

import sys

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import caveat

WORDS, LENGTH, WIDTH = 18, 64, 32  # id 0 is padding, gray levels are 1 to 17


class Encoder(nn.Module):
    """Ids (N, T) to tokens (N, T / 8, D): embeddings, a layer of attention, and a mean over every 8 words."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH, padding_idx=0)
        self.places = nn.Parameter(0.02 * torch.randn(LENGTH, WIDTH))
        self.layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.1, batch_first=True)

    def forward(self, ids: Tensor) -> Tensor:
        seen: Tensor = self.layer(self.words(ids) + self.places, src_key_padding_mask=ids == 0)
        return seen.unflatten(1, (-1, 8)).mean(2)


class Transformer(nn.Module):
    """What every method can train: an encoder to tokens, a head, and nothing else between them."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.encoder = Encoder()
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(LENGTH // 8 * WIDTH, 64), nn.GELU(), nn.Linear(64, classes))

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.head(self.encoder(ids))
        return logits


def silos() -> caveat.data.Silos:
    """Three silos, one of which reads its digits upside down."""
    x, y = load_digits(return_X_y=True)
    ids = x.astype(np.int64) + 1
    parts = {f"silo-{k}": (ids[k::3, ::-1] if k == 2 else ids[k::3], y[k::3]) for k in range(3)}
    return caveat.data.from_arrays(parts, kind="tokens")


if __name__ == "__main__":
    for name in sys.argv[1:] or ["fedavg", "fedper"]:
        method = caveat.METHODS[name](rounds=10)
        run = caveat.run(silos(), method, model=Transformer, training=caveat.Training(lr=0.003))
        print(f"{name}: {run.summary['mean']['accuracy']:.3f}")
