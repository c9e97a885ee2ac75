"""FedRep: silos share a representation and train local heads on it.

Collins et al., Exploiting Shared Representations for Personalized Federated Learning, ICML 2021, Algorithm 1.

Our choices: the mean is weighted by n_k (paper: uniform). BatchNorm statistics follow the silo's data in both stages: a
head trained on features with global statistics would not fit the features with which the body is trained.
"""

from dataclasses import replace
from typing import Annotated

from pydantic import Field

from ..core import Payload, SiloContext, State, Update
from ..core.settings import MAX_COUNT, frozen_settings
from ..training.modules import load, snapshot, split
from .fedper import FedPer


@frozen_settings
class FedRep(FedPer):
    """FedPer that trains the local head first, then the shared body (Collins et al., 2021)."""

    head_epochs: Annotated[int, Field(gt=0, le=MAX_COUNT)] = 10
    """Epochs per round for the head; `training` sets the epochs for the body."""

    def train(self, down: Payload, state: State, context: SiloContext) -> tuple[Update, State]:
        module = load(context.module, down["model"] | state["model"])
        loss, head = self.objective(module, down), self.private(module)
        body = frozenset(name for name, _ in module.named_parameters()) - head
        replace(self.training, local_epochs=self.head_epochs, local_steps=None).fit(context, loss, frozen=body)
        self.training.fit(context, loss, frozen=head)
        shared, own = split(snapshot(module), head)
        return Update({"model": shared}, context.examples), state | {"model": own}
