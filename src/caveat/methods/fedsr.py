"""FedSR: a representation that is drawn from a Gaussian and holds little beside what tells the classes apart.

Nguyen et al., FedSR: A Simple and Effective Domain Generalization Method for Federated Learning, NeurIPS 2022. The
encoder says of every input a mean and a standard deviation for each number of its representation z, of which one is
drawn; a linear layer classifies it. To the cross-entropy come the norm of z (L2R), and the divergence of z's Gaussian
from one of the input's class, r(z|y), which the silo learns (CMI). A prediction is the mean over `mc_samples` draws.

Where paper and released code differ or are silent: r(z|y) and the number C by which z is multiplied before it is
compared with it stay at the silo (code; C is not in the paper); the mean weighs silos by n_k as in FedAvg (code:
uniform, of silos that take as many steps each).
Ours: what says the mean and the standard deviation is a linear layer behind the head's first hidden layer, and the head
ends there (both: the last layer of a ResNet); a draw at prediction is the same for all inputs; and what needs one
pass, such as Laplace's posterior, is of z's mean.
"""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from ..core import Payload
from ..core.settings import LARGE, MANY, frozen_settings
from ..nn.dropout import GaussianUnits
from ..nn.encoders import Head, Model, parts
from ..training.fit import Loss
from ..training.modules import expect
from .fedavg import FedAvg
from .fedper import names_below
from .fedproto import sizes


@frozen_settings
class FedSR(FedAvg):
    """FedAvg of a short Gaussian representation that is alike within classes (Nguyen et al., 2022)."""

    l2r: Annotated[float, Field(ge=0, le=LARGE)] = 0.01
    """Weight of the representation's norm."""
    cmi: Annotated[float, Field(ge=0, le=LARGE)] = 0.001
    """Weight of the divergence from the Gaussian of an input's class, in nats."""
    units: Annotated[int, Field(gt=0, le=MANY)] | None = None
    """Numbers of a representation; by default as many as the head has hidden units."""

    def build(self, model: nn.Module) -> nn.Module:
        model = parts(model, self.name)
        classes, hidden = sizes(model, self.name)
        units = self.units or hidden
        inner = [*list(model.head)[: model.head.depth], nn.Linear(hidden, 2 * units)]
        head = Head(inner, [GaussianUnits(units, classes), nn.Linear(units, classes)])
        return Model(model.encoder, head, model.tokens, model.features)

    def objective(self, module: nn.Module, down: Payload) -> Loss:
        """Cross-entropy of a drawn representation, L2R and CMI."""
        model = expect(Model, module)
        gaussian, classifier = expect(GaussianUnits, model.head[-2]), model.head[-1]

        def loss(x: Tensor, y: Tensor) -> Tensor:
            h = model.head.hidden(model.encoder(x))
            z = gaussian(h)
            short: Tensor = self.l2r * torch.linalg.vector_norm(z, dim=1).mean()
            alike = self.cmi * gaussian.divergence(h, y).mean() if self.cmi else 0.0
            return self.training.cross_entropy(classifier(z), y) + short + alike

        return loss

    def private(self, module: nn.Module) -> frozenset[str]:
        """The Gaussians of the classes, and the scale at which they are compared."""
        paths = [path for path, part in module.named_modules() if isinstance(part, GaussianUnits)]
        return frozenset().union(*(names_below(module, path) for path in paths))
