"""Prediction sets for silos whose classes are mixed otherwise than in the calibration inputs of all.

A silo without a quantile of its own uses the calibration inputs of all silos, weighted class by class so that classes
are as frequent among them as at the silo (`caveat.uncertainty.sets.shifted_threshold`; Podkopaev & Ramdas, UAI 2021).
How frequent they are there is told by the silo's training labels, whose counts stay at the silo. Silos send their
histograms of surprise by class, all of them: if silos differ in nothing but how often they see each class, the inputs
of any silo say how surprising a class is.

Under that condition, sets hold the true class of a silo's own inputs as often as promised, but for what its n training
labels miss of how frequent C classes are: the total variation between both, sqrt((C - 1) / n) / 2 at most in the mean.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core import Payload, Replies, Site, State, Tensors, Update
from ..uncertainty.sets import shifted_threshold, surprise_by_class
from .conformal import Conformal


@dataclass(frozen=True)
class LabelShifted(Conformal):
    """The base with sets, whose common threshold is each silo's own by how frequent classes are there."""

    def conform(self, down: Payload, state: State, site: Site) -> tuple[Update, State]:
        """Send what `Conformal` sends and a histogram per class; keep the numbers of training inputs by class."""
        update, state = super().conform(down, state, site)
        classes = len(update.payload["sets"]["surprise_by_class"])
        seen = torch.bincount(site.train.y.cpu(), minlength=classes).double()
        return update, state | {"sets": state["sets"] | {"seen": seen}}

    def sent(self, probs: Tensor, y: Tensor) -> Tensors:
        return super().sent(probs, y) | {"surprise_by_class": surprise_by_class(probs, y)}

    def settle(self, server: State, replies: Replies, site: Site) -> State:
        """Add up the histograms of each class."""
        settled = super().settle(server, replies, site)
        added = {"surprise_by_class": replies.stack("sets", "surprise_by_class").sum(0)}
        return settled | {"sets": settled["sets"] | added}

    def limit(self, agreed: Tensors, kept: Tensors) -> float:
        """The silo's own quantile, or that of all silos for its classes.

        A silo that was away, or has no training labels, has the unweighted one.
        """
        seen = kept.get("seen")
        if "limit" in kept or seen is None or not seen.any():
            return super().limit(agreed, kept)
        return shifted_threshold(agreed["surprise_by_class"], seen / seen.sum(), self.coverage)

    def outcome(self, server: State) -> dict[str, object]:
        about = {"coverage": self.coverage, "least": self.least, "label_shift": True}
        return super().outcome(server) | {"sets": about}
