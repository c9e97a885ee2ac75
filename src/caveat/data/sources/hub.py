"""Data sets of the Hugging Face hub, through the optional package `datasets`."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np

from ...core import ConfigurationError, DataError
from ..image_format import resized
from ..pools import Array, DataSource, Pool, image_array
from .arrays import pools_of
from .base import Source, SourceSettings


class HubSource(Source):
    name = "hub"
    form = "hub:NAME"
    about = "a data set of Hugging Face's hub (needs the extra `hub` and internet access)"
    for_one_silo = False

    def read(self, settings: SourceSettings) -> DataSource:
        return DataSource(hub_pools(self.place, settings.size))

    def paths(self) -> list[Path]:
        return []


def hub_pools(name: str, size: int | None = None) -> tuple[Pool, ...]:
    """The images, resized if a size is given, and labels of the splits `train` and, if there is one, `test`."""
    try:
        datasets = importlib.import_module("datasets")
    except ImportError as error:
        raise ConfigurationError(
            f"data.source = 'hub:{name}' needs the optional package 'datasets': install caveat with the extra 'hub'"
        ) from error
    try:
        splits = datasets.load_dataset(name)
    except Exception as error:  # whatever the hub, the network or the library may raise
        raise DataError(f"hub:{name}: cannot be loaded: {type(error).__name__}: {error}") from error
    if "train" not in splits:
        raise DataError(f"hub:{name}: splits {sorted(splits)}, expected 'train'")
    x, y = _arrays(splits["train"], name, size)
    x_test, y_test = _arrays(splits["test"], name, size) if "test" in splits else (None, None)
    features = splits["train"].features
    classes = getattr(features[_column(features, ("label", "fine_label"), name)], "names", None)
    return pools_of([(x, y, x_test, y_test)], [name.rsplit("/", 1)[-1]], [f"hub:{name}"], classes)


def _arrays(split: Any, name: str, size: int | None) -> tuple[Array, Array]:
    image = _column(split.features, ("image", "img"), name)
    label = _column(split.features, ("label", "fine_label"), name)
    pictures = [np.asarray(picture) for picture in split[image]]
    if size is not None:
        pictures = [resized(image_array(picture[None], f"hub:{name}"), size)[0] for picture in pictures]
    if len({picture.shape for picture in pictures}) != 1:
        raise DataError(f"hub:{name}: images of different sizes or channels, expected one, or data.size")
    return np.stack(pictures), np.asarray(split[label])


def _column(features: Any, candidates: tuple[str, ...], name: str) -> str:
    for candidate in candidates:
        if candidate in features:
            return candidate
    raise DataError(f"hub:{name}: columns {sorted(features)}, expected one of {', '.join(candidates)}")
