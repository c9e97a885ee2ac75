"""TensorBoard."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from ..runs.progress import Scalar
from .base import Tracker

PLACE = "tensorboard"


class TensorBoard(Tracker):
    """Writes event files to `PLACE/RUN-TITLE-KEY`, for `tensorboard --logdir PLACE`; `place` is the folder
    "tensorboard" unless given. Nothing is sent anywhere.
    """

    name: ClassVar = "tensorboard"
    package: ClassVar = "tensorboard"

    @property
    def local(self) -> Path:
        return Path(self.place or PLACE)

    def open(self, title: str, key: str, folder: str, settings: Mapping[str, Scalar]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        place = self.local / f"{Path(folder).name}-{title}-{key}"
        self._writer: Any = SummaryWriter(str(place))
        rows = "\n".join(f"| {name} | {value} |" for name, value in settings.items())
        self._writer.add_text("settings", f"| key | value |\n| --- | --- |\n{rows}", 0)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()
