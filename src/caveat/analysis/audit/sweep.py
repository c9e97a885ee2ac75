"""Runs of one method on shares of the silos' training data, everything else the same."""

import dataclasses
import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ...core import ConfigurationError, DataError, Method, RunError, Silo, key
from ...core.settings import plain
from ...data import Silos, splits_record
from ...files.locks import locked, nothing_begun
from ...files.reading import checked, record_of
from ...files.schema.audit import AuditPlan, Participating
from ...files.schema.record import as_json
from ...files.writing import write_record
from ...runs import python_calls
from ...runs.execution import execute
from ...runs.local import LocalRun, Run
from ...runs.progress import Progress
from ...runs.spec_file import check_begun, check_same_data
from ...training.fit import Training
from .observations import Observation, Observed


def nested_order(y: Tensor, *parts: object) -> Tensor:
    """(N,) positions of labels (N,) in an order of which every beginning has the classes in about their shares.

    A function of the labels and the key alone, so that the first n1 < n2 positions are among the first n2.
    """
    rng = np.random.default_rng(key("share", *parts))
    place = torch.empty(len(y), dtype=torch.float64)
    for label in np.unique(y.numpy()):
        index = (y == int(label)).nonzero().squeeze(1)
        shuffled = index[torch.from_numpy(rng.permutation(len(index)))]
        place[shuffled] = (torch.arange(len(index), dtype=torch.float64) + rng.random()) / len(index)
    return place.argsort(stable=True)


def reduced(silos: Silos, share: float, seed: int) -> Silos:
    """The silos with that share of their training data; all other splits are the same. Raises DataError if too little.

    The shares of a seed are nested. What prepares inputs (a table's encoders) stays as fitted on all of them.
    """
    if share == 1:
        return silos
    fewer = dataclasses.replace(silos, silos=tuple(_reduced(silo, share, seed) for silo in silos))
    try:
        fewer.check(2)
    except DataError as error:
        raise DataError(f"with a share of {share:g} of the training data: {error}") from None
    return fewer


def _reduced(silo: Silo, share: float, seed: int) -> Silo:
    size = max(1, round(share * len(silo.train)))
    kept = nested_order(silo.train.y, seed, silo.name)[:size].sort().values
    indices = dict(silo.indices)
    if "train" in indices:
        indices["train"] = indices["train"][kept]
    return dataclasses.replace(silo, train=silo.train.part(kept), indices=indices)


def with_equal_steps(method: Method, silos: Silos) -> Method:
    """The method with its epochs as optimiser steps, as many as a silo takes on average with all of its data.

    With epochs, a tenth of the data would mean a tenth of the training too, and a model that is merely less trained
    is less certain: only with as many steps is it the data that make the difference. What a method trains by epochs
    of its own (fine-tuning) stays as it is.
    """
    training = getattr(method, "training", None)
    if not isinstance(training, Training) or training.local_steps is not None:
        return method
    per_epoch = np.mean([math.ceil(len(silo.train) / training.batch_size) for silo in silos])
    steps = max(1, round((training.local_epochs or 1) * float(per_epoch)))
    training = dataclasses.replace(training, local_epochs=None, local_steps=steps)
    return dataclasses.replace(method, training=training)  # type: ignore[type-var]


@dataclass(frozen=True)
class Sweep:
    """Runs of a specification by share and seed, each in a folder of its own; what is finished is not run again."""

    whole: LocalRun
    """With all data; its folder is the audit's, its seed unused."""
    shares: tuple[float, ...]
    seeds: tuple[int, ...]

    def check(self) -> None:
        """Raises ConfigurationError or DataError for what cannot be run, before anything is."""
        for share in self.shares:
            if not 0 < share <= 1:
                raise ConfigurationError(
                    f"fractions: {share:g} is no share of the training data, expected 0 < share <= 1"
                )
        for name, values in (("shares", self.shares), ("seeds", self.seeds)):
            if len(set(values)) < len(values):
                raise ConfigurationError(f"{name}: {', '.join(f'{value:g}' for value in values)} are not all different")
        if 1 not in self.shares:
            raise ConfigurationError("fractions: 1 is missing; all findings but one are about runs with all data")
        if not self.seeds:
            raise ConfigurationError("seeds: expected one or more whole numbers from 0")
        for share in self.shares:
            for seed in self.seeds:
                reduced(self.whole.silos, share, seed)
        self.whole.silos.check(2)
        self.whole.spec.check(self.whole.info)

    def check_folder(self) -> None:
        """Raises ConfigurationError if the folder holds something else than runs that have the same in common.

        More seeds and shares may be asked of the same folder.
        """
        folder, plan = self.whole.folder, self.whole.folder / "plan.json"
        common = self.common()
        begun = record_of(plan, AuditPlan)
        if begun is not None:
            asked = checked(json.loads(json.dumps(as_json(common))), AuditPlan, str(plan))
            if other := ", ".join(name for name, value in asked if getattr(begun, name) != value):
                raise ConfigurationError(f"{folder} holds an audit with other settings: {other}; name a new folder")
        elif not nothing_begun(folder):
            raise ConfigurationError(f"{folder} exists and is not an audit; name a new folder")

    @contextmanager
    def begun(self) -> Iterator[None]:
        """Hold the folder, in which what the runs have in common is written. Raises what `check_folder` does."""
        folder = self.whole.folder
        self.check_folder()
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(f"cannot make the folder {folder}: {error.strerror}") from error
        with locked(folder / "runs"):
            self.check_folder()
            if not (folder / "plan.json").exists():
                write_record(folder / "plan.json", self.common())
            yield

    def common(self) -> AuditPlan:
        """What decides the results of the runs, apart from shares and seeds."""
        whole, spec = self.whole, self.whole.spec
        return AuditPlan(
            method=plain(whole.method) | {"name": type(whole.method).__name__},
            model=spec.model.described,
            uncertainty=plain(spec.uncertainty),
            privacy={} if spec.privacy.clip_norm is None else vars(spec.privacy),
            server={} if spec.server.optimizer == "none" else vars(spec.server),
            participation=Participating(share=spec.participation.share, least=spec.participation.least),
            personal=[model.text for model in spec.personal],
            data=splits_record(whole.silos),
        )

    def run_of(self, share: float, seed: int) -> LocalRun:
        """One of the runs."""
        return dataclasses.replace(
            self.whole,
            folder=self.whole.folder / "runs" / f"share-{share:g}-seed-{seed}",
            silos=reduced(self.whole.silos, share, seed),
            spec=dataclasses.replace(self.whole.spec, seed=seed),
        )

    def run(self, progress: Progress) -> Iterator[tuple[float, int, Run]]:
        """Every run, finished, by share and seed, those with all data last."""
        number, count = 0, len(self.shares) * len(self.seeds)
        for share in sorted(self.shares):
            for seed in self.seeds:
                number += 1
                run = self.run_of(share, seed)
                check_same_data(run.folder, run.silos)
                run.folder.mkdir(parents=True, exist_ok=True)
                check_begun(run.folder)
                python_calls.check_call(run)
                if (run.folder / "summary.json").exists():
                    run.check_code()  # what is judged together has to be of one model
                execute(run, progress, f"run {number} of {count}: {share:.3g} of the data, seed {seed}")
                yield share, seed, Run(run)


def observed(run: Run) -> Observed:
    """What a run's predictors, the silos' own or the federation's as the method decides, say of the test splits.

    Raises RunError for numbers that are not finite.
    """
    seen = {silo.name: Observation.of(run.predictor(silo.name)(silo.test.x), silo.test.y) for silo in run.silos}
    for name, observation in seen.items():
        if not all(values.isfinite().all() for values in (observation.probs, *observation.uncertainty.values())):
            raise RunError(f"{run.folder}: predictions of silo {name!r} are not finite: training has diverged")
    return seen


def mean_size(silos: Sequence[Silo]) -> float:
    """Training examples of a silo, mean over silos."""
    return float(np.mean([len(silo.train) for silo in silos]))
