"""Example test inputs and their positions in feature space: `gallery.json` and `features.json`.

Both stay on the machine with the silos' data. Features are projected to two dimensions by one PCA for all silos, fitted
to the encoders' outputs. Later stages, such as discretized features, use the same projection, so plots are comparable.
"""

import base64
import io
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import isfinite

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from threadpoolctl import threadpool_limits
from torch import Tensor

from ..core import Data, Decision, Prediction, Silo, SiloId, Tensors
from ..core.quantity import Times, observed
from ..data import Preparation, Silos
from ..files import schema
from ..metrics.survival import at, kaplan_meier

SHOWN = 6
"""Number of most and of least certain inputs per silo."""
EXAMPLES = 3
"""Number of inputs per stream and quadrant."""
SURE_ERRORS = 12
"""Number of confident errors over all silos."""
SILOS = 20
"""Maximum number of silos with examples, to keep reports readable; confident errors come from all silos."""


def gallery(
    silos: Silos, names: Sequence[SiloId], predictor: Callable[[SiloId], Callable[..., Prediction]]
) -> schema.Gallery:
    """Return the most and least certain test inputs of silos, some inputs of every stream and quadrant (which model
    answers, and whether it abstains), and the most confident errors of all silos. The result stays on the machine with
    the silos' data.
    """
    if isinstance(silos.target, Times):
        curves = [_survival(silo, predictor(silo.name), silos.target) for silo in map(silos.named, names[:SILOS])]
        return schema.Gallery(silos=[], survival=curves)
    if silos.target is not None:
        found_values = [_observed(silo, predictor(silo.name)) for silo in map(silos.named, names[:SILOS])]
        return schema.Gallery(silos=[], observed=found_values)
    shown, wrong = [], list[schema.SureError]()
    chosen = set(over_domains({name: silos.named(name).domain for name in names}, SILOS))
    for silo in map(silos.named, names):
        predict = predictor(silo.name)
        prediction = predict(silo.test.x, silo.subgroups.get("test"))
        wrong += _sure_errors(silos, silo, prediction)
        if silo.name not in chosen:
            continue
        order = prediction.total.argsort(stable=True).tolist()
        ends = {"certain": order[:SHOWN], "uncertain": order[::-1][:SHOWN]}
        items = {end: [_item(silos, silo.test, prediction, i) for i in places] for end, places in ends.items()}
        streams = {schema.INSIDE: (silo.test, prediction)} | {n: (d, predict(d.x)) for n, d in silo.streams.items()}
        found = _quadrants(silos, streams)
        shown.append(schema.GallerySilo(name=silo.name, domain=silo.domain, **items, quadrants=found))
    surest = sorted(wrong, key=lambda item: -item.probability)[:SURE_ERRORS]
    return schema.Gallery(classes=list(silos.classes), silos=shown, sure_errors=surest)


def _observed(silo: Silo, predict: Callable[..., Prediction]) -> schema.ObservedInputs:
    """Return the values and predictions of some test inputs of a quantity."""
    chosen = _spread(len(silo.test))
    found = predict(silo.test.x, silo.subgroups.get("test")).part(chosen)
    ends = found.value.new_full((len(chosen), 2), float("inf")) if found.interval is None else found.interval
    low, high = ([each if isfinite(each) else None for each in end.tolist()] for end in ends.unbind(1))
    return schema.ObservedInputs(
        silo=silo.name, observed=silo.values["test"][chosen].tolist(), value=found.value.tolist(), low=low, high=high
    )


def _survival(silo: Silo, predict: Callable[..., Prediction], target: Times) -> schema.SurvivalCurves:
    """Return the mean predicted survival of a silo's test inputs, and their Kaplan-Meier curve."""
    times, event = observed(silo.values["test"])
    grid = torch.linspace(0, float(times.max().clamp_max(target.end)), INPUTS, dtype=torch.float64)
    probs = predict(silo.test.x, silo.subgroups.get("test")).probs.double()
    known = at(*kaplan_meier(times, event), grid)
    predicted = target.survival(probs, grid).mean(0)
    return schema.SurvivalCurves(
        silo=silo.name, times=grid.tolist(), predicted=predicted.tolist(), observed=known.tolist()
    )


def _sure_errors(silos: Silos, silo: Silo, prediction: Prediction) -> list[schema.SureError]:
    """Return a silo's most confident errors, limited to the number shown for all silos, with the rows of a table."""
    data, encoder, rows = silo.test, silos.encoders.get(silo.name), silo.indices.get("test")
    wrong = (prediction.label != data.y) & (prediction.decision != Decision.ABSTAIN)
    places = wrong.nonzero()[:, 0].tolist()
    surest = sorted(places, key=lambda i: -float(prediction.probs[i].max()))[:SURE_ERRORS]
    found = [schema.SureError(**schema.as_json(_item(silos, data, prediction, i)), silo=silo.name) for i in surest]
    if encoder is None:
        return found
    return [
        each.model_copy(
            update={
                "source_row": None if rows is None else int(rows[i]) + 1,
                "row_values": encoder.decoded(data.x[i].numpy(force=True)),
            }
        )
        for each, i in zip(found, surest, strict=True)
    ]


def _quadrants(silos: Silos, streams: Mapping[str, tuple[Data, Prediction]]) -> list[schema.Quadrant]:
    """Return the first inputs of each quadrant of each stream; empty if one model answers every input."""
    cells: dict[tuple[str, str, int, bool], list[schema.Item]] = {}
    for stream, (data, prediction) in streams.items():
        decided = zip(prediction.answered_by.tolist(), (prediction.decision == Decision.ABSTAIN).tolist(), strict=True)
        for i, (whose, abstained) in enumerate(decided):
            found = cells.setdefault((stream, Decision(whose).name.lower(), whose, abstained), [])
            if len(found) < EXAMPLES:
                found.append(_item(silos, data, prediction, i))
    if len({key[2:] for key in cells}) < 2:
        return []
    return [
        schema.Quadrant(stream=stream, model=model, abstained=abstained, items=cells[stream, model, whose, abstained])
        for stream, model, whose, abstained in sorted(cells)
    ]


def _item(silos: Silos, data: Data, prediction: Prediction, i: int) -> schema.Item:
    return schema.Item(
        image=png(silos, data.x[i]) if silos.images else None,
        label=int(data.y[i]),
        predicted=int(prediction.label[i]),
        probability=float(prediction.probs[i].max()),
        **{name: float(values[i]) for name, values in prediction.uncertainty.items()},
        decision=Decision(int(prediction.decision[i])).name.lower(),
    )


def png(silos: Silos | Preparation, x: torch.Tensor) -> str:
    """Return a normalized image as base64 PNG."""
    array = silos.to_image(x)
    image = Image.fromarray(array.squeeze(-1) if array.shape[-1] == 1 else array)
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()


INPUTS = 60
"""Maximum number of test inputs per silo."""

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
    chosen = {silo.name: _spread(len(silo.test)) for silo in shown}
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


def over_domains(domains: Mapping[SiloId, str], most: int) -> list[SiloId]:
    """Return at most `most` silos, in order: the first of each domain, then the second of each, and so on."""
    seen = Counter[str]()
    turns = {}
    for name, domain in domains.items():
        turns[name] = seen[domain]
        seen[domain] += 1
    chosen = set(sorted(turns, key=lambda name: turns[name])[:most])
    return [name for name in domains if name in chosen]


def _spread(count: int) -> Tensor:
    """Return at most `INPUTS` evenly spaced positions."""
    return torch.linspace(0, count - 1, min(INPUTS, count)).round().long()


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
