"""Where a few test inputs of each silo lie among those of the others, as `features.json` keeps it.

Features are projected to two dimensions by one PCA for all silos, fitted to what the encoders say. Later stages, say
features after they are discretised, are projected by the same one, so that pictures of them can be laid side by
side. Like the gallery, a silo's own business: it never leaves a silo.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from threadpoolctl import threadpool_limits
from torch import Tensor

from ..core import Silo, SiloId, Tensors
from ..data import Silos
from ..files.schema.gallery import Features, FeatureSilo, Point
from ..files.schema.record import SCHEMA
from .gallery import SILOS

INPUTS = 60
"""Test inputs per silo at most."""

Matrix = npt.NDArray[np.float64]


def features(
    silos: Silos, names: Sequence[SiloId], extractor: Callable[[SiloId], Callable[[Tensor], Tensors]]
) -> Features | None:
    """Two coordinates per stage and input of the first silos, and the share of the variance that either explains.

    None where nothing can be laid on one plane: without an encoder, where silos have encoders of different widths, with
    less than two inputs or features in all, and where all features are alike or one is not finite.
    """
    shown = [silos.named(name) for name in names[:SILOS]]
    chosen = {silo.name: _spread(len(silo.test)) for silo in shown}
    found = [_pooled(extractor(silo.name)(silo.test.x[chosen[silo.name]])) for silo in shown]
    if not found or not _comparable(found):
        return None
    from sklearn.decomposition import PCA  # scikit-learn takes a second to import

    first, *_ = stages = list(found[0])
    with threadpool_limits(1):  # threads sum in other orders
        pca = PCA(2, svd_solver="full").fit(np.concatenate([each[first] for each in found]))
        points = [{stage: _rounded(pca.transform(each[stage])) for stage in stages} for each in found]
    return Features(
        schema=SCHEMA,
        stages=stages,
        explained=[float(share) for share in pca.explained_variance_ratio_],
        silos=[_silo(silo, chosen[silo.name], each) for silo, each in zip(shown, points, strict=True)],
    )


def _spread(count: int) -> Tensor:
    """At most `INPUTS` positions, evenly over all."""
    return torch.linspace(0, count - 1, min(INPUTS, count)).round().long()


def _pooled(stages: Tensors) -> dict[str, Matrix]:
    """(N, T, D) tokens to their mean over tokens, (N, D), which features that are no tokens are already."""
    found = {name: tokens.detach().double() for name, tokens in stages.items()}
    return {name: (each.mean(1) if each.ndim == 3 else each.flatten(1)).numpy() for name, each in found.items()}


def _comparable(found: Sequence[Mapping[str, Matrix]]) -> bool:
    if not all(found) or len({tuple(each) for each in found}) > 1:
        return False
    if len({matrix.shape[1] for each in found for matrix in each.values()}) > 1:
        return False
    first = np.concatenate([next(iter(each.values())) for each in found])
    finite = all(bool(np.isfinite(matrix).all()) for each in found for matrix in each.values())
    return finite and min(first.shape) > 1 and bool(first.var(0).any())


def _rounded(points: Matrix) -> list[Point]:
    return [(float(f"{x:.4g}"), float(f"{y:.4g}")) for x, y in points]


def _silo(silo: Silo, chosen: Tensor, points: Mapping[str, list[Point]]) -> FeatureSilo:
    return FeatureSilo(name=silo.name, domain=silo.domain, labels=silo.test.y[chosen].tolist(), points=points)
