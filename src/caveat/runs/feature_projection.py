"""Positions of test inputs in feature space: `features.json`, which stays on the machine with the silos' data.

Features are projected to two dimensions by one PCA for all silos, fitted to the encoders' outputs. Later stages, such
as discretized features, use the same projection, so plots are comparable.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits
from torch import Tensor

from ..core import Silo, SiloId, Tensors
from ..data import Silos
from ..files import schema
from .gallery import SILOS, over_domains, spread

Matrix = npt.NDArray[np.float64]


def features(
    silos: Silos, names: Sequence[SiloId], extractor: Callable[[SiloId], Callable[[Tensor], Tensors]]
) -> schema.Features | None:
    """Return two coordinates per stage and input of some silos of every domain, and the explained variance ratios.

    None for a quantity, and if features cannot be projected together: without an encoder, with encoders of different
    widths, with fewer than two inputs or features, or with constant or infinite features.
    """
    if silos.target is not None:
        return None
    shown = list(map(silos.named, over_domains({name: silos.named(name).domain for name in names}, SILOS)))
    chosen = {silo.name: spread(len(silo.test)) for silo in shown}
    found = [_pooled(extractor(silo.name)(silo.test.x[chosen[silo.name]])) for silo in shown]
    if not found or not _comparable(found):
        return None
    from sklearn.decomposition import PCA  # scikit-learn takes a second to import

    first, *_ = stages = list(found[0])
    with threadpool_limits(1):  # the number of threads affects rounding
        pca = PCA(2, svd_solver="full").fit(np.concatenate([each[first] for each in found]))
        points = [{stage: _rounded(pca.transform(each[stage])) for stage in stages} for each in found]
    return schema.Features(
        schema=schema.SCHEMA,
        stages=stages,
        explained=[float(share) for share in pca.explained_variance_ratio_],
        silos=[_silo(silo, chosen[silo.name], each) for silo, each in zip(shown, points, strict=True)],
    )


def _pooled(stages: Tensors) -> dict[str, Matrix]:
    """Return the mean over tokens (N, T, D) as (N, D); other features are only flattened."""
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


def _rounded(points: Matrix) -> list[schema.Point]:
    return [(float(f"{x:.4g}"), float(f"{y:.4g}")) for x, y in points]


def _silo(silo: Silo, chosen: Tensor, points: Mapping[str, list[schema.Point]]) -> schema.FeatureSilo:
    return schema.FeatureSilo(name=silo.name, domain=silo.domain, labels=silo.test.y[chosen].tolist(), points=points)
