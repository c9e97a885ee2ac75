"""Test inputs to look at, and where they lie among each other: `gallery.json` and `features.json`.

Both are a silo's own business and never leave a silo. Features are projected to two dimensions by one PCA for all
silos, fitted to the outputs of the encoders. Later stages, such as features after they are discretised, are projected
by the same one, so that their pictures can be compared.
"""

import base64
import io
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from threadpoolctl import threadpool_limits
from torch import Tensor

from ..core import Data, Decision, Prediction, Silo, SiloId, Tensors
from ..data import Silos
from ..files.schema import Features, FeatureSilo, Gallery, GallerySilo, Item, Point, Quadrant, SureError
from ..files.schema.figures import INSIDE
from ..files.schema.record import SCHEMA, as_json

SHOWN = 6
"""Most and least certain inputs per silo."""
EXAMPLES = 3
"""Inputs per stream and quadrant."""
SURE_ERRORS = 12
"""Wrong answers of all silos."""
SILOS = 20
"""Silos whose ends are shown, so that a report of many silos stays readable; wrong answers are sought at all."""


def gallery(
    silos: Silos, names: Sequence[SiloId], predictor: Callable[[SiloId], Callable[[torch.Tensor], Prediction]]
) -> Gallery:
    """The most and the least certain test inputs of silos, and some of every stream and quadrant: whose answer it is,
    and whether it was abstained from; and of all silos together the wrong answers of highest probability.
    A silo's own business: it never leaves a silo.
    """
    shown, wrong = [], list[SureError]()
    for i, silo in enumerate(map(silos.named, names)):
        predict = predictor(silo.name)
        prediction = predict(silo.test.x)
        wrong += _sure_errors(silos, silo.test, prediction, silo.name)
        if i >= SILOS:
            continue
        order = prediction.total.argsort(stable=True).tolist()
        ends = {"certain": order[:SHOWN], "uncertain": order[::-1][:SHOWN]}
        items = {end: [_item(silos, silo.test, prediction, i) for i in chosen] for end, chosen in ends.items()}
        streams = {INSIDE: (silo.test, prediction)} | {n: (d, predict(d.x)) for n, d in silo.streams.items()}
        found = _quadrants(silos, streams)
        shown.append(GallerySilo(name=silo.name, domain=silo.domain, **items, quadrants=found))
    surest = sorted(wrong, key=lambda item: -item.probability)[:SURE_ERRORS]
    return Gallery(classes=list(silos.classes), silos=shown, sure_errors=surest)


def _sure_errors(silos: Silos, data: Data, prediction: Prediction, silo: SiloId) -> list[SureError]:
    """A silo's wrong answers of highest probability, as many as could be among those of all silos."""
    wrong = (prediction.label != data.y) & (prediction.decision != Decision.ABSTAIN)
    places = wrong.nonzero()[:, 0].tolist()
    surest = sorted(places, key=lambda i: -float(prediction.probs[i].max()))[:SURE_ERRORS]
    return [SureError(**as_json(_item(silos, data, prediction, i)), silo=silo) for i in surest]


def _quadrants(silos: Silos, streams: Mapping[str, tuple[Data, Prediction]]) -> list[Quadrant]:
    """The first inputs of each quadrant of each stream; nothing where every input is answered by one model."""
    cells: dict[tuple[str, str, int, bool], list[Item]] = {}
    for stream, (data, prediction) in streams.items():
        decided = zip(prediction.answered_by.tolist(), (prediction.decision == Decision.ABSTAIN).tolist(), strict=True)
        for i, (whose, abstained) in enumerate(decided):
            found = cells.setdefault((stream, Decision(whose).name.lower(), whose, abstained), [])
            if len(found) < EXAMPLES:
                found.append(_item(silos, data, prediction, i))
    if len({key[2:] for key in cells}) < 2:
        return []
    return [
        Quadrant(stream=stream, model=model, abstained=abstained, items=cells[stream, model, whose, abstained])
        for stream, model, whose, abstained in sorted(cells)
    ]


def _item(silos: Silos, data: Data, prediction: Prediction, i: int) -> Item:
    return Item(
        image=_png(silos, data.x[i]) if silos.images else None,
        label=int(data.y[i]),
        predicted=int(prediction.label[i]),
        probability=float(prediction.probs[i].max()),
        **{name: float(values[i]) for name, values in prediction.uncertainty.items()},
        decision=Decision(int(prediction.decision[i])).name.lower(),
    )


def _png(silos: Silos, x: torch.Tensor) -> str:
    array = silos.to_image(x)
    image = Image.fromarray(array.squeeze(-1) if array.shape[-1] == 1 else array)
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()


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
