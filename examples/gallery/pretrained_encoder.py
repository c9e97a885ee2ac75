"""
A pretrained encoder
====================

Use a network that was trained on other data, keep its weights fixed, and train only a linear head with the silos. Here,
the encoder is trained on the digits 0 to 4, and the silos have the digits 5 to 9. Silos then send only the head.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn

import caveat

X, y = load_digits(return_X_y=True)
X, known = (X.reshape(-1, 8, 8) * 255 / 16).round().astype("uint8"), y < 5


class Encoder(nn.Sequential):
    """Features (N, 256) of images (N, 1, 8, 8)."""

    def __init__(self) -> None:
        first = nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)
        super().__init__(*first, nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())


torch.manual_seed(0)
encoder, head = Encoder(), nn.Linear(256, 5)
images = torch.from_numpy(X[known])[:, None] / 127.5 - 1
optimizer = torch.optim.Adam([*encoder.parameters(), *head.parameters()], lr=0.003)
for _ in range(60):
    loss = nn.functional.cross_entropy(head(encoder(images)), torch.from_numpy(y[known]))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


# %%
# A function returns the trained encoder. The function may also be in a package or a file. Inputs must be scaled as in
# the training of the encoder: here, from -1 to 1.


def pretrained() -> nn.Module:
    found = Encoder()
    found.load_state_dict(encoder.state_dict())
    return found


new, label = X[~known], y[~known] - 5
silos = caveat.data.from_arrays(
    {f"silo-{k}": (new[k::3], label[k::3]) for k in range(3)},
    normalize=caveat.data.Normalize(mean=(0.5,), std=(0.5,)),
)
method = caveat.FedAvg(rounds=6, training=caveat.Training(optimizer="sgd", lr=0.03, momentum=0.9, batch_size=16))
for frozen in (True, False):
    model = caveat.ModelSettings(encoder=pretrained, frozen=frozen, hidden=0)
    run = caveat.run(silos, method, model=model, every=6)
    sent = run.summary["traffic"]["bytes_up"] / 1000
    print(f"frozen = {frozen}: accuracy {run.summary['mean']['accuracy']:.3f}, {sent:.0f} kB sent by all silos")
