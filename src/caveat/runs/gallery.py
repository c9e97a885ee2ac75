"""Test inputs to look at, as `gallery.json` keeps them: a silo's own business, which never leaves a silo."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Mapping, Sequence

import torch
from PIL import Image

from ..core import Data, Decision, Prediction, SiloId
from ..data import Silos
from ..files.schema.figures import INSIDE
from ..files.schema.gallery import Gallery, GallerySilo, Item, Quadrant, SureError
from ..files.schema.record import as_json

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
        decided = zip(prediction.answerer.tolist(), (prediction.decision == Decision.ABSTAIN).tolist(), strict=True)
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
