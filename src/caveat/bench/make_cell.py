"""A cell of the leaderboard: a method is trained once on a federation, and asked by every source of uncertainty."""

import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..api import run as train
from ..core import CaveatError, Decision, Method, Prediction
from ..core.settings import plain
from ..files.schema import BoardCell
from ..runs.fingerprints import text_of
from ..runs.finished_run import Run
from ..runs.frozen_features import features_of
from ..runs.other_uncertainty import TRAINED, with_uncertainty
from ..wrappers.ensembles import has_rounds_after_training
from ..wrappers.uncertainty_settings import Uncertainty
from .cell_files import Arrays, CellPlace, write_cell
from .cell_metrics import RISK
from .federations import BoardFederation
from .settings import MAJORITY, POOLED, BoardSettings

SOURCES: Mapping[str, Mapping[str, Any]] = {
    "untempered": {"mc_samples": 1, "temperature_scaling": False},
    "one": {"mc_samples": 1},
    "dropout": {"source": "dropout"},
    "laplace": {"source": "laplace"},
    "evidence": {},
    "draws": {},
    "snapshots": {"source": "snapshots"},
    "ensemble": {"source": "ensemble"},
}
"""Sources of uncertainty, by the settings that they change: a single pass without and with a temperature, MC dropout,
Laplace's approximation, the method's own evidence or draws of its models, the models after the last rounds of the
same training, and an ensemble."""
SOFTMAX = ("one", "dropout", "laplace")
"""Sources of methods whose models have a softmax; others have evidence or draws."""


class AskedSilo(NamedTuple):
    """The test inputs of a silo, and the silo of the run that predicts for them: a different one if data are pooled."""

    name: str
    where: str
    y: Tensor
    sets: Mapping[str, Tensor]
    """Prepared inputs by kind: own, and others."""


def sources_of(method: Method) -> list[str]:
    own = SOFTMAX if method.softmax else ("evidence",) if "vacuity" in method.scores else ("draws",)
    return ["untempered", *own, *([] if has_rounds_after_training(method) else ["snapshots"]), "ensemble"]


def make_cell(place: CellPlace, settings: BoardSettings, federation: BoardFederation, folder: Path) -> BoardCell:
    """Train, ask, and write the files of a cell; a failed run is a cell, too. Raises ConfigurationError."""
    changes: dict[str, Any] = {}
    costs: dict[str, dict[str, float]] = {}
    arrays: Arrays = {f"{name}/id": ids for name, ids in federation.ids.items()}
    arrays |= {f"{silo.name}/y": silo.test.y.numpy().astype(np.int16) for silo in federation.silos}
    seconds: dict[str, float] = {"train": 0.0}
    failed = code = None
    if place.method == MAJORITY:
        arrays |= dict(_majority(federation))
        costs["frequencies"] = {"trainings": 0.0, "up": 0, "down": 0}
    else:
        method, model, changes = settings.method_of(place.method, place.federation, federation.settings)
        code = text_of(method)
        changes = {
            **changes,
            "rounds": getattr(method, "rounds", None),
            "training": plain(getattr(method, "training", None)),
        }
        try:
            with warnings.catch_warnings(), TemporaryDirectory(prefix="caveat-bench-") as work:
                warnings.simplefilter("ignore")
                asking = _Asking(place, settings, federation, Path(work), arrays, costs, seconds)
                asking.ask_all(method, model)
        except CaveatError as error:
            failed = str(error)
    kept = arrays if failed is None else {}
    return write_cell(place, changes, federation, folder, kept, costs, seconds, failed, code)


class _Asking:
    """The run of a cell, and what it adds to the cell for every source."""

    def __init__(
        self, place: CellPlace, settings: BoardSettings, federation: BoardFederation, work: Path, arrays: Arrays,
        costs: dict[str, dict[str, float]], seconds: dict[str, float],
    ) -> None:  # fmt: skip
        self.place, self.settings, self.federation, self.work = place, settings, federation, work
        self.arrays, self.costs, self.seconds = arrays, costs, seconds
        pooled = federation.pooled() if place.method == POOLED else None
        self.silos = federation.silos if pooled is None else pooled.silos
        self.asked = list(_asked(federation, pooled))

    def ask_all(self, method: Method, model: Any) -> None:
        began = time.process_time()
        arguments: dict[str, Any] = {"seed": self.place.seed, "every": 10**6, "splits": ["test"], "n_silos": 1}
        only = TRAINED
        if "snapshots" in sources_of(method):  # every other source can follow such a training, too
            only = replace(TRAINED, source="snapshots", ensemble_size=self.settings.ensemble_size)
        trained = train(self.silos, method, model=model, uncertainty=only, out=self.work / "trained", **arguments)
        self._keep_features(trained)
        self.seconds["train"] = time.process_time() - began
        for source in sources_of(method):
            chosen = self._own_choice(trained, source, method)  # a user asks once, so this is no part of the time
            began = time.process_time()
            self._ask(trained, source, chosen)
            self.seconds[source] = time.process_time() - began

    def _keep_features(self, run: Run) -> None:
        """Encode inputs once: every source asks about the same ones."""
        if (encoder := run.experiment.frozen_encoder) is not None:
            for each in self.asked:
                for x in each.sets.values():
                    features_of(encoder, x)

    def _own_choice(self, trained: Run, source: str, method: Method) -> Run | None:
        """Return the run with the method's own choice between models, or None if the method has one model."""
        if method.policy == "always":
            return None
        return with_uncertainty(trained, Uncertainty(**self._changed(source)), self.work / f"{source}-own")

    def _changed(self, source: str) -> dict[str, Any]:
        several = source in ("snapshots", "ensemble")
        return {**SOURCES[source], **({"ensemble_size": self.settings.ensemble_size} if several else {})}

    def _ask(self, trained: Run, source: str, own: Run | None) -> None:
        members = self.settings.ensemble_size if source == "ensemble" else 1
        guaranteed = Uncertainty(policy="guaranteed", risk=RISK, **self._changed(source))
        run = with_uncertainty(trained, guaranteed, self.work / source)
        traffic = [each.summary["traffic"] for each in (trained, run)]
        self.costs[source] = {
            "trainings": members,
            **{way: sum(t[f"bytes_{way}"] for t in traffic) for way in ("up", "down")},
        }
        for each in self.asked:
            answers, at = run.answers(each.where), run.experiment.at(each.where)
            chosen = None if own is None else own.experiment.predictor(each.where)
            for kind, x in each.sets.items():
                said = answers(x)
                found = said[max(said)] if chosen is None else chosen(x)
                decided = run.experiment.complete_method.decide(at.down, at.state, said) if kind == "own" else None
                self.arrays |= _kept(f"{source}/{each.name}/{kind}", found, decided)


def _kept(place: str, found: Prediction, decided: Prediction | None) -> Arrays:
    """Return (N, ...) arrays of a prediction, and whether each input is answered under a guarantee."""
    told = {"probs": found.probs, "epistemic": found.epistemic, **found.p_values}
    kept = {f"{place}/{name}": each.numpy().astype(np.float32) for name, each in told.items()}
    if decided is not None:
        kept[f"{place}/answered"] = (decided.decision != Decision.ABSTAIN).numpy()
        kept[f"{place}/label"] = decided.label.numpy().astype(np.int16)
    return kept


def _asked(federation: BoardFederation, pooled: BoardFederation | None) -> Iterator[AskedSilo]:
    begin = 0
    for silo in federation.silos:
        own, others = silo.test.x, federation.others[silo.name]
        if pooled is not None:
            end = begin + len(silo.test)
            own, begin = pooled.silos[0].test.x[begin:end], end
            raw = federation.dealt[silo.name].others
            others = {kind: pooled.silos.prepare(x, "all") for kind, x in raw.items()}
        yield AskedSilo(silo.name, silo.name if pooled is None else "all", silo.test.y, {"own": own, **others})


def _majority(federation: BoardFederation) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield for every input the classes' shares of the silo's training data, with one more input of each class."""
    for silo in federation.silos:
        counts = np.bincount(silo.train.y.numpy(), minlength=len(federation.silos.classes)) + 1.0
        for kind, x in {"own": silo.test.x, **federation.others[silo.name]}.items():
            probs = np.tile(counts / counts.sum(), (len(x), 1)).astype(np.float32)
            yield f"frequencies/{silo.name}/{kind}/probs", probs
            yield f"frequencies/{silo.name}/{kind}/epistemic", np.zeros(len(x), np.float32)
