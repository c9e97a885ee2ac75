"""Evaluation of any method, outside its schedule: silos measure themselves and send sums.

It changes no bit of training: what it returns as the silo's state is what it was given, and an engine keeps
nothing of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..core import Data, Payload, Site, State, TestSite, Update, evaluation
from ..metrics import measure, rank
from .base import Wrapper


@dataclass(frozen=True)
class Evaluated(Wrapper):
    """The base, and works that measure its predictions on a silo's validation or test split."""

    @evaluation
    def validation(self, down: Payload, state: State, site: Site) -> tuple[Update, State]:
        return self._measure(down, state, site, site.validation), state

    @evaluation
    def test(self, down: Payload, state: State, site: Site) -> tuple[Update, State]:
        assert isinstance(site, TestSite)
        return self._measure(down, state, site, site.test), state

    def _measure(self, down: Payload, state: State, site: Site, data: Data) -> Update:
        # The base sees inputs, and no labels of the split that it is measured on.
        site = Site(site.id, site.train, site.validation, site.calibration, site.module, round=site.round)
        prediction = self.base.predict(down, state, site, data.x)
        payload = {
            "sums": measure(prediction, data.y),
            "rank": {name: torch.tensor(value) for name, value in rank(prediction, data.y).items()},
            "method": self.base.describe(down, state, site, data.x),
        }
        return Update(payload, len(data))
