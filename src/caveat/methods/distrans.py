"""DisTrans: a silo shifts its inputs by a local offset in both directions, and the model reads both views.

Yuan et al., Addressing Heterogeneity in Federated Learning via Distributional Transformation, ECCV 2022. An input x
becomes the views (1 - alpha) x + alpha t and (1 + alpha) x - alpha t. The offset t has the shape of an input. One
network maps each view to hidden units, and the linear layer behind them reads the units of both views. A silo trains
its offset and the model together; the model is averaged.

Where the paper and the released code differ or are silent: the offset stays at its silo, and is not averaged (code for
non-i.i.d. data); silos are weighted by n_k as in FedAvg (code: uniform). The hypernetwork of the code for i.i.d. data,
which generates offsets, is not implemented.
Our choices: the network ends with the first hidden layer of the head, before its dropout; one optimizer trains offset
and model (code: SGD with learning rates 0.001 and 0.005); an offset is drawn uniformly from -1 to 1 (the code does so
for gray images, and draws from a wider range for color images); and behind a frozen encoder, the offset moves the
encoder's features.
"""

from copy import deepcopy
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from ..core import ConfigurationError, Decision, SiloContext, State
from ..core.settings import frozen_settings
from ..nn.encoders import Head, Model, Tokens, parts
from ..nn.stage_features import Repeated
from ..training.modules import expect, snapshot
from .fedavg import FedAvg
from .fedproto import sizes


class TwoViews(Repeated):
    """Map inputs (N, ...) to the hidden units of both of their views, (N, 1, 2 H)."""

    def __init__(self, model: Model, shape: tuple[int, ...], alpha: float) -> None:
        super().__init__()
        self.offset = nn.Parameter(torch.empty(shape))
        self.network = nn.Sequential(model.encoder, *list(model.head)[: model.head.depth])
        self.alpha, self.tokens = alpha, Tokens()
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        self.offset.uniform_(-1, 1)

    def forward(self, x: Tensor) -> Tensor:
        moved = self.alpha * (self.offset - x)
        units: Tensor = self.tokens(torch.cat([self.network(x + moved), self.network(x - moved)], 1))
        return units


@frozen_settings
class DisTrans(FedAvg):
    """FedAvg of a model that reads inputs moved both ways by an offset of the silo (Yuan et al., 2022)."""

    models: ClassVar[tuple[Decision, ...]] = (Decision.LOCAL,)

    alpha: Annotated[float, Field(ge=0, le=1)] = 0.2
    """Weight of the offset in both views of an input; with 0, both equal the input."""

    def build(self, model: nn.Module) -> nn.Module:
        model = parts(model, self.name)
        if model.shape is None:
            raise ConfigurationError(
                f"{self.name} adds a learned offset to inputs, so inputs must be numbers, not token ids; use another "
                "method",
                "method.name",
            )
        _, hidden = sizes(model, self.name)
        outer = [deepcopy(stage) for stage in list(model.head)[model.head.depth :]]
        first = next((i for i, stage in enumerate(outer) if not isinstance(stage, nn.Dropout)), 0)
        last = outer[first]
        if not isinstance(last, nn.Linear):
            raise ConfigurationError(
                f"{self.name} needs a head with a linear layer behind its hidden units, but this model's head has "
                f"{type(last).__name__} there",
                "model",
            )
        outer[first] = nn.Linear(2 * hidden, last.out_features, last.bias is not None)
        return Model(TwoViews(model, model.shape, self.alpha), Head([nn.Flatten()], outer), 1, 2 * hidden, model.shape)

    def init_silo(self, context: SiloContext) -> State:
        expect(TwoViews, expect(Model, context.module).encoder).reset_parameters()
        return {"model": snapshot(context.module, self.private(context.module))}

    def private(self, module: nn.Module) -> frozenset[str]:
        return frozenset({"encoder.offset"})
