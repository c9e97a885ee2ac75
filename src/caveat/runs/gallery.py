"""Example test inputs of a run: `gallery.json`, which stays on the machine with the silos' data."""

import base64
import io
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import isfinite

import torch
from PIL import Image
from torch import Tensor

from ..core import Data, Decision, Prediction, Silo, SiloId
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
    chosen = spread(len(silo.test))
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


def over_domains(domains: Mapping[SiloId, str], most: int) -> list[SiloId]:
    """Return at most `most` silos, in order: the first of each domain, then the second of each, and so on."""
    seen = Counter[str]()
    turns = {}
    for name, domain in domains.items():
        turns[name] = seen[domain]
        seen[domain] += 1
    chosen = set(sorted(turns, key=lambda name: turns[name])[:most])
    return [name for name in domains if name in chosen]


def spread(count: int) -> Tensor:
    """Return at most `INPUTS` evenly spaced positions."""
    return torch.linspace(0, count - 1, min(INPUTS, count)).round().long()
