"""TrFedDis' formulas as the paper writes them, in NumPy: evidence (N, K), not its logarithm."""

from __future__ import annotations

import numpy as np
import torch
from federations import model, silos
from numpy.typing import NDArray
from scipy.special import digamma, gammaln, log_softmax, rel_entr, softmax
from torch import Tensor, nn

from caveat.core import Payload, SiloContext, State, seeded
from caveat.methods import TrFedDis
from caveat.methods.trfeddis import TwoHeads
from caveat.nn.encoders import Model, head
from caveat.training.fit import Training

Array = NDArray[np.float64]
FUSED = [TrFedDis(), TrFedDis(fusion="additive"), TrFedDis(fusion="averaging"),
         TrFedDis(fusion="discounted"), TrFedDis(fusion="discounted", trust=0.6)]  # fmt: skip
STILL = Training(local_steps=1, optimizer="sgd", lr=1e-9)
"""Training that leaves everything where it starts, to float32's precision."""


def softplus(x: Array) -> Array:
    return np.logaddexp(0, x)  # eq. 4


def masses(evidence: Array) -> tuple[Array, Array]:
    """Beliefs (N, K) and vacuity (N, 1), eq. 5 and 6."""
    s = (evidence + 1).sum(1, keepdims=True)
    return evidence / s, evidence.shape[1] / s


def conflicts(e1: Array, e2: Array) -> Array:
    """C of eq. 8, (N,), by its double sum."""
    (b1, _), (b2, _) = masses(e1), masses(e2)
    pairs = [(i, j) for i in range(b1.shape[1]) for j in range(b2.shape[1]) if i != j]
    return np.sum([b1[:, i] * b2[:, j] for i, j in pairs], 0)


def evidence_of(b: Array, u: Array) -> Array:
    """Eq. 6 the other way round: S = K / u and e = b S."""
    return b * b.shape[1] / u


def dempster(e1: Array, e2: Array) -> Array:
    """Eq. 8."""
    (b1, u1), (b2, u2) = masses(e1), masses(e2)
    agreement = 1 - conflicts(e1, e2)[:, None]
    return evidence_of((b1 * b2 + b1 * u2 + b2 * u1) / agreement, u1 * u2 / agreement)


def discount(e: Array, trust: float) -> Array:
    b, _ = masses(e)
    return evidence_of(trust * b, 1 - trust * b.sum(1, keepdims=True))


def fused(method: TrFedDis, e1: Array, e2: Array) -> Array:
    trust = 0.9 if method.trust is None else method.trust
    return {
        "dempster": lambda: dempster(e1, e2),
        "additive": lambda: e1 + e2,
        "averaging": lambda: (e1 + e2) / 2,
        "discounted": lambda: dempster(discount(e1, trust), discount(e2, trust)),
    }[method.fusion]()


def uncertain(evidence: Array, y: Array, annealed: float) -> Array:
    """(N,): eq. 12 of one opinion, with eq. 10 and 11."""
    alpha, onehot, k = evidence + 1, np.eye(evidence.shape[1])[y], evidence.shape[1]
    cross_entropy = (onehot * (digamma(alpha.sum(1, keepdims=True)) - digamma(alpha))).sum(1)
    tilde = onehot + (1 - onehot) * alpha
    total = tilde.sum(1, keepdims=True)
    kl = gammaln(total[:, 0]) - gammaln(k) - gammaln(tilde).sum(1)
    return cross_entropy + annealed * (kl + ((tilde - 1) * (digamma(tilde) - digamma(total))).sum(1))


def same(hidden: Array) -> Array:
    """(N,): eq. 2 with the divergences of eq. 3 in both directions."""
    p, q = softmax(hidden, -1)
    return np.exp(-rel_entr(p, q).sum(1) - rel_entr(q, p).sum(1))


def terms(method: TrFedDis, batch: tuple[Tensor, Tensor, Tensor], annealed: float) -> dict[str, float]:
    """What eq. 13 adds up, each without the weight that it has in the method."""
    hidden, logits, y = (tensor.detach().numpy() for tensor in batch)
    evidence = softplus(logits)
    three = [*evidence, fused(method, *evidence)]
    return {
        "cross_entropy": -float(sum(log_softmax(each, -1)[range(len(y)), y].mean() for each in logits)),
        "evidential": float(sum(uncertain(each, y, annealed).mean() for each in three)),
        "disentangling": float(annealed * same(hidden).mean()),
    }


class Said(nn.Module):
    """Heads whose hidden layers and logits are what they are told to be, whatever the input."""

    def __init__(self, hidden: Tensor, logits: Tensor) -> None:
        super().__init__()
        self.hidden, self.logits = hidden, logits

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.hidden, self.logits


def said(scale: float = 1.0, n: int = 7, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden units (2, n, 6) and logits (2, n, 4) of two heads, float64, and labels (n,)."""
    generator = torch.Generator().manual_seed(seed)
    hidden, logits = (torch.randn(2, n, d, generator=generator, dtype=torch.float64) for d in (6, 4))
    return hidden, scale * logits, torch.randint(4, (n,), generator=generator)


def loss(method: TrFedDis, round: int, hidden: Tensor, logits: Tensor, y: Tensor) -> Tensor:
    return method.objective_of(Said(hidden, logits), round)(torch.zeros(len(y)), y)  # type: ignore[arg-type]


def normed() -> Model:
    """The model of the test federation, with BatchNorm and a second layer in its head too."""
    plain = model()
    return Model(plain.encoder, head(1, 6, 8, 3, 0.3, dropout_logits=False, norm=True, second=5), 1, 6)


def built(plain: Model) -> TwoHeads:
    module = TrFedDis().build(plain)
    assert isinstance(module, TwoHeads)
    return module


def context(module: nn.Module) -> SiloContext:
    return silos()["silo-1"].context(module)


def first_training(method: TrFedDis, module: TwoHeads, key: str = "silo") -> tuple[Payload, State]:
    """What a silo sends and keeps after its first training in a workspace, from the model that `normed` builds."""
    start = context(built(normed()))
    with seeded(key):
        down, state = method.broadcast(method.init_server(start)), method.init_silo(start)
        update, state = method.train(down, state, context(module))
    return update.payload, state
