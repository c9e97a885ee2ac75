"""Compare exported models with their runs, and measure their speed: `python benchmarks/export.py [METHOD...]`.

Trains every method on scikit-learn's digits and, with CAVEAT_DATA, FedAvg, FedPN and TrFedDis on the heart disease
table, and FedAvg on a quantity and a time (the tables of `benchmarks/quantities.py`, and TCGA-BRCA by center). Exports
a silo's model to ONNX and compares predictions for 10,000 inputs: the silos' own, and inputs with noise.
Prints

- the largest difference of probabilities, except for inputs close to a tie, for which another model answers;
- the number of inputs whose label, decision, set or p-value differ, and how many of them are not close to a tie: close
  means that a relative change of 1e-5 in the compared values changes the run's own decision; for a quantity or a time,
  also the largest difference of medians, means, interval ends and risks, relative to the range of the bars;
- the time of the exported model relative to caveat's own prediction, one thread each, in turns within one process; and
  relative to the bare model (encoder and head, one pass) in onnxruntime, for methods with one model.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from torch import Tensor

import caveat
from caveat import Prediction
from caveat.config import load
from caveat.export.export_model import onnx_model
from caveat.export.exported_function import RawInputs, outputs
from caveat.export.recording import program_of
from caveat.runs.start import start
from caveat.uncertainty import typicality

INPUTS, TURNS = 10_000, 9
CLOSE = 1e-5
FEW = {
    "uefl": ["method.iterations=2", "method.extra_rounds=1", "method.codewords=16"],
    "fedpn": ["method.personal_epochs=2"],
    "apfl": ["uncertainty.policy=always"],
    "ditto": ["uncertainty.policy=always"],
}
DIGITS = ["rounds=3", "data.n_silos=3", "baselines=[]", "engine.workers=1"]
HEART = [
    "data.source=csv:uci_heart_cleveland.csv,uci_heart_hungarian.csv,uci_heart_switzerland.csv,uci_heart_va.csv",
    "data.target=disease", "model.name=mlp", "model.width=64", "rounds=5", "baselines=[]", "engine.workers=1",
]  # fmt: skip
NUMBERS = {
    "mpg, fedavg": ["data.source=csv:mpg_usa.csv,mpg_europe.csv,mpg_japan.csv", "data.target=mpg",
                    "data.predict=quantity"],
    "tcga-brca, fedavg": ["data.source=csv:" + ",".join(f"tcga_brca_train_{k}.csv" for k in range(6)),
                          "data.target=days", "data.predict=time", "data.event=died", "data.horizons=[365, 1825]"],
}  # fmt: skip
POLICIES = {
    "fedper, guaranteed": ["method.name=fedper", "uncertainty.policy=guaranteed", "uncertainty.risk=0.2", *DIGITS],
    "apfl, switch, sets": ["method.name=apfl", "uncertainty.policy=switch", "uncertainty.set_coverage=0.9", *DIGITS],
    "fedavg, laplace": ["method.name=fedavg", "uncertainty.source=laplace", "uncertainty.policy=switch", *DIGITS],
    "fedbn, ensemble": ["method.name=fedbn", "uncertainty.source=ensemble", "uncertainty.ensemble_size=3", *DIGITS],
}


def runs(methods: list[str]) -> Iterator[tuple[str, list[str]]]:
    """What is trained, by what it is called."""
    for name in methods or caveat.METHODS:
        if name in caveat.METHODS:
            yield name, [f"method.name={name}", *FEW.get(name, []), *DIGITS]
    for name, sets in POLICIES.items():
        if not methods or name in methods:
            yield name, sets
    for name in ("fedavg", "fedpn", "trfeddis") if os.environ.get("CAVEAT_DATA") else ():
        if not methods or f"heart, {name}" in methods:
            yield f"heart, {name}", [f"method.name={name}", *FEW.get(name, []), *HEART]
    for name, sets in NUMBERS.items() if os.environ.get("CAVEAT_DATA") else ():
        if not methods or name in methods:
            yield name, ["method.name=fedavg", "training.batch_size=16", *sets, *HEART[2:]]


def inputs(raw: RawInputs, silos: caveat.data.Silos) -> Tensor:
    """Raw inputs like the silos' own, half of them with noise."""
    generator = np.random.default_rng(0)
    if raw.kind == "images":
        pixels = silos.to_image(torch.cat([silo.test.x for silo in silos]))
        x = pixels[generator.integers(0, len(pixels), INPUTS)].astype(np.int64)
        x[INPUTS // 2 :] += generator.integers(-60, 61, x[INPUTS // 2 :].shape)
        return torch.from_numpy(x.clip(0, 255).astype(np.uint8).reshape(INPUTS, *raw.shape))
    encoder, found = raw.encoder, np.empty((INPUTS, *raw.shape), np.float32)
    numbers = iter(zip(encoder.medians, encoder.scales, strict=True))
    place = {column.name: i for i, column in enumerate(encoder.table)}
    for column in encoder.layout.columns:
        i = place[column.name]
        if column.categories is None:
            median, scale = next(numbers)
            found[:, i] = np.round(generator.normal(median, 2 * scale, INPUTS), 1)
            found[generator.random(INPUTS) < 0.1, i] = np.nan
        else:
            found[:, i] = generator.integers(-1, len(encoder.table[i].categories or ()) + 1, INPUTS)
    return torch.from_numpy(found)


def near_ties(ask: Callable[[Tensor], Any], x: Tensor) -> dict[str, Tensor]:
    """By output, which inputs lie next to a tie or threshold: a change of 1e-5 in what is compared makes another."""
    usual, scores, compared = typicality.conformal, typicality.score, Prediction.score
    base = ask(x)
    found = {name: torch.zeros(len(x), dtype=torch.bool) for name in base}
    try:
        for factor in (1 - CLOSE, 1 + CLOSE):
            typicality.conformal = lambda a, b, f=factor: usual(a, b * f)
            typicality.score = lambda a, b, f=factor: scores(a, b * f)
            Prediction.score = lambda self, name, f=factor: compared(self, name) * f
            for name, each in ask(x).items():
                other = each != base[name]
                found[name] |= other.any(1) if other.ndim > 1 else other
    finally:
        typicality.conformal, typicality.score, Prediction.score = usual, scores, compared
    if "label" in base:
        top = base["probs"].topk(2, -1).values
        found["label"] |= top[:, 0] - top[:, 1] <= CLOSE * top[:, 0]
    return found


def session(model: bytes) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def bare(run: caveat.Run, silo: str, raw: RawInputs) -> onnxruntime.InferenceSession | None:
    """The model that the method asks, in one pass without anything around it; None where it asks several."""
    method, at = run.experiment.complete_method, run.experiment.at(silo)
    if not method.softmax or len(list(method.loaded(*at))) != 1:
        return None
    (module,) = (module.eval() for _, module in method.loaded(*at))
    return session(onnx_model(program_of(lambda x: {"y": module(raw.prepared(x))}, raw.batch), {}).SerializeToString())


def ratio(first: Callable[[], object], second: Callable[[], object]) -> float:
    """How much longer the first takes: the median over turns, in time of the processor, as others may use it too."""
    found = []
    for _ in range(TURNS):
        taken = []
        for function in (first, second):
            begun = time.process_time()
            function()
            taken.append(time.process_time() - begun)
        found.append(taken[0] / taken[1])
    return statistics.median(found)


def row(name: str, run: caveat.Run) -> str:
    silo = run.preparation.names[0]
    raw = RawInputs(run.preparation, silo)
    x = inputs(raw, run.silos)
    predict, prepared = run.experiment.predictor(silo), raw.prepared(x)
    path = caveat.export_model(run, silo, out=run.folder.parent / f"{run.folder.name}.onnx")
    model, given = session(path.read_bytes()), {"inputs": x.numpy()}
    names = [output.name for output in model.get_outputs()]
    found = dict(zip(names, model.run(names, given), strict=True))
    expected = outputs(predict(prepared))
    ties = near_ties(lambda x: outputs(predict(x)), prepared)
    same = (found["answered_by"] == expected["answered_by"].numpy()) | ~ties["answered_by"].numpy()
    far = float(np.abs(found["probs"] - expected["probs"].numpy())[same].max())
    cells = [f"{name:20s}", f"{far:.0e}"]
    for key in ("label", "decision", "familiarity", "sets"):
        if key in found:
            other = found[key] != expected[key].numpy()
            other = other.any(1) if other.ndim > 1 else other
            cells.append(f"{key} {other.sum()} ({(other & ~ties[key].numpy()).sum()})")
    if (target := run.experiment.target(silo)) is not None:
        apart, width = [], target.edges[-1] - target.edges[0]
        for key in target.names:
            ours, theirs = found[key][same], expected[key].numpy()[same]
            known = np.isfinite(ours) & np.isfinite(theirs)
            assert (ours[~known] == theirs[~known]).all()
            apart.append(np.abs(ours - theirs)[known].max(initial=0.0) / (1 if key.startswith("risk") else width))
        cells.append(f"numbers {max(apart):.0e}")
    cells.append(f"{ratio(lambda: model.run(names, given), lambda: predict(prepared)):.2f} of caveat")
    if (alone := bare(run, silo, raw)) is not None:
        beside = ratio(lambda: model.run(names, given), lambda: alone.run(None, given))
        cells.append(f"{beside:.2f} of the bare model")
    return " | ".join([*cells, f"{path.stat().st_size / 1e3:.0f} kB"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("methods", nargs="*")
    methods = parser.parse_args().methods
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print(f"{'run':20s} | probabilities | differing of {INPUTS:,} (not next to a tie) | time")
    with tempfile.TemporaryDirectory() as folder:
        for i, (name, sets) in enumerate(runs(methods)):
            where = start(load(None, sets), Path(folder) / str(i))
            print(row(name, caveat.load(where)), flush=True)


if __name__ == "__main__":
    main()
