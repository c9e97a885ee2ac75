"""Out-of-distribution test inputs: known to other silos only, or to no silo."""

import dataclasses
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..core import ConfigurationError, Data, DataError, Silo, key
from ..core.settings import check_seed, check_type
from .raw_samples import Array, Pool
from .silo_collection import Silos
from .sources.image_folders import ImageFormat

Unknown = Literal["none", "classes", "domains"]


def with_streams(
    silos: Silos,
    *,
    ood_local: Unknown = "none",
    ood_global: Array | None = None,
    per_silo: int | None = None,
    seed: int = 0,
) -> Silos:
    """Return the silos with new out-of-distribution streams; their splits do not change.

    Stream "ood_local" is drawn without replacement from the test splits of other silos, whose models can answer: with
    "classes", samples whose label is not among the silo's training labels; with "domains", samples of silos of other
    domains. Inputs are preprocessed by the other silo, labels are kept, and `indices["ood_local"]` has their positions
    in the other silo's source. Stream "ood_global" is drawn from raw inputs (as for `Silos.prepare`) that no silo
    knows; its labels are -1, and it is never shifted.

    A stream has `per_silo` samples, by default as many as the silo's test split, or all if there are fewer; a silo
    without unknown samples has no stream. Raises DataError if no silo has unknown samples, if the inputs do not fit,
    and for "ood_local" of tables, because each silo encodes rows in its own way.
    """
    check_type(silos, Silos, "silos", "Silos, as from caveat.data.from_arrays")
    check_seed(seed)
    if per_silo is not None and not per_silo >= 1:
        raise ConfigurationError(f"per_silo = {per_silo}, expected at least 1")
    if ood_global is not None and not hasattr(ood_global, "__len__"):
        raise DataError(f"ood_global has type {type(ood_global).__name__}, expected an array of inputs")
    if ood_global is not None and not len(ood_global):
        raise DataError("ood_global: no inputs, expected at least one")
    sizes = [len(silo.test) if per_silo is None else per_silo for silo in silos]
    local = [None] * len(silos) if ood_local == "none" else _ood_local(silos, ood_local, sizes, seed)
    streamed = []
    for silo, size, elsewhere in zip(silos, sizes, local, strict=True):
        streams = {}
        indices = {name: index for name, index in silo.indices.items() if name != "ood_local"}
        if elsewhere is not None:
            streams["ood_local"] = elsewhere.data
            indices |= {} if elsewhere.origin is None else {"ood_local": elsewhere.origin}
        if ood_global is not None and size:
            x = silos.prepare(ood_global[_draw(len(ood_global), size, seed, silo, "ood_global").numpy()], silo.name)
            streams["ood_global"] = Data(x, torch.full((len(x),), -1))
        streamed.append(dataclasses.replace(silo, indices=indices, streams=streams))
    return dataclasses.replace(silos, silos=tuple(streamed))


class Drawn(NamedTuple):
    """Test samples of other silos."""

    data: Data
    origin: Tensor | None
    """Positions of the samples in the data source, if known."""


def _ood_local(silos: Silos, what: Unknown, sizes: Sequence[int], seed: int) -> list[Drawn | None]:
    """Draw, for each silo, test samples that only other silos know; None if there are no such samples."""
    candidates = _elsewhere(silos, what)
    # Concatenated once, not once per silo.
    x, y = torch.cat([silo.test.x for silo in silos]), torch.cat([silo.test.y for silo in silos])
    traced = all("test" in silo.indices for silo in silos)
    index = torch.cat([silo.indices["test"] for silo in silos]) if traced else None
    local: list[Drawn | None] = []
    for silo, size, unknown in zip(silos, sizes, candidates, strict=True):
        drawn = unknown[_draw(len(unknown), size, seed, silo, "ood_local")]
        found = Drawn(Data(x[drawn], y[drawn]), None if index is None else index[drawn])
        local.append(found if len(drawn) else None)
    return local


def _draw(candidates: int, size: int, seed: int, silo: Silo, stream: str) -> Tensor:
    # One key per stream: requesting one must not change the other.
    generator = np.random.default_rng(key(seed, "data", "streams", silo.name, stream))
    return torch.from_numpy(np.sort(generator.choice(candidates, min(size, candidates), replace=False)))


def _elsewhere(silos: Silos, what: Unknown) -> list[Tensor]:
    """Return, for each silo, positions in the concatenated test splits of the samples that only other silos know."""
    if silos.encoders:
        raise DataError(
            f"ood_local = {what!r}: each silo encodes table rows with its own training split, so test inputs of "
            "another silo cannot be used here; expected images or features without encoding"
        )
    if len(set(silos.scalings.values())) > 1:
        raise DataError(
            f"ood_local = {what!r}: each silo standardizes series with its own training split, so test inputs of "
            "another silo cannot be used here; set data.standardize to 'federation'"
        )
    labels = torch.cat([silo.test.y for silo in silos])
    owners = torch.cat([torch.full((len(silo.test),), number) for number, silo in enumerate(silos)])
    if what == "classes":
        unknown = [(owners != n) & ~torch.isin(labels, silo.train.y) for n, silo in enumerate(silos)]
        why = f"every silo trains on all of the {len(silos.classes)} tested classes"
    elif what == "domains":
        domains = [silo.domain for silo in silos]
        unknown = [torch.tensor([other != own for other in domains])[owners] for own in domains]
        why = f"all silos belong to one domain, {domains[0]!r}"
    else:
        raise ConfigurationError(f"ood_local = {what!r}, expected 'none', 'classes' or 'domains'")
    if not any(bool(each.any()) for each in unknown):
        raise DataError(f"ood_local = {what!r}: {why}, so no test input is out-of-distribution")
    return [each.nonzero()[:, 0] for each in unknown]


def hold_out(pools: Sequence[Pool], names: Sequence[str]) -> Sequence[Pool]:
    """Return pools in which the classes `names` have label -1 and the other classes are renumbered from 0. Raises
    ConfigurationError for an unknown class, or if fewer than two classes are left."""
    if not names:
        return pools
    classes = pools[0].classes
    for name in names:
        if name not in classes:
            near = get_close_matches(name, classes, 3)
            raise ConfigurationError(
                f"data.ood.held_out_classes: no class {name!r}"
                + (f"; did you mean {' or '.join(near)}?" if near else "")
                + f" (available: {', '.join(classes)})"
            )
    left = tuple(name for name in classes if name not in names)
    if len(left) < 2:
        raise ConfigurationError(
            f"data.ood.held_out_classes leaves {len(left)} of {len(classes)} classes to the silos, expected at least 2"
        )
    number = np.array([left.index(name) if name in left else -1 for name in classes], dtype=np.int64)
    return [dataclasses.replace(pool, y=number[pool.y], classes=left) for pool in pools]


def unknown_inputs(held_out: Sequence[Array], outside: Sequence[Pool], silos: Silos, origin: str) -> Array | None:
    """Return raw inputs that no silo knows: test samples of held-out classes and of the outside source `origin`.

    Images get the silos' size and channels if possible. None if neither is requested. Raises DataError if the shape of
    the outside inputs differs from the silos'.
    """
    shape = (*silos.shape[1:], silos.shape[0]) if silos.images else silos.shape
    image_format = ImageFormat(silos.image_format.size, shape[-1]) if silos.images else ImageFormat()
    for pool in outside:
        found = image_format.shape(pool.x) if pool.images else pool.x.shape[1:]
        if found != shape or silos.encoders:
            columns = next((len(encoder.table) for encoder in silos.encoders.values()), 0)
            expected = f"{columns} columns of a table" if columns else f"inputs of shape {shape}"
            raise DataError(
                f"data.ood.global_source = {origin!r} has inputs of shape {pool.x.shape[1:]}, but data.source has "
                f"{expected}; expected the same shape"
                + (", or set data.size" if pool.images and image_format.size is None else "")
            )
    if held_out and not any(map(len, held_out)):
        raise DataError("data.ood.held_out_classes: no test sample belongs to a held-out class")
    # No silo has trained on the outside source: without a test part, all of it is unknown.
    tests = [pool.x[pool.development :] if pool.own_test else pool.x for pool in outside]
    parts = [image_format(x) for x in (*held_out, *tests)]
    return np.concatenate(parts) if parts else None
