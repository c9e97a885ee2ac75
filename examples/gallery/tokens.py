"""
Token ids and a transformer
===========================

Any PyTorch module can be the model. Here, each digit is a sequence of 64 token ids, the gray levels of its pixels.
"""

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import caveat

x, y = (each[:900] for each in load_digits(return_X_y=True))
ids = x.astype(np.int64) + 1  # id 0 is padding
silos = caveat.data.from_arrays({f"silo-{k}": (ids[k::3], y[k::3]) for k in range(3)}, kind="tokens")


# %%
# The model has two parts: `encoder` returns tokens (N, T, D), and `head` returns logits.


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(18, 32, padding_idx=0)
        self.places = nn.Parameter(0.02 * torch.randn(64, 32))
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0, batch_first=True)

    def forward(self, ids: Tensor) -> Tensor:
        return self.layer(self.words(ids) + self.places).unflatten(1, (-1, 8)).mean(2)


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = Encoder()
        self.head = nn.Sequential(nn.Flatten(), nn.Dropout(0.1), nn.Linear(8 * 32, 10))

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.encoder(ids))


run = caveat.run(
    silos, caveat.FedAvg(rounds=3), model=Transformer, training=caveat.Training(batch_size=32, lr=0.003), every=3
)
print(f"accuracy of ten classes after 3 rounds: {run.summary['mean']['accuracy']:.3f}")
