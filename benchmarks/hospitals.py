"""Measure the benefit of federation for four hospitals, compared with local training and the majority class.

    CAVEAT_DATA=DIR python benchmarks/hospitals.py --out FILE.jsonl            # seeds 0 to 9, ten minutes on one core
    CAVEAT_DATA=DIR python benchmarks/hospitals.py --out FILE.jsonl --table    # the tables from the results so far

The hospitals are those of examples/hospitals (UCI heart disease: Cleveland, Hungary, Switzerland, VA), all on one
machine, and `fedpn` and `uefl` have the settings of that example. Settings of all rows were chosen on validation data
of other seeds, 100 to 105 (`--split validation --first 100 --seeds 6`). The file stores results, and repeating the
command adds the missing ones. `--small` trains for one round.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

import caveat
from caveat import data, metrics
from caveat.analysis.statistics import SeedDifferences, Values, estimate, interval
from caveat.config import Config, load
from caveat.core import Method, Tensors
from caveat.data.tables.declarations import LabelCode
from caveat.nn.models import ModelSettings

EXAMPLE = Path(__file__).parents[1] / "examples" / "hospitals"
HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
MAJORITY, LOCAL, LOGISTIC = "majority", "local", "local logistic regression"
LINEAR = ModelSettings(name="linear", dropout=0.0)
FIGURES = ("accuracy", "sensitivity", "specificity", "found", "spared", "auroc", "balanced_accuracy")
""" "found" and "spared" are sensitivity and specificity at thresholds from calibration inputs; all others, but for the
AUROC, are of the most probable class."""
SHORT = ("sensitivity", "specificity", "sens., threshold", "spec., threshold", "AUROC")
Record = Mapping[str, Mapping[str, float]]
"""Figures by hospital; one that is not defined there is absent."""


def example(method: str) -> Config:
    return load(str(EXAMPLE / f"{method}.toml"))


def of_example(method: str) -> tuple[Method, ModelSettings]:
    config = example(method)
    return config.build_method(), config.model


def rows() -> dict[str, Callable[[], tuple[Method, ModelSettings]]]:
    """Method and model of each row; the model is the example's but where it says otherwise."""
    model = example("fedpn").model
    normed = dataclasses.replace(model, norm=True, dropout=0.5)

    def training(lr: float, epochs: int = 2) -> caveat.Training:
        return caveat.Training(local_epochs=epochs, batch_size=16, lr=lr)

    return {
        LOCAL: lambda: (caveat.Local(rounds=7, training=training(0.001)), model),
        LOGISTIC: lambda: (caveat.Local(rounds=7, training=training(0.003)), LINEAR),
        "fedavg": lambda: (caveat.FedAvg(rounds=10, training=training(0.003)), model),
        "fedbn": lambda: (caveat.FedBN(rounds=10, training=training(0.002, 4)), normed),
        "fedpn": lambda: of_example("fedpn"),
        "uefl": lambda: of_example("uefl"),
        "trfeddis": lambda: (caveat.TrFedDis(rounds=10, training=training(0.001)), model),
        "ditto, logistic regression": lambda: (caveat.Ditto(rounds=7, training=training(0.003)), LINEAR),
    }


def silos(seed: int) -> data.Silos:
    """The hospitals' tables, read by the example's dictionary, with the splits that the settings were chosen on."""
    settings = dataclasses.replace(example("fedpn").data, split=data.Split(train=0.8, validation=0.1, calibration=0.1))
    codes = tuple(LabelCode(code=str(i), meaning=name) for i, name in enumerate(settings.classes))
    tables = ",".join(f"uci_heart_{name}.csv" for name in HOSPITALS)
    return data.load(dataclasses.replace(settings, source=f"csv:{tables}", label_codes=codes), seed)


def measured(found: data.Silos, row: str, seed: int, split: str, small: bool) -> Record:
    if row == MAJORITY:
        return {silo.name.removeprefix("uci_heart_"): majority(silo, split) for silo in found}
    method, model = rows()[row]()
    if small:
        method = dataclasses.replace(method, rounds=1)  # type: ignore[type-var]  # all of them are dataclasses
    asked = caveat.Uncertainty(policy="always" if method.policy == "blend" else None)  # its paper's prediction
    run = caveat.run(found, method, model=model, seed=seed, every=1000, uncertainty=asked)
    records = {each["name"]: each for each in run.summary["silos"]}
    of_silos = {}
    for silo in found:
        if split == "validation":
            predicted = run.predictor(silo.name)(silo.validation.x)
            own = figures(metrics.class_sums(predicted, silo.validation.y))
        else:
            record = records[silo.name]
            confusion, at = record["classification"]["confusion"], record["test"]
            own = {name: at[name] for name in ("accuracy", "auroc", "balanced_accuracy") if name in at} | said(
                confusion
            )
            thresholds = {"found": "sensitivity", "spared": "specificity"}
            own |= {name: at[figure] for name, figure in thresholds.items() if figure in at}
        of_silos[silo.name.removeprefix("uci_heart_")] = own
    return of_silos


def majority(silo: data.Silo, split: str) -> dict[str, float]:
    """Figures of always the most frequent class of a silo's training data."""
    most, y = int(silo.train.y.bincount().argmax()), getattr(silo, split).y
    always = {"sensitivity": float(most), "specificity": 1.0 - most}
    found = {"accuracy": float((y == most).double().mean()), **always}
    if len(y.unique()) == 2:
        found |= {"auroc": 0.5, "balanced_accuracy": 0.5}
    return found | ({"found": always["sensitivity"], "spared": always["specificity"]} if split == "test" else {})


def figures(sums: Tensors) -> dict[str, float]:
    """Those of the most probable class, and the AUROC."""
    confusion = sums["confusion"]
    found = metrics.classification({"confusion": confusion, "ranks": sums["ranks"]})
    kept = {name: found[name] for name in ("auroc", "balanced_accuracy") if name in found}
    return {"accuracy": float(confusion.trace() / confusion.sum()), **kept, **said(confusion.tolist())}


def said(confusion: list[list[float]]) -> dict[str, float]:
    """Sensitivity and specificity of the most probable class, as far as they are defined."""
    (no, falsely), (missed, yes) = confusion
    found = {"sensitivity": yes / (yes + missed)} if yes + missed else {}
    return found | ({"specificity": no / (no + falsely)} if no + falsely else {})


def values(rows: list[dict[str, Any]], row: str, figure: str) -> Values:
    """A figure by seed and hospital."""
    of_seeds = {each["seed"]: each["figures"] for each in rows if each["row"] == row}
    return {
        seed: {name: own[figure] for name, own in found.items() if figure in own} for seed, found in of_seeds.items()
    }


def over_hospitals(found: Values) -> str:
    """The mean over seeds of the mean over hospitals."""
    of_seeds = [fmean(own.values()) for own in found.values() if own]
    return f"{fmean(of_seeds):.2f}" if of_seeds else ""


def table(rows: list[dict[str, Any]]) -> Iterator[str]:
    names = list(dict.fromkeys(each["row"] for each in rows))
    yield from ("Means over hospitals and seeds; accuracy in %, differences in points, with 95 % intervals:", "")
    beside = [name for name in (MAJORITY, LOCAL, LOGISTIC) if name in names]
    yield from head(["accuracy", *(f"minus {name}" for name in beside)])
    for name in names:
        accuracy = values(rows, name, "accuracy")
        whole = interval(accuracy)
        gaps = ["" if other == name else gap(accuracy, values(rows, other, "accuracy")) for other in beside]
        yield line(name, [f"{100 * whole.mean:.1f} [{100 * whole.low:.1f}, {100 * whole.high:.1f}]", *gaps])
    yield ""
    yield from head([*SHORT, "balanced accuracy", f"minus {LOCAL}"])
    for name in names:
        cells = [over_hospitals(values(rows, name, figure)) for figure in FIGURES[1:]]
        balanced = [values(rows, each, "balanced_accuracy") for each in (name, LOCAL)]
        more = gap(*balanced) if name != LOCAL and all(balanced) else ""
        yield line(name, [*cells, more])
    for hospital in HOSPITALS:
        yield from ("", f"{hospital}:", "")
        yield from head(["accuracy", f"minus {MAJORITY}", *SHORT])
        for name in names:
            found = [at(values(rows, name, figure), hospital) for figure in FIGURES]
            means = [fmean(own[hospital] for own in each.values()) if each else None for each in found]
            written = ["" if mean is None else f"{mean:.2f}" for mean in means[1:-1]]
            ahead = gap(found[0], at(values(rows, MAJORITY, "accuracy"), hospital)) if name != MAJORITY else ""
            yield line(name, [f"{100 * (means[0] or 0):.1f}", ahead, *written])


def at(found: Values, hospital: str) -> Values:
    """One hospital's figures, of the seeds in which it has one."""
    return {seed: {hospital: own[hospital]} for seed, own in found.items() if hospital in own}


def gap(a: Values, b: Values) -> str:
    gaps = [[a[seed][name] - b[seed][name] for name in sorted(a[seed].keys() & b[seed])] for seed in a if seed in b]
    found = estimate([SeedDifferences(None, np.arange(len(each)), np.array(each)) for each in gaps if each])
    low, high = found.interval()
    return f"{100 * found.mean:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]"


def head(names: list[str]) -> Iterator[str]:
    yield line("", names)
    yield f"| --- |{' ---: |' * len(names)}"


def line(name: str, cells: list[str]) -> str:
    return f"| {' | '.join([name, *cells])} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first", type=int, default=0, help="the first seed; others than 0 to 9 to choose settings")
    parser.add_argument("--rows", default="", help="names of rows with semicolons between them [all]")
    parser.add_argument("--split", choices=("validation", "test"), default="test")
    parser.add_argument("--small", action="store_true", help="one round, to see that it runs")
    parser.add_argument("--table", action="store_true", help="train nothing")
    given = parser.parse_args()
    found = [json.loads(each) for each in given.out.read_text().splitlines()] if given.out.exists() else []
    done = {(each["seed"], each["row"]) for each in found}
    wanted = given.rows.split(";") if given.rows else [MAJORITY, *rows()]
    for seed in range(given.first, given.first + (0 if given.table else given.seeds)):
        tables = silos(seed)
        for row in [row for row in wanted if (seed, row) not in done]:
            own = measured(tables, row, seed, given.split, given.small)
            found.append({"seed": seed, "row": row, "figures": own})
            with given.out.open("a") as file:
                file.write(json.dumps(found[-1]) + "\n")
    print("\n".join(table(found)))


if __name__ == "__main__":
    main()
