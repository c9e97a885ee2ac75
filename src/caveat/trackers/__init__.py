"""Trackers of experiments: callbacks that write what a run tells to TensorBoard, MLflow, or Weights & Biases."""

from .by_name import TRACKERS, tracker_of
from .mlflow import MLflow
from .tensorboard import TensorBoard
from .wandb import WandB

__all__ = ["TRACKERS", "MLflow", "TensorBoard", "WandB", "tracker_of"]
