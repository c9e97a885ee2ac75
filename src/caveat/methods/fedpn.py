"""FedPN: posterior networks, whose evidence decides between the local and the global model for every input.

Kotelevskii et al., Dirichlet-Based Uncertainty Quantification for Personalized Federated Learning with Improved
Posterior Networks, IJCAI 2024, Algorithm 1 and appendix A.3. First, encoder, head and one density per class are
trained together; then every silo freezes the encoder and trains a local head and local densities. The switch between
the two models is in `caveat.wrappers.choice_policies`.

Where the paper and the released code differ: the encoder is averaged, too (code; Algorithm 1 omits it), weighted by
n_k, and the density of a class is averaged over the silos that have the class, weighted by n_kc; training uses the
density of the true class (code), and prediction the mixture over classes, weighted by the silo's class frequencies or
equally (both). Eq. 8 stops the gradient to the parameters of the densities (code); stopping it before the embedding,
too, is an option. Adam's moments are averaged and sent with the model (code; the paper uses SGD), so that silos with
two or three classes do not drift apart. Our choices, each with the paper's behaviour as an option: embeddings of images
are normalized, because -log p(z) could be lowered by shrinking them all to a point; -log p(z) trains the densities
only; and training uses a minimum evidence for every input, because the head learns nothing from an input without
evidence (`floor`). A small silo trains its own parts for a minimum of steps (`personal_steps`): after a few steps,
densities of normalized embeddings are still below the minimum evidence everywhere, and predictions are close to
uniform.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import repeat
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from ..core import (
    Answers,
    Caution,
    Data,
    Decision,
    Method,
    Payload,
    Prediction,
    Replies,
    Round,
    SiloContext,
    SiloId,
    State,
    Tensors,
    Update,
    same_names,
)
from ..core.settings import LARGE, MAX_COUNT, frozen_settings
from ..core.text import decimal
from ..nn.encoders import parts
from ..nn.posterior_network import (
    Posterior,
    PosteriorNetwork,
    RadialFlows,
    embedding,
    log_alpha,
    log_evidence,
    uncertain_cross_entropy,
)
from ..training.fit import LABELS, Loss, Training
from ..training.modules import expect, in_batches, load, reset, snapshot
from ..training.optimizers import Moments
from ..uncertainty.dirichlet import NO_EVIDENCE, Dirichlet

DENSITIES = "posterior.flows."
"""Part of the names of the tensors of the densities, and of their moments."""
EXAMINED = 500
"""Maximum number of inputs of a split that `describe` examines."""
COLLAPSED, FEWEST = 0.1, 20
"""Spread of embeddings below which they count as collapsed (the densities start from N(0, I), and embeddings of trained
encoders have a spread above 1), and the minimum number of inputs for a warning."""


@frozen_settings
class FedPN(Method):
    """Posterior networks that switch between the local and the global model (FedPN, IJCAI 2024)."""

    models: ClassVar[tuple[Decision, ...]] = (Decision.GLOBAL, Decision.LOCAL)
    counts_classes: ClassVar[bool] = True
    policy: ClassVar[str] = "switch"
    scores: ClassVar[tuple[str, ...]] = (*Method.scores, "vacuity", "log_evidence", "dirichlet_entropy")

    rounds: Annotated[int, Field(gt=0, le=MAX_COUNT)] = 20
    """Rounds of training."""
    training: Training = Training()
    """Local training of a silo in one round."""
    layers: Annotated[int, Field(gt=0, le=10_000)] = 30
    """Number of radial flow layers per class density."""
    gamma: Annotated[float, Field(ge=0, le=LARGE)] = 0.01
    """Weight of -log p(z), the negative log-likelihood of embeddings."""
    entropy: Annotated[float, Field(ge=0, le=LARGE)] = 0.0
    """lambda: weight of the entropy of the Dirichlet distribution, which keeps evidence small."""
    stop_gradient: Literal["densities", "embedding", "none"] = "densities"
    """The parts that get no gradient of the expected cross-entropy through the evidence: densities (eq. 8), embedding
    (and densities), or none, which is the loss of NatPN (eq. 6) if gamma is 0."""
    floor: float = 0.0
    """Minimum log-evidence of an input in training, because the head learns nothing from inputs that the densities do
    not cover yet. Paper: no minimum, to which -50 comes close."""
    density_trains_encoder: bool = False
    """Whether -log p(z) trains the encoder, too (released code), or the densities only."""
    density_rounds: Annotated[int, Field(ge=0, le=MAX_COUNT)] = 0
    """Number of rounds after `rounds` that train the densities only, as in NatPN. Paper: none."""
    moments: bool = True
    """adam, adamw, and sgd with momentum: whether a round starts from the mean of the silos' moments (released code),
    which keeps silos with different classes from drifting apart; otherwise it starts from zero."""
    normalize: bool | None = None
    """Whether each embedding is normalized; paper: no. By default only after convolutions, because normalization hides
    the norm of an embedding, which distinguishes unfamiliar rows of a table."""
    personal_epochs: Annotated[int, Field(gt=0, le=MAX_COUNT)] = 10
    """Epochs with Adam in which a silo trains its local head and densities, with the encoder frozen."""
    personal_steps: Annotated[int, Field(ge=0, le=MAX_COUNT)] = 300
    """Minimum number of steps of the training of local parts; a small silo trains for more epochs. Paper: none."""
    personal_lr: Annotated[float, Field(gt=0, le=LARGE)] = 0.001
    """Learning rate of the training of local parts, and of `density_rounds`, which have one epoch each."""

    def __post_init__(self) -> None:
        self.training.leave("fedpn", "method.moments says whether moments are shared", "optimizer_state")
        self.training.leave("fedpn", "its loss is the expected cross-entropy", *LABELS)

    def build(self, model: nn.Module) -> nn.Module:
        model = parts(model, self.name)
        convolutions = any(isinstance(part, nn.Conv2d) for part in model.encoder.modules())
        return PosteriorNetwork(model, self.layers, convolutions if self.normalize is None else self.normalize)

    def init_server(self, context: SiloContext) -> State:
        return {"model": snapshot(context.module), "moments": {}}

    def schedule(self) -> Iterable[Round]:
        yield from repeat(Round(self.resume, self.train, self.aggregate, name="train"), self.rounds)
        densities = Round(
            self.broadcast,
            self.train_densities,
            self.aggregate,
            trains=False,
            origin=same_names,
            name="train_densities",
        )
        yield from repeat(densities, self.density_rounds)
        yield Round(
            self.broadcast, self.personalise, everyone=True, trains=False, linear="examples", name="personalise"
        )

    def fitted(self, module: nn.Module) -> frozenset[str]:
        """Return no names, because local parts are trained after the training rounds."""
        return frozenset()

    def broadcast(self, server: State) -> Payload:
        return {"model": server["model"]}

    # Stage 1: all parts are federated.

    def resume(self, server: State) -> Payload:
        return self.broadcast(server) | {"moments": server["moments"]}

    def train(self, down: Payload, state: State, context: SiloContext) -> tuple[Update, State]:
        network = self.network(down, context)
        remembers = self.training.optimizer != "sgd" or self.training.momentum > 0
        moments = Moments(down["moments"]) if self.moments and remembers else None
        self.training.fit(context, self.objective(network.posterior, network.encoder), moments=moments)
        update = self.update(snapshot(network), network, context)
        if moments is not None:
            update.payload["moments"] = moments.tensors
        return update, state

    def train_densities(self, down: Payload, state: State, context: SiloContext) -> tuple[Update, State]:
        network = self.network(down, context)
        tokens = in_batches(network.eval().encoder, context.train.x)
        flows = network.posterior.flows
        self.of_its_own(1).fit(
            self.embedded(context, tokens, flows), lambda z, y: -flows.log_prob_of(embedding(z), y).mean()
        )
        trained = {name: tensor for name, tensor in snapshot(network).items() if name.startswith(DENSITIES)}
        return self.update(trained, network, context), state

    def update(self, trained: Tensors, network: PosteriorNetwork, context: SiloContext) -> Update:
        """Return the update that a silo sends: trained tensors, and its number of training examples of each class."""
        counts = torch.bincount(context.train.y, minlength=network.posterior.classes)
        return Update({"model": trained, "classes": {"examples": counts}}, context.examples)

    def embedded(self, context: SiloContext, tokens: Tensor, module: nn.Module) -> SiloContext:
        """Return a context with the encoder's features as training inputs, and the rest of the model as workspace."""
        data = Data(tokens, context.train.y)
        return SiloContext(context.id, data, context.validation, context.calibration, module, round=context.round)

    def objective(self, posterior: Posterior, encoder: nn.Module) -> Loss:
        """Return the loss of eq. 8, as a function of inputs and labels."""

        def loss(x: Tensor, y: Tensor) -> Tensor:
            tokens = encoder(x)
            z = embedding(tokens)
            density, evidence = self.densities(posterior.flows, z, y)
            counted = log_evidence(evidence, z.shape[1])
            counted = counted + (counted.clamp_min(self.floor) - counted).detach()
            alpha = log_alpha(posterior.head(tokens).log_softmax(-1), counted)
            value = uncertain_cross_entropy(alpha, y) - self.gamma * density
            if self.entropy:
                value = value - self.entropy * Dirichlet(alpha).dirichlet_entropy
            return value.mean()

        return loss

    def densities(self, flows: RadialFlows, z: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return log p(z) for the likelihood and the expected cross-entropy: equal values, different gradients."""
        learning = z if self.density_trains_encoder else z.detach()
        if self.stop_gradient == "densities":
            return flows.log_prob_twice(learning, z, y)
        if self.stop_gradient == "embedding":
            density = flows.log_prob_of(learning, y)
            return density, density.detach()
        return flows.log_prob_of(learning, y), flows.log_prob_of(z, y)

    def aggregate(self, server: State, replies: Replies, context: SiloContext) -> State:
        averaged = {"model": self.owned(server, replies, "model")}
        if all("moments" in update.payload for update in replies.updates.values()):
            averaged["moments"] = self.owned(server, replies, "moments")
        return server | averaged

    def owned(self, server: State, replies: Replies, group: str) -> Tensors:
        """Return the mean of a group over silos; for tensors of the densities, over the silos that have the class."""
        found = server[group] | replies.mean(group)
        examples = replies.stack("classes", "examples").double()
        for name, mean in found.items():
            if DENSITIES not in name or not mean.ndim:
                continue
            # A silo without examples of a class has not trained its density.
            of_silos = replies.stack(group, name).double()
            weight = examples.view(*examples.shape, *[1] * (of_silos.ndim - 2))
            owners = (weight * of_silos).sum(0) / weight.sum(0).clamp_min(1)
            kept = server[group].get(name, mean)
            found[name] = torch.where(weight.sum(0) > 0, owners.to(mean.dtype), kept)
        return found

    # Stage 2: local head and local densities.

    def personalise(self, down: Payload, state: State, context: SiloContext) -> tuple[Update, State]:
        network = self.network(down, context)
        own, tokens = network.posterior, in_batches(network.eval().encoder, context.train.x)
        reset(own)
        epochs = math.ceil(self.personal_steps * self.training.batch_size / context.examples)
        self.of_its_own(max(self.personal_epochs, epochs)).fit(
            self.embedded(context, tokens, own), self.objective(own, nn.Identity())
        )
        shares = torch.bincount(context.train.y, minlength=own.classes).double() / context.examples
        return Update({}, context.examples), state | {"own": snapshot(own), "classes": {"shares": shares}}

    def of_its_own(self, epochs: int) -> Training:
        """Return the training of the parts after the frozen encoder, with Adam, whatever the optimizer of stage 1."""
        return Training(local_epochs=epochs, lr=self.personal_lr, batch_size=self.training.batch_size)

    # Prediction: both models share one pass of the encoder.

    def loaded(self, down: Payload, state: State, context: SiloContext) -> Iterator[tuple[Decision, nn.Module]]:
        network = self.network(down, context)
        yield Decision.GLOBAL, network
        if "own" in state:
            load(network.posterior, state["own"])
            yield Decision.LOCAL, network

    def answer(self, down: Payload, state: State, context: SiloContext, x: Tensor) -> Answers:
        network = self.network(down, context)
        posterior, tokens = network.posterior, in_batches(network.eval().encoder, x)
        uniform = torch.full((posterior.classes,), 1 / posterior.classes)  # `ask` expects it on the CPU
        answers = {Decision.GLOBAL: self.ask(posterior, tokens, uniform, Decision.GLOBAL)}
        if "own" in state:
            load(posterior, state["own"])
            answers[Decision.LOCAL] = self.ask(posterior, tokens, state["classes"]["shares"], Decision.LOCAL)
        return answers

    def ask(self, posterior: Posterior, tokens: Tensor, shares: Tensor, whose: Decision) -> Prediction:
        log_prior = shares.cpu().log()

        def both(part: Tensor) -> Tensor:
            log_probs, evidence = posterior(part, log_prior)
            return torch.cat([log_probs, evidence[:, None]], 1)

        found = in_batches(both, tokens).double()
        log_probs, evidence = found[:, :-1], found[:, -1]
        return Prediction.from_dirichlet(log_alpha(log_probs, evidence), whose, evidence)

    # For reports.

    def describe(self, down: Payload, state: State, context: SiloContext, x: Tensor) -> Tensors:
        """Return the number of examined inputs, the sum of the squared distances of their embeddings from the mean, and
        the number of inputs to which the global model gives hardly any evidence."""
        network = self.network(down, context)
        part = x[torch.arange(count := min(len(x), EXAMINED), device=x.device) * len(x) // max(count, 1)]
        tokens = in_batches(network.eval().encoder, part)
        z = embedding(tokens).double()
        uniform = torch.full((network.posterior.classes,), 1 / network.posterior.classes)
        vacuity = self.ask(network.posterior, tokens, uniform, Decision.GLOBAL).uncertainty["vacuity"]
        return {
            "inputs": torch.tensor(float(count)),
            "apart": (z - z.mean(0)).square().sum().cpu(),
            "no_evidence": (vacuity > NO_EVIDENCE).double().sum().cpu(),
        }

    def summarize(self, sums: Mapping[str, Tensor]) -> dict[str, object]:
        """Return the spread of embeddings, and the share of inputs with hardly any evidence."""
        return {"embedding_spread": spread(sums), "no_evidence": float(sums["no_evidence"] / sums["inputs"])}

    def cautions(self, silos: Mapping[SiloId, Mapping[str, Tensor]], classes: int) -> Iterator[Caution]:
        """Warn of collapsed embeddings: inputs of a silo have almost the same embedding."""
        names = ("inputs", "apart")
        total = {name: torch.stack([sums[name] for sums in silos.values()]).sum(0) for name in names}
        if total["inputs"] >= FEWEST and spread(total) < COLLAPSED:
            yield Caution(
                "collapsed_embeddings",
                f"Embeddings of a silo's validation inputs hardly differ: their root mean square distance from the "
                f"silo's mean is {decimal(spread(total))}, so the head and the densities see similar inputs of "
                "different classes.",
                "Try method.density_trains_encoder = false, method.normalize = true, or a lower training.lr.",
            )

    def network(self, down: Payload, context: SiloContext) -> PosteriorNetwork:
        """Load the global model into the silo's workspace."""
        return expect(PosteriorNetwork, load(context.module, down["model"]))


def spread(sums: Mapping[str, Tensor]) -> float:
    """Return the root mean square distance of embeddings from their silo's mean."""
    return float((sums["apart"] / sums["inputs"]).sqrt())
