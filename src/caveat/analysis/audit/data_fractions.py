"""The first experiment of an audit: runs on nested fractions of the training data."""

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
from ...files import checked, locked, nothing_begun, record_of, write_record
from ...files.schema import AuditPlan, Participating, as_json
from ...runs import call_arguments
from ...runs.continuing_checks import check_begun, check_same_data
from ...runs.execution import execute
from ...runs.finished_run import Run
from ...runs.local_run import LocalRun
from ...runs.progress import Progress
from ...training.fit import Training
from .run_predictions import Observation, Observed


def nested_order(y: Tensor, *parts: object) -> Tensor:
    """Return a permutation (N,) of labels (N,) whose every prefix is stratified by class. It depends on the labels and
    the key only, so the first n1 < n2 positions are among the first n2."""
    rng = np.random.default_rng(key("share", *parts))
    place = torch.empty(len(y), dtype=torch.float64)
    for label in np.unique(y.numpy()):
        index = (y == int(label)).nonzero().squeeze(1)
        shuffled = index[torch.from_numpy(rng.permutation(len(index)))]
        place[shuffled] = (torch.arange(len(index), dtype=torch.float64) + rng.random()) / len(index)
    return place.argsort(stable=True)


def reduced(silos: Silos, share: float, seed: int) -> Silos:
    """Return the silos with a fraction of their training data and unchanged other splits. Raises DataError if too few
    examples are left. The shares of a seed are nested. Preprocessing (a table's encoders) stays fitted on all training
    data."""
    if share == 1:
        return silos
    fewer = dataclasses.replace(silos, silos=tuple(_reduced(silo, share, seed) for silo in silos))
    try:
        fewer.check(2)
    except DataError as error:
        raise DataError(f"with a fraction of {share:g} of the training data: {error}") from None
    return fewer


def _reduced(silo: Silo, share: float, seed: int) -> Silo:
    size = max(1, round(share * len(silo.train)))
    kept = nested_order(silo.train.y, seed, silo.name)[:size].sort().values
    indices = dict(silo.indices)
    if "train" in indices:
        indices["train"] = indices["train"][kept]
    return dataclasses.replace(silo, train=silo.train.part(kept), indices=indices)


def with_equal_steps(method: Method, silos: Silos) -> Method:
    """Return the method with its epochs converted to the optimizer steps of an average silo with all of its data.

    With epochs, a tenth of the data would also mean a tenth of the steps, and a less trained model is less certain.
    With equal steps, only the data differ. Epochs of a method's own settings (fine-tuning) do not change.
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
    """Runs of a specification by share and seed, each in its own folder; finished runs are not repeated."""

    whole: LocalRun
    """The run with all data; its folder is the audit's, and its seed is not used."""
    shares: tuple[float, ...]
    seeds: tuple[int, ...]

    def check(self) -> None:
        """Check all runs before the first; raise ConfigurationError or DataError if one of them cannot run."""
        for share in self.shares:
            if not 0 < share <= 1:
                raise ConfigurationError(
                    f"fractions: {share:g} is not a fraction of the training data; expected 0 < fraction <= 1"
                )
        for name, values in (("fractions", self.shares), ("seeds", self.seeds)):
            if len(set(values)) < len(values):
                raise ConfigurationError(
                    f"{name}: {', '.join(f'{value:g}' for value in values)}; expected different numbers"
                )
        if 1 not in self.shares:
            raise ConfigurationError("fractions: 1 is missing; almost all findings need runs with all data")
        if not self.seeds:
            raise ConfigurationError("seeds: expected one or more non-negative integers")
        for share in self.shares:
            for seed in self.seeds:
                reduced(self.whole.silos, share, seed)
        self.whole.silos.check(2)
        self.whole.spec.check(self.whole.info)

    def check_folder(self) -> None:
        """Raise ConfigurationError if the folder contains anything except an audit with the same settings. Seeds and
        shares may differ: an audit can be extended."""
        folder, plan = self.whole.folder, self.whole.folder / "plan.json"
        common = self.common()
        begun = record_of(plan, AuditPlan)
        if begun is not None:
            asked = checked(json.loads(json.dumps(as_json(common))), AuditPlan, str(plan))
            if other := ", ".join(name for name, value in asked if getattr(begun, name) != value):
                raise ConfigurationError(f"{folder} has an audit with different settings: {other}; choose a new folder")
        elif not nothing_begun(folder):
            raise ConfigurationError(f"{folder} exists and is not an audit; choose a new folder")

    @contextmanager
    def begun(self) -> Iterator[None]:
        """Lock the folder and write the plan of the runs. Raises the errors of `check_folder`."""
        folder = self.whole.folder
        self.check_folder()
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(f"cannot create the folder {folder}: {error.strerror}") from error
        with locked(folder / "runs"):
            self.check_folder()
            if not (folder / "plan.json").exists():
                write_record(folder / "plan.json", self.common())
            yield

    def common(self) -> AuditPlan:
        """Return all settings that affect the results, except for shares and seeds."""
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

    def run(self, progress: Progress) -> Iterator[tuple[float, int, Run]]:
        """Run everything; return the finished runs by fraction and seed, ending with those on all data."""
        number, count = 0, len(self.shares) * len(self.seeds)
        for share in sorted(self.shares):
            for seed in self.seeds:
                number += 1
                run = dataclasses.replace(
                    self.whole,
                    folder=self.whole.folder / "runs" / f"share-{share:g}-seed-{seed}",
                    silos=reduced(self.whole.silos, share, seed),
                    spec=dataclasses.replace(self.whole.spec, seed=seed),
                )
                check_same_data(run.folder, run.silos)
                run.folder.mkdir(parents=True, exist_ok=True)
                check_begun(run.folder)
                call_arguments.check_call(run)
                if (run.folder / "summary.json").exists():
                    run.check_code()  # a verdict may only combine runs of one model
                execute(run, progress, f"run {number} of {count}: {share:.3g} of the data, seed {seed}")
                yield share, seed, Run(run)


def observed(run: Run) -> Observed:
    """Return the predictions of each silo's predictor (its local or the global model) on its test split. Raises
    RunError for predictions that are not finite."""
    asks = {silo.name: run.experiment.predictor(silo.name) for silo in run.silos}
    seen = {s.name: Observation.of(asks[s.name](s.test.x, s.subgroups.get("test")), s.test.y) for s in run.silos}
    for name, observation in seen.items():
        if not all(values.isfinite().all() for values in (observation.probs, *observation.uncertainty.values())):
            raise RunError(f"{run.folder}: predictions of silo {name!r} are not finite: training has diverged")
    return seen


def mean_size(silos: Sequence[Silo]) -> float:
    """Return the mean number of training examples per silo."""
    return float(np.mean([len(silo.train) for silo in silos]))
