"""Weights & Biases."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from ..runs.progress import Scalar
from .base import Tracker

PROJECT = "caveat"


class WandB(Tracker):
    """Writes runs of the project "caveat" to a folder "wandb" in `place`, else where WANDB_DIR says, else below the
    current folder. Nothing is sent, unless WANDB_MODE says "online": `wandb sync` uploads a run later.
    """

    name: ClassVar = "wandb"
    package: ClassVar = "wandb"

    def open(self, title: str, key: str, folder: str, settings: Mapping[str, Scalar]) -> None:
        import wandb

        if self.place is not None:
            Path(self.place).mkdir(parents=True, exist_ok=True)
        mode: Any = os.environ.get("WANDB_MODE", "offline")
        quiet = wandb.Settings(console="off", silent=True, x_disable_stats=True)
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT), name=f"{Path(folder).name} {title}", id=f"{key}-{title}",
            dir=None if self.place is None else str(self.place), config=dict(settings), mode=mode, settings=quiet,
            resume="allow" if mode == "online" else None, reinit="create_new",
        )  # fmt: skip

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()
