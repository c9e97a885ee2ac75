"""FedSR: a stochastic representation, regularized to contain little except what separates the classes.

Nguyen et al., FedSR: A Simple and Effective Domain Generalization Method for Federated Learning, NeurIPS 2022. The
encoder outputs the mean and standard deviation of a Gaussian representation z; a sample of z is classified by a linear
layer. The loss is the cross-entropy plus the norm of z (L2R) plus the divergence of its Gaussian from a learned
Gaussian of the class, r(z|y) (CMI). A prediction is the mean over `mc_samples` samples.

Where the paper and the released code differ or are silent: r(z|y) and the scale C of z in CMI stay at the silo (code; C
is not in the paper); silos are weighted by n_k as in FedAvg (code: uniform, with equal numbers of steps). Our choices:
a linear layer after the first hidden layer of the head outputs mean and standard deviation, and the head ends there
(both: the last layer of a ResNet); a sample at prediction is the same for all inputs; and estimators that need one
pass, such as the Laplace posterior, use the mean of z.
"""

from collections.abc import Callable
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from ..core import Payload
from ..core.settings import LARGE, MAX_COUNT, frozen_settings
from ..nn.dropout import GaussianUnits, divergence
from ..nn.encoders import Head, Model, parts
from ..training.fit import Loss
from ..training.modules import expect, names_below
from .fedavg import FedAvg
from .fedproto import sizes


class GaussianUnitsOfClasses(GaussianUnits):
    """Gaussian units, and a Gaussian of each class, with which the Gaussians of inputs are compared."""

    def __init__(self, units: int, classes: int) -> None:
        super().__init__()
        self.class_means = nn.Parameter(torch.empty(classes, units))
        self.class_spreads = nn.Parameter(torch.empty(classes, units))
        self.scale = nn.Parameter(torch.empty(()))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        self.class_means.zero_()
        self.class_spreads.fill_(1)
        self.scale.fill_(1)

    def divergence(self, h: Tensor, y: Tensor) -> Tensor:
        """Return (N,) KL divergences in nats of the units, times `scale`, from the Gaussians of the labels."""
        mean, deviation = self.moments(h)
        known = self.class_means[y], F.softplus(self.class_spreads)[y]
        return divergence((mean * self.scale, deviation * self.scale), known)


@frozen_settings
class FedSR(FedAvg):
    """FedAvg of a regularized stochastic representation, for unseen domains (Nguyen et al., 2022)."""

    counts_classes: ClassVar[bool] = True

    l2r: Annotated[float, Field(ge=0, le=LARGE)] = 0.01
    """Weight of the squared norm of the representation (L2R)."""
    cmi: Annotated[float, Field(ge=0, le=LARGE)] = 0.001
    """Weight of the divergence from the Gaussian of the input's class, in nats (CMI)."""
    units: Annotated[int, Field(gt=0, le=MAX_COUNT)] | None = None
    """Dimension of the representation; default: the number of hidden units of the head."""

    def build(self, model: nn.Module) -> nn.Module:
        return with_gaussian(model, self.name, self.units, GaussianUnitsOfClasses)

    def objective(self, module: nn.Module, down: Payload) -> Loss:
        """Return the cross-entropy of a sampled representation plus L2R plus CMI."""
        model = expect(Model, module)
        gaussian, classifier = expect(GaussianUnitsOfClasses, model.head[-2]), model.head[-1]

        def loss(x: Tensor, y: Tensor) -> Tensor:
            h = model.head.hidden(model.encoder(x))
            z = gaussian(h)
            short: Tensor = self.l2r * torch.linalg.vector_norm(z, dim=1).mean()
            alike = self.cmi * gaussian.divergence(h, y).mean() if self.cmi else 0.0
            return self.training.cross_entropy(classifier(z), y) + short + alike

        return loss

    def private(self, module: nn.Module) -> frozenset[str]:
        """Return the names of the Gaussians of the classes, and of the scale C of the representation."""
        paths = [path for path, part in module.named_modules() if isinstance(part, GaussianUnitsOfClasses)]
        return frozenset().union(*(names_below(module, path) for path in paths))


def with_gaussian(
    model: nn.Module, method: str, units: int | None, stage: Callable[[int, int], GaussianUnits]
) -> Model:
    """Return a model whose head ends with a Gaussian representation and a linear layer.

    `stage` makes the representation's stage from its number of units (by default that of the head's hidden layer) and
    the number of classes. Raises ConfigurationError for a module without encoder and head.
    """
    model = parts(model, method)
    classes, hidden = sizes(model, method)
    units = units or hidden
    inner = [*list(model.head)[: model.head.depth], nn.Linear(hidden, 2 * units)]
    head = Head(inner, [stage(units, classes), nn.Linear(units, classes)])
    return Model(model.encoder, head, model.tokens, model.features)
