"""The source of data sets of the Hugging Face hub."""

import importlib
from pathlib import Path
from typing import Any

import numpy as np

from ...core import ConfigurationError, DataError
from ..checks import image_array
from ..raw_samples import Array, DataSource
from .array_files import pools_of
from .base import Source, SourceSettings
from .image_folders import resized


class HubSource(Source):
    name = "hub"
    form = "hub:NAME"
    about = "a data set of the Hugging Face hub (needs the extra `hub` and internet access)"
    for_one_silo = False

    def read(self, settings: SourceSettings) -> DataSource:
        """Read images, resized if a size is given, and labels of the split `train` and, if it exists, `test`."""
        try:
            datasets = importlib.import_module("datasets")
        except ImportError as error:
            raise ConfigurationError(
                f"data.source = '{self}' needs the optional package 'datasets': install caveat with the extra 'hub'"
            ) from error
        try:
            splits = datasets.load_dataset(self.place)
        except Exception as error:  # the hub, the network and the library raise many types
            raise DataError(f"{self} cannot be loaded ({type(error).__name__}: {error})") from error
        if "train" not in splits:
            raise DataError(f"{self}: found splits {sorted(splits)}, expected one called 'train'")
        x, y = self._arrays(splits["train"], settings.size)
        x_test, y_test = self._arrays(splits["test"], settings.size) if "test" in splits else (None, None)
        features = splits["train"].features
        classes = getattr(features[self._column(features, ("label", "fine_label"))], "names", None)
        return DataSource(pools_of([(x, y, x_test, y_test)], [self.place.rsplit("/", 1)[-1]], [str(self)], classes))

    def paths(self) -> list[Path]:
        return []

    def _arrays(self, split: Any, size: int | None) -> tuple[Array, Array]:
        image = self._column(split.features, ("image", "img"))
        label = self._column(split.features, ("label", "fine_label"))
        pictures = [np.asarray(picture) for picture in split[image]]
        if size is not None:
            pictures = [resized(image_array(picture[None], str(self)), size)[0] for picture in pictures]
        if len({picture.shape for picture in pictures}) != 1:
            raise DataError(
                f"{self}: images have different sizes or numbers of channels, expected one shape; data.size resizes "
                "images"
            )
        return np.stack(pictures), np.asarray(split[label])

    def _column(self, features: Any, candidates: tuple[str, ...]) -> str:
        for candidate in candidates:
            if candidate in features:
                return candidate
        raise DataError(f"{self}: found columns {sorted(features)}, expected one of {', '.join(candidates)}")
