"""What `caveat list` shows: what a configuration can name, each with a line about it."""

import os
from collections.abc import Iterator
from pathlib import Path

from ..methods import METHODS
from ..methods.plugins import about, installed
from ..recipes import description
from ..recipes import recipes as recipe_names

Named = Iterator[tuple[str, str]]
MODELS = {
    "lenet5": "LeNet-5 without BatchNorm up to its last hidden layer: one token of `features` (84 in the original).",
    "residual": "UEFL's encoder of three residual blocks, each behind a convolution and before a 2x2 pooling.",
    "cnn": "Two 3x3 convolutions, each with ReLU and 2x2 pooling, as FMLU's CNN: 28x28 images become 49 tokens.",
    "normed": "Three 5x5 convolutions with BatchNorm, as FedBN has them for digits: 28x28 images become 49 tokens.",
    "mlp": "Two layers for features and tables: one token of `features`.",
    "linear": "Logits that are linear in the inputs, of which some are dropped in training: logistic regression.",
    "encoder": "an encoder of your own (model.encoder names its code), pretrained or frozen, with a head behind it",
    "own": "a whole model of your own: model.factory names the code that makes it",
}


def methods() -> Named:
    for name in METHODS:
        yield name, METHODS.about(name)
    for name, point in installed().items():
        if name not in METHODS:
            yield name, about(point)


def models() -> Named:
    yield from MODELS.items()


def recipes() -> Named:
    """Every recipe with its first comment line."""
    for name in recipe_names():
        yield name, description(name)


def datasets() -> Named:
    """Every kind of source, then the files of $CAVEAT_DATA."""
    from ..data.sources import JOIN, SOURCES, kind_of

    for source in SOURCES.values():
        yield source.form, source.about
    yield (
        JOIN.join(("SOURCE", "SOURCE")),
        "domains of several of these, but no tables; data.size brings images to one size",
    )
    folder = os.environ.get("CAVEAT_DATA")
    if folder and Path(folder).is_dir():
        for path in sorted(Path(folder).iterdir()):
            if (kind := kind_of(path)) is not None:
                size = "folder" if path.is_dir() else f"{path.stat().st_size / 1e6:.1f} MB"
                yield f"{kind.name}:{path.name}", f"{size} in $CAVEAT_DATA"
