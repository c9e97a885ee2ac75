"""TrFedDis: a global and a local head on a shared encoder, with evidential fusion of their opinions.

Wang et al., Trusted Federated Disentangling network for non-IID domain feature, arXiv 2301.12798, 2023; eq. 1 to 13.
BatchNorm (as in FedBN) and the local head stay at the silo. Both heads output evidence for each class.

Where the paper and the released code differ or are silent: the disentangling loss is symmetric and compares the units
of the heads' first hidden layers (code), after their activation (code for digits), per example and summed over hidden
units (eq. 3; the code's mean over them has almost no gradient); the global head is averaged (paper, and code for
digits); both annealed weights grow linearly over the rounds, from 0 to a step below 1 (code). Silos are weighted by n_k
as in FedAvg, which equals the code's uniform mean for silos of equal size. The local head is initialized independently:
two equal heads would never separate, because the divergence has no gradient there. Our choices: the conflict of the
opinions is a score, because Dempster's rule ignores it; other fusion rules; and a silo without a local head predicts
with the global head, which equals fusion with the vacuous opinion by Dempster's rule. The prior evidence is 1 for each
class, as in the paper, but 8 for all bars of a quantity together, whatever their number: otherwise, predictions and
penalties over many bars would be mostly those of the prior. Evidence in opinions is then in units of a bar's prior
evidence, so all fusion rules stay the same. Predictions take one pass without dropout, whatever `mc_samples` is. A silo
that has not trained yet predicts with the initial BatchNorm statistics, as in FedBN, and should take part in a round
before it is used.
"""

import math
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from ..core import Answers, ConfigurationError, Decision, Payload, Prediction, SiloContext, State, Update
from ..core.settings import LARGE, MAX_COUNT, frozen_settings
from ..nn.encoders import Model, parts
from ..nn.posterior_network import uncertain_cross_entropy
from ..training.fit import LABELS, Loss
from ..training.modules import expect, in_batches, load, reset, snapshot, split
from ..uncertainty import opinions
from ..uncertainty.binned_distributions import FEWEST
from ..uncertainty.dirichlet import kl_to_symmetric
from .fedbn import FedBN

TRUST = 0.9
"""Default trust in each head if opinions are discounted."""


class TwoHeads(nn.Module):
    """Global encoder and head, and a local head."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.common, self.own = model, deepcopy(model.head)
        reset(self.own)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the hidden units and the logits of both heads, each (2, N, ...), the global head first."""
        tokens, heads = self.common.encoder(x), (self.common.head, self.own)
        hidden = [head.hidden(tokens) for head in heads]
        return torch.stack(hidden), torch.stack([head.output(h) for head, h in zip(heads, hidden, strict=True)])


@frozen_settings
class TrFedDis(FedBN):
    """Evidential fusion of disentangled global and local heads (Wang et al., 2023)."""

    models: ClassVar[tuple[Decision, ...]] = (Decision.GLOBAL, Decision.LOCAL)
    counts_classes: ClassVar[bool] = True
    scores: ClassVar[tuple[str, ...]] = (
        "epistemic", "aleatoric", "conflict", "dirichlet_entropy", "vacuity", "log_evidence", "total",
    )  # fmt: skip

    disentangling: Annotated[float, Field(ge=0, le=LARGE)] = 1.0
    """Weight of the disentangling loss of the heads' hidden layers (eq. 2), after annealing."""
    evidential: Annotated[float, Field(ge=0, le=LARGE)] = 1.0
    """Weight of the evidential loss of both heads and of the fused opinion (eq. 12)."""
    cross_entropy: Annotated[float, Field(ge=0, le=LARGE)] = 1.0
    """Weight of both heads' cross-entropy (eq. 9)."""
    anneal_rounds: Annotated[int, Field(gt=0, le=MAX_COUNT)] | None = None
    """Number of rounds over which the weights of eq. 2 and of evidence for wrong classes (eq. 11) grow from 0 to 1;
    default: all rounds."""
    fusion: Literal["dempster", "additive", "averaging", "discounted"] = "dempster"
    """Fusion rule of two opinions: dempster (independent; paper), additive (disjoint data), averaging (the same data),
    or discounted (dempster after discounting both by `trust`)."""
    trust: Annotated[float, Field(gt=0, le=1)] | None = None
    """discounted: trust in each head, above 0 and at most 1 (0.9 by default)."""

    def __post_init__(self) -> None:
        if self.training.optimizer_state == "average":
            self.training.leave(
                "trfeddis", "a silo trains two heads at once; 'keep' keeps the state of both", "optimizer_state"
            )
        self.training.leave("trfeddis", "its losses also use evidence", *LABELS)
        if self.trust is not None and self.fusion != "discounted":
            raise ConfigurationError(
                f"method.trust = {self.trust} has no effect with method.fusion = {self.fusion!r}", "method.trust"
            )
        if not (self.evidential or self.cross_entropy):
            raise ConfigurationError(
                "with method.evidential = 0 and method.cross_entropy = 0, nothing is learned from labels; set at least "
                "one of them above 0",
                "method.evidential",
            )

    @property
    def follows_rounds(self) -> str:
        return super().follows_rounds or ("" if self.anneal_rounds else "method.anneal_rounds, which is not set,")

    def build(self, model: nn.Module) -> nn.Module:
        return TwoHeads(parts(model, self.name))

    def private(self, module: nn.Module) -> frozenset[str]:
        """Return the names of the global parts' BatchNorm tensors, which stay at the silo like the local head."""
        return super().private(module.common if isinstance(module, TwoHeads) else module)

    def fitted(self, module: nn.Module) -> frozenset[str]:
        """Return the names of the tensors of the local head, and of the private tensors of the global parts."""
        own = expect(TwoHeads, module).own
        kept = {f"common.{name}" for name in self.private(module)}
        return frozenset(kept | {f"own.{name}" for name in own.state_dict()})

    def remark(self, module: nn.Module) -> str:
        return ""  # the method differs by its local heads

    def init_server(self, context: SiloContext) -> State:
        return super().init_server(replace(context, module=two_heads(context).common))

    def init_silo(self, context: SiloContext) -> State:
        return super().init_silo(replace(context, module=two_heads(context).common))

    def train(self, down: Payload, state: State, context: SiloContext) -> tuple[Update, State]:
        module = self.load(down, state, context)
        if "own" not in state:
            reset(module.own)
        self.training.fit(context, self.objective_of(module, context.round))
        shared, kept = split(snapshot(module.common), self.private(module))
        return Update({"model": shared}, context.examples), state | {"model": kept, "own": snapshot(module.own)}

    def objective_of(self, module: TwoHeads, round: int) -> Loss:
        """Return the loss of eq. 13, with the annealed weights of a round, as a function of inputs and labels."""
        annealed, prior = min(1.0, round / (self.anneal_rounds or self.rounds)), self.prior

        def loss(x: Tensor, y: Tensor) -> Tensor:
            hidden, logits = module(x)
            evidence = opinions.softplus_log_evidence(logits) - math.log(prior)
            value = self.cross_entropy * sum(F.cross_entropy(each, y) for each in logits)
            if self.evidential:
                # All three losses at once, because the time for small tensors depends on the number of operators.
                three = torch.stack((*evidence, self.fuse(evidence)))
                for each in evidential_loss(three.flatten(0, 1), y.repeat(3), annealed, prior).view(3, -1):
                    value = value + self.evidential * each.mean()
            return value + self.disentangling * annealed * likeness(hidden).mean()

        return loss

    @property
    def prior(self) -> float:
        """The prior evidence of each class, or of each bar of a quantity."""
        target = getattr(self.training, "target", None)
        return 1.0 if target is None else min(1.0, FEWEST / len(target.means))

    def fuse(self, evidence: Tensor | Sequence[Tensor]) -> Tensor:
        """Fuse the log-evidence of two opinions, relative to the prior evidence, into that of one opinion, (N, K)."""
        if self.fusion == "discounted":
            return opinions.discounted(evidence[0], evidence[1], self.trust or TRUST)
        return opinions.FUSIONS[self.fusion](evidence[0], evidence[1])

    def answer(self, down: Payload, state: State, context: SiloContext, x: Tensor) -> Answers:
        module = self.load(down, state, context).eval()
        logits = in_batches(lambda part: module(part)[1], x, dim=1).double()
        ours, own = opinions.softplus_log_evidence(logits) - math.log(self.prior)
        if "own" not in state:
            return {Decision.GLOBAL: as_prediction(ours, Decision.GLOBAL, torch.zeros_like(ours[:, 0]), self.prior)}
        conflict = opinions.conflict(ours, own)
        return {
            Decision.GLOBAL: as_prediction(ours, Decision.GLOBAL, conflict, self.prior),
            Decision.LOCAL: as_prediction(self.fuse((ours, own)), Decision.LOCAL, conflict, self.prior),
        }

    def loaded(self, down: Payload, state: State, context: SiloContext) -> Iterator[tuple[Decision, nn.Module]]:
        yield Decision.LOCAL if "own" in state else Decision.GLOBAL, self.load(down, state, context)

    def load(self, down: Payload, state: State, context: SiloContext) -> TwoHeads:
        """Load the broadcast and the silo's state into its workspace.

        If the silo has no local head yet, the weights of that head are undefined.
        """
        module = two_heads(context)
        load(module.common, down["model"] | state["model"])
        if "own" in state:
            load(module.own, state["own"])
        return module


def two_heads(context: SiloContext) -> TwoHeads:
    """Return the silo's workspace, built by `TrFedDis.build`."""
    return expect(TwoHeads, context.module)


def likeness(hidden: Tensor) -> Tensor:
    """Map hidden units (2, N, H) to exp(-(KL(P||Q) + KL(Q||P))) (N,), with P and Q their softmax (eq. 2, 3).

    It is 1 for equal units, where it has no gradient.
    """
    p, q = hidden.log_softmax(-1)
    return torch.exp(-((p.exp() - q.exp()) * (p - q)).sum(-1))


def evidential_loss(log_evidence: Tensor, y: Tensor, annealed: float, prior: float = 1.0) -> Tensor:
    """Return eq. 12 (N,) of evidence (N, K) relative to that of the prior: the expected cross-entropy plus the penalty
    on evidence for wrong classes."""
    log_alpha = opinions.log_alpha(log_evidence) + math.log(prior)
    wrong = log_alpha.scatter(1, y[:, None], math.log(prior))  # without the evidence for the label: alpha~ of eq. 11
    return uncertain_cross_entropy(log_alpha, y) + annealed * kl_to_symmetric(wrong, prior).to(log_alpha.dtype)


def as_prediction(log_evidence: Tensor, whose: Decision, conflict: Tensor, prior: float = 1.0) -> Prediction:
    """Return the prediction of an opinion (N, K); scores are its total evidence, its vacuity and a conflict (N,)."""
    total, alpha = log_evidence.logsumexp(-1) + math.log(prior), opinions.log_alpha(log_evidence) + math.log(prior)
    found = Prediction.from_dirichlet(alpha, whose, total)
    vacuity = found.uncertainty["vacuity"] * prior
    return replace(found, uncertainty=found.uncertainty | {"vacuity": vacuity, "conflict": conflict})
