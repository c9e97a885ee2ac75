"""Trackers of experiments: callbacks that write what a run tells to TensorBoard, MLflow, or Weights & Biases."""

from ..core import ConfigurationError
from ..core.errors import one_of
from .base import Tracker
from .mlflow import MLflow
from .tensorboard import TensorBoard
from .wandb import WandB

__all__ = ["TRACKERS", "MLflow", "TensorBoard", "WandB", "tracker_of"]

TRACKERS: dict[str, type[Tracker]] = {each.name: each for each in (TensorBoard, MLflow, WandB)}
"""All trackers as the command line names them."""


def tracker_of(text: str) -> Tracker:
    """The tracker of `NAME` or `NAME:PLACE`. Raises ConfigurationError for one that there is not, or not installed."""
    name, separator, place = text.partition(":")
    if name not in TRACKERS:
        raise ConfigurationError(f"--tracker {text}: no such tracker{one_of(name, list(TRACKERS))}")
    if separator and not place:
        raise ConfigurationError(f"--tracker {text}: expected a folder after the colon")
    return TRACKERS[name](place or None)
