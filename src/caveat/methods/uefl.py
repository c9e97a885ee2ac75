"""UEFL: FedAvg with a discretized encoder and local codewords for silos that stay uncertain.

Uncertainty-Based Extensible-Codebook Federated Learning in Heterogeneous Data Silos, arXiv 2402.18888,
Algorithm 1. A silo k whose MC-dropout entropy e_k exceeds (1 + gamma) min_j e_j gets new codewords, the
K-means centers of its features, which never leave it; training then continues for a few rounds.

Where the paper and the released code differ: dropout is on when uncertainty is measured (paper; off in the code); the
entropy is measured on the silo's validation inputs, without labels (both use the test set); shared codewords are
averaged over the silos that use them, weighted by use (paper; never averaged in the code); beta weights the commitment
loss (code). Our choices: features are normalized before discretization, so codewords from N(0, 1) lie among them;
tokens are split into 16 segments if the features allow it, so a codebook has enough codes; a silo's entropy must exceed
the threshold by two standard errors, because silos can exceed it by chance; silos keep local batch normalization (Li et
al., FedBN, ICLR 2021), which gives most of the gain over FedAvg; and rounds without an extension are trained, too,
because silos with similar entropy need not have converged.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import repeat
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from ..core import (
    Caution,
    ConfigurationError,
    Decision,
    Payload,
    Replies,
    Round,
    SiloContext,
    SiloId,
    State,
    Tensors,
    Update,
)
from ..core.settings import LARGE, MAX_COUNT, frozen_settings
from ..nn.codebook import Codebook, Discretised, kmeans, nearest
from ..nn.dropout import mc_dropout
from ..nn.encoders import parts
from ..training.fit import Loss
from ..training.modules import expect, in_batches, load, normalization, snapshot, split
from ..uncertainty.measures import entropy
from .fedavg import FedAvg

SEGMENTS = 16
"""Default number of segments of a token; with fewer, codebooks of the paper's size have too few codes."""

COLLAPSED, EACH = 0.1, 4
"""Share of used codewords up to which a codebook counts as collapsed, and segments per codeword expected in use."""


@frozen_settings
class UEFL(FedAvg):
    """FedAvg with codebooks that are extended at silos with high MC-dropout entropy (UEFL, arXiv 2402.18888)."""

    codewords: Annotated[int, Field(gt=1, le=65_536)] = 32
    """Number of shared codewords, and of local codewords at a silo's first extension."""
    threshold: Annotated[float, Field(ge=0, le=LARGE)] = 0.3
    """gamma: a silo is uncertain when its entropy exceeds (1 + gamma) times the reference."""
    reference: Literal["min", "mean"] = "min"
    """Reference entropy: the minimum over silos (paper) or their mean (released code)."""
    margin: Annotated[float, Field(ge=0, le=LARGE)] = 2.0
    """Number of standard errors by which a silo's entropy must exceed the threshold; paper: 0."""
    refresh: bool = True
    """Whether the threshold is recomputed after every iteration (paper); otherwise the first one is kept (code)."""
    floor: Annotated[float, Field(ge=0, le=LARGE)] = 0.01
    """Entropy in nats below which no silo is uncertain, because a ratio to a vanishing entropy never converges."""
    iterations: Annotated[int, Field(gt=0, le=1000)] = 5
    """Maximum number of iterations, including the first; 1 never extends (VQ-FedAvg, or a static codebook)."""
    extra_rounds: Annotated[int, Field(gt=0, le=MAX_COUNT)] = 5
    """Number of rounds of every iteration after the first, which has `rounds`."""
    until: Literal["certain", "end"] = "end"
    """certain: stop once no silo is uncertain (paper); end: train in all iterations, even if no codebook grows."""
    growth: Literal["add", "double"] = "add"
    """Codewords per extension: `codewords` (add), or as many as the silo already uses (double)."""
    keep: Literal["all", "newest"] = "all"
    """Local codewords accumulate (all; paper), or a new extension replaces them (newest; released code)."""
    segments: Literal[1, 2, 4, 8, 16, 32] | None = None
    """Number of equal segments of a token, each replaced by a codeword; default: 16 if that divides its features, else
    1 (paper: 1, and 4 for CIFAR-100)."""
    commitment: Annotated[float, Field(ge=0, le=LARGE)] = 0.25
    """beta: weight of the commitment loss of the encoder."""
    quantisation: Annotated[float, Field(ge=0, le=LARGE)] = 1.0
    """Weight of the codebook loss relative to the cross-entropy."""
    normalize: bool = True
    """Whether each token is normalized before discretization; paper: no."""
    extension: Literal["kmeans", "normal"] = "kmeans"
    """Initial local codewords: K-means centers of the silo's features (paper), or samples from N(0, 1)."""
    domains: tuple[str, ...] = ()
    """Oracle: names of all domains of the data; the silos of a domain share `codewords` codewords and use no others
    (the paper's VQ-FedAvg, Figure 3 (a)). UEFL does not know domains; `iterations` must be 1.
    """
    masks: Literal["shared", "inputs"] = "shared"
    """Masks of an MC dropout pass: shared by all inputs (each pass is one network, and silos are compared with the same
    ones), or drawn per input, as torch's dropout does: a prediction then depends on the inputs before it.
    """
    own_norm: bool = True
    """Whether silos keep their batch normalization, as in FedBN, and send it for silos that join later (paper: global
    batch normalization)."""

    def __post_init__(self) -> None:
        if self.domains and self.iterations > 1:
            raise ConfigurationError(
                f"method.iterations = {self.iterations} would extend the codebooks, but method.domains fixes them; "
                "set method.iterations = 1",
                "method.iterations",
            )
        if len(set(self.domains)) < len(self.domains):
            raise ConfigurationError(f"method.domains = {list(self.domains)} contains a name twice", "method.domains")

    def build(self, model: nn.Module) -> nn.Module:
        reach = self.codewords * (self.iterations if self.growth == "add" else 2 ** (self.iterations - 1))
        model = parts(model, self.name)
        segments = self.segments or (1 if model.features % SEGMENTS else SEGMENTS)
        if model.features % segments:
            raise ConfigurationError(
                f"method.segments = {segments} does not divide the {model.features} features of the model's tokens"
            )
        codebook = Codebook(self.shared, reach - self.codewords, model.features, segments, self.commitment)
        normalized = nn.Sequential(model.encoder, nn.LayerNorm(model.features, elementwise_affine=False))
        return Discretised(normalized if self.normalize else model.encoder, codebook, model.head)

    @property
    def shared(self) -> int:
        """Number of shared codewords, over all domains."""
        return self.codewords * max(1, len(self.domains))

    def private(self, module: nn.Module) -> frozenset[str]:
        return frozenset({"codebook.private", "codebook.used"})

    def kept(self, module: nn.Module) -> frozenset[str]:
        """Return the names of the tensors that a silo keeps, whatever is broadcast."""
        return self.private(module) | (normalization(module) if self.own_norm else frozenset())

    def fitted(self, module: nn.Module) -> frozenset[str]:
        return self.kept(module)

    def init_server(self, context: SiloContext) -> State:
        undecided = {"threshold": 0.0, "lowest": 0.0, "highest": 0.0, "surest": torch.inf, "iteration": 0.0}
        return super().init_server(context) | {
            "entropy": {name: torch.tensor(value) for name, value in undecided.items()}
        }

    def init_silo(self, context: SiloContext) -> State:
        undecided = {"atleast": torch.tensor(0.0), "due": torch.tensor(False)}
        return super().init_silo(context) | {"entropy": undecided} | self.codebook_of(context)

    def codebook_of(self, context: SiloContext) -> State:
        """Return the state with the position of the first codeword of a silo's domain; empty without domains."""
        if not self.domains:
            return {}
        if context.domain not in self.domains:
            raise ConfigurationError(
                f"silo {context.id!r} belongs to domain {context.domain!r}; expected one of method.domains = "
                f"{list(self.domains)}",
                "method.domains",
            )
        return {"codebook": {"first": torch.tensor(self.codewords * self.domains.index(context.domain))}}

    def schedule(self) -> Iterable[Round]:
        train = Round(self.broadcast, self.train, self.aggregate, self.unfinished, name="train")
        score = Round(
            self.broadcast, self.score, self.compare, self.unfinished, everyone=True, trains=False, name="score"
        )
        for iteration in range(self.iterations):
            yield from repeat(train, self.extra_rounds if iteration else self.rounds)
            yield score

    def unfinished(self, server: State) -> bool:
        """Return whether any silo exceeded the threshold at the last comparison, or all rounds are trained anyway."""
        return self.until == "end" or bool(server["entropy"]["surest"] > server["entropy"]["threshold"])

    def broadcast(self, server: State) -> Payload:
        return {"model": server["model"], "entropy": {"threshold": server["entropy"]["threshold"]}}

    # Training, with the extension of the codebook if it is due.

    def train(self, down: Payload, state: State, context: SiloContext) -> tuple[Update, State]:
        module = self.workspace(down, state, context)
        if state["entropy"]["due"] and state["entropy"]["atleast"] > down["entropy"]["threshold"]:
            self.extend(module, context)
        use = torch.zeros(self.shared + len(module.codebook.private), device=context.device)
        self.training.fit(context, self.quantised(module, use))
        tensors = snapshot(module)
        shared, _ = split(tensors, self.private(module))
        _, own = split(tensors, self.kept(module))
        settled = state["entropy"] | {"due": torch.tensor(False)}
        of_all = {"shared": use[: self.shared].clone()}
        return Update({"model": shared, "use": of_all}, context.examples), state | {"model": own, "entropy": settled}

    def quantised(self, module: Discretised, use: Tensor) -> Loss:
        """Return the loss: cross-entropy on codewords plus codebook loss. It adds the use of each codeword to `use`."""

        def loss(x: Tensor, y: Tensor) -> Tensor:
            quantised = module.codebook.quantise(module.encoder(x))
            words = quantised.words.flatten() + module.codebook.first
            use.index_add_(0, words, torch.ones_like(words, dtype=use.dtype))  # bincount synchronizes the device
            label = self.training.cross_entropy(module.head(quantised.tokens), y)
            return label + self.quantisation * quantised.loss

        return loss

    def extend(self, module: Discretised, context: SiloContext) -> None:
        """Add local codewords to the workspace, from the features of the silo's training data."""
        codebook = module.codebook
        grown = self.codewords if self.growth == "add" else self.codewords + int(codebook.used)
        if self.keep == "newest":
            codebook.used.zero_()
        if self.extension == "kmeans":
            seed = int(torch.randint(2**31, ()))
            centers = kmeans(self.vectors(module, context.train.x), grown, seed)
        else:
            centers = torch.randn(grown, codebook.private.shape[1])
        codebook.extend(centers)

    def aggregate(self, server: State, replies: Replies, context: SiloContext) -> State:
        model = replies.mean("model")
        # A silo that never used a codeword has no weight in its mean.
        use = replies.stack("use", "shared").double()[:, :, None]
        words = (use * replies.stack("model", "codebook.shared").double()).sum(0) / use.sum(0).clamp_min(1)
        kept = server["model"]["codebook.shared"]
        model["codebook.shared"] = torch.where(use.sum(0) > 0, words.to(kept.dtype), kept)
        return server | {"model": model}

    # Uncertainty: every silo measures its entropy, and the server compares the silos' entropies.

    def sampled(self, module: nn.Module, x: Tensor) -> Tensor:
        return mc_dropout(module, x, self.mc_samples, shared=self.masks == "shared")

    def score(self, down: Payload, state: State, context: SiloContext) -> tuple[Update, State]:
        """Send e_k, the mean entropy in nats of MC-dropout predictions on the validation inputs, and its lower bound,
        `margin` standard errors below.

        The calibration split is not used, because guarantees are tested there and must not select the model.
        """
        entropies = self.predict(down, state, context, context.validation.x).total
        own = entropies.mean()
        error = entropies.std() / len(entropies) ** 0.5 if len(entropies) > 1 else own
        atleast = (own - self.margin * error).float()
        update = Update({"entropy": {"own": own.float(), "atleast": atleast}}, context.examples)
        return update, state | {"entropy": {"atleast": atleast, "due": torch.tensor(True)}}

    def compare(self, server: State, replies: Replies, context: SiloContext) -> State:
        """Set the threshold of eq. 7, with a floor above 0, and keep the extremes of the silos' entropies."""
        e, atleast = replies.stack("entropy", "own"), replies.stack("entropy", "atleast")
        before = server["entropy"]
        reference = e.min() if self.reference == "min" else e.mean()
        threshold = ((1 + self.threshold) * reference).clamp_min(self.floor)
        if before["iteration"] > 0 and not self.refresh:
            threshold = before["threshold"]
        after = {"threshold": threshold, "lowest": e.min(), "highest": e.max(), "surest": atleast.max()}
        return server | {"entropy": after | {"iteration": before["iteration"] + 1}}

    def milestone(self, server: State) -> dict[str, float]:
        if not server["entropy"]["iteration"]:
            return {}
        return {name: float(value) for name, value in server["entropy"].items()}

    def vectors(self, module: Discretised, x: Tensor) -> Tensor:
        """Return the features (M, D / segments) of the segments of inputs."""
        module.eval()
        return module.codebook.cut(in_batches(module.encoder, x))

    def loaded(self, down: Payload, state: State, context: SiloContext) -> Iterator[tuple[Decision, nn.Module]]:
        yield self.models[0], self.workspace(down, state, context)

    def workspace(self, down: Payload, state: State, context: SiloContext) -> Discretised:
        """Load the silo's model: the broadcast plus its local codewords."""
        module = expect(Discretised, load(context.module, down["model"] | state["model"]))
        if "codebook" in state:
            module.codebook.first, module.codebook.reach = int(state["codebook"]["first"]), self.codewords
        return module

    # For reports.

    def describe(self, down: Payload, state: State, context: SiloContext, x: Tensor) -> Tensors:
        """Return how often each codeword is used, up to the capacity, and the number of local codewords."""
        module = self.workspace(down, state, context)
        codebook = module.codebook
        index = nearest(self.vectors(module, x), codebook.words().detach()) + codebook.first
        room = self.shared + len(codebook.private)
        return {"use": torch.bincount(index, minlength=room).double(), "own": codebook.used.double()}

    def features(self, down: Payload, state: State, context: SiloContext, x: Tensor) -> Tensors:
        """Return the tokens before ("encoder") and after ("discretised") they are replaced by codewords."""
        module = self.workspace(down, state, context).eval()
        with torch.no_grad():
            tokens = module.encoder(x)
            return {"encoder": tokens, "discretised": module.codebook(tokens)}

    def cautions(self, silos: Mapping[SiloId, Mapping[str, Tensor]], classes: int) -> Iterator[Caution]:
        """Warn of a collapsed codebook: hardly any codewords are used, including the silos' own.

        With one codeword per class there is no warning, because a good encoder may need no more.
        """
        use = torch.stack([sums["use"] for sums in silos.values()])
        shared, own = use[:, : self.shared].sum(0), use[:, self.shared :]
        used = int((shared > 0).sum() + (own > 0).sum())
        words = self.shared + int(sum(sums["own"] for sums in silos.values()))
        if used < classes and used <= COLLAPSED * min(words, float(use.sum()) / EACH):
            yield Caution(
                "unused_codewords",
                f"{used} of {words} codewords are used on the validation splits, for {classes} classes, so the head "
                "sees similar tokens for inputs of different classes.",
                "Try a lower training.lr, method.normalize = true, or fewer method.codewords.",
            )

    def summarize(self, sums: Mapping[str, Tensor]) -> dict[str, object]:
        use, own = sums["use"], int(sums["own"])
        return {
            "codewords": {"shared": self.shared, "private": own},
            "perplexity": float(entropy(use / use.sum()).exp()),
            "codeword_use": [int(n) for n in use[: self.shared + own]],
        }
