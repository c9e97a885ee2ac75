"""A wrapper that adds nothing: what it does not override is the base's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from ..core import Method, Payload, Round, Site, State, Tensors
from ..prediction import Prediction


@dataclass(frozen=True)
class Wrapper(Method):
    base: Method

    def build(self, model: nn.Module) -> nn.Module:
        return self.base.build(model)

    def init_server(self, site: Site) -> State:
        return self.base.init_server(site)

    def init_silo(self, site: Site) -> State:
        return self.base.init_silo(site)

    def schedule(self) -> Iterable[Round]:
        return self.base.schedule()

    def broadcast(self, server: State) -> Payload:
        return self.base.broadcast(server)

    def predict(self, down: Payload, state: State, site: Site, x: Tensor) -> Prediction:
        return self.base.predict(down, state, site, x)

    def describe(self, down: Payload, state: State, site: Site, x: Tensor) -> Tensors:
        return self.base.describe(down, state, site, x)

    def summarise(self, sums: Mapping[str, Tensor]) -> dict[str, object]:
        return self.base.summarise(sums)

    def milestone(self, server: State) -> dict[str, float]:
        return self.base.milestone(server)
