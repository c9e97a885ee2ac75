"""From a configuration, or from silos and a method in memory, to a run's folder."""

from __future__ import annotations

import dataclasses
import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from . import config as configuration
from . import data
from .config import Config, Evaluation
from .core import ConfigurationError, Method, RunError, SiloId, Site, State, seeded
from .data.pools import Array
from .engines.embedded import Embedded
from .engines.workplace import Workplace, one_thread, workspace
from .loop import Done, Participation, run
from .metrics import figures
from .nn.models import ModelSettings, build_model
from .prediction import Prediction
from .progress import Progress, Silent
from .store import ServerStore, SiloStore, append, read, replace, to_bytes, write_json
from .summary import Books, gallery, row, summarise
from .wrappers.evaluation import Evaluated

SPLITS = ("validation", "test")


@dataclass(frozen=True)
class Experiment:
    """One method on one federation, in one folder."""

    folder: Path
    silos: data.Silos
    method: Method
    model: ModelSettings
    seed: int
    participation: Participation
    evaluation: Evaluation = field(default_factory=Evaluation)
    workers: int = 1

    def build(self) -> nn.Module:
        """The method's module with the weights that the seed gives."""
        model = build_model(self.model, self.silos.shape, len(self.silos.classes), self.seed)
        with seeded(self.seed, "build"):
            return workspace(self.method.build(model))

    def workplace(self) -> Workplace:
        silos = {silo.name: silo for silo in self.silos}
        states = SiloStore(self.folder / "state" / "silos")
        return Workplace(Evaluated(self.method), self.build(), silos, states, self.seed)

    def prepare(self) -> None:
        """Write what is known before the first round."""
        write_json(self.folder / "splits.json", data.splits_record(self.silos))

    def proceed(self, progress: Progress) -> None:
        """Carry out all rounds that are left, from the newest checkpoint, and write the result."""
        began = time.perf_counter()
        workplace = self.workplace()
        site = self._server_site(workplace)
        store = ServerStore(self.folder / "state")
        saved = store.load()
        start, server, books = 0, self.method.init_server(site), Books()
        if saved is not None:
            server, record = saved
            start, books = record["t"] + 1, Books.of(record)
        with Embedded(workplace, self.workers) as engine, one_thread():
            for silo in engine.silos:
                workplace.states.forget(silo, start - 1)
            keeper = _Keeper(self, engine, store, books, progress)
            keeper.rewind()
            books.seconds["engine"] += time.perf_counter() - began
            server = run(
                engine.workplace.method, engine, site, server,
                participation=self.participation, start=start, number=books.number, after=keeper.after,
            )  # fmt: skip
            keeper.finish(server)

    def _server_site(self, workplace: Workplace) -> Site:
        empty = self.silos[0].train
        none = type(empty)(empty.x[:0], empty.y[:0])
        return Site("server", none, none, none, workplace.module)


class _Keeper:
    """Keeps the books of a run: evaluates, appends rows, saves checkpoints, tells the progress."""

    def __init__(
        self, experiment: Experiment, engine: Embedded, store: ServerStore, books: Books, progress: Progress
    ) -> None:
        self.experiment, self.engine, self.store = experiment, engine, store
        self.books, self.progress = books, progress
        self.rows = experiment.folder / "rounds.jsonl"
        self.mark = time.perf_counter()

    def rewind(self) -> None:
        """Drop rows of a round that was never completed."""
        with self.rows.open("ab") as file:
            file.truncate(self.books.rows)

    def after(self, done: Done, server: State) -> None:
        phase = done.step.work.__name__
        seconds = self._lap("train")
        self.books.count(done, phase)
        metrics: dict[str, float] = {}
        if done.step.trains and done.number % self.experiment.evaluation.every == 0:
            for split in self.experiment.evaluation.splits:
                metrics = self._evaluate(done.t, done.number, phase, split, server)[0]
        self._lap("evaluate")
        milestone = self.experiment.method.milestone(server)
        known = {k: v for k, v in (self.books.milestones or [{}])[-1].items() if k != "round"}
        if milestone != known:
            self.books.milestones.append({"round": done.number, **milestone})
            self.progress.note(", ".join(f"{name} {value:.4g}" for name, value in milestone.items()))
        self.books.number, self.books.rows = done.number, self.rows.stat().st_size
        self.store.save(done.t, server, self.books.record())
        self.progress.round(done.number, phase, {**metrics, "seconds": seconds})
        self._lap("engine")

    def finish(self, server: State) -> None:
        """Measure the final model on every split, and write the result."""
        t, number = self.books.last, self.books.number
        final: dict[str, Any] = {}
        for split in SPLITS:
            fresh = split not in self.experiment.evaluation.splits or number % self.experiment.evaluation.every
            final[split] = self._evaluate(t, number, "final", split, server, write=bool(fresh))[1]
        self._lap("evaluate")
        folder, method = self.experiment.folder, self.experiment.method
        (folder / "model").mkdir(exist_ok=True)
        replace(folder / "model" / "model.safetensors", to_bytes(method.broadcast(server)))
        silos = self.experiment.silos
        write_json(folder / "model" / "model.json", {
            "schema": 1, "method": type(method).__name__, "t": t, "model": vars(self.experiment.model),
            "shape": list(silos.shape), "classes": list(silos.classes),
        })  # fmt: skip
        write_json(folder / "gallery.json", gallery(silos, lambda silo: predictor(self.experiment, silo)))
        self._lap("engine")
        write_json(folder / "summary.json", summarise(self.experiment, self.books, final["test"]))

    def _evaluate(
        self, t: int, number: int, phase: str, split: str, server: State, write: bool = True
    ) -> tuple[dict[str, float], dict[SiloId, Any]]:
        evaluated = self.engine.workplace.method
        replies = self.engine.exchange(t, getattr(evaluated, split), evaluated.broadcast(server), self.engine.silos)
        payloads = {silo: update.payload for silo, update in replies.updates.items()}
        if write:
            about = {"round": number, "phase": phase, "split": split}
            rows = [about | row(self.experiment.method, silo, payloads[silo.name]) for silo in self.experiment.silos]
            append(self.rows, "".join(json.dumps(each) + "\n" for each in rows))
        each = [figures(payload["sums"]) for payload in payloads.values()]
        return {name: sum(f[name] for f in each) / len(each) for name in ("accuracy", "entropy")}, payloads

    def _lap(self, name: str) -> float:
        now = time.perf_counter()
        spent, self.mark = now - self.mark, now
        self.books.seconds[name] += spent
        return spent


def predictor(experiment: Experiment, silo: SiloId) -> Callable[[Tensor], Prediction]:
    """A function from inputs (N, ...), normalised as the silo's own, to the silo's Prediction of them."""
    workplace = experiment.workplace()
    down = read(experiment.folder / "model" / "model.safetensors")
    t = json.loads((experiment.folder / "model" / "model.json").read_text())["t"]
    if silo not in workplace.silos:
        raise ConfigurationError(f"no silo {silo!r} in {experiment.folder}; silos: {', '.join(workplace.silos)}")
    state = workplace.state(silo, t)
    site = workplace.silos[silo].site(workplace.module)

    def predict(x: Tensor) -> Prediction:
        with one_thread():
            return experiment.method.predict(down, state, site, x)

    return predict


@dataclass(frozen=True)
class Run:
    """A finished run."""

    experiment: Experiment
    temporary: object = None
    """What keeps a temporary folder alive."""

    @property
    def folder(self) -> Path:
        return self.experiment.folder

    @property
    def silos(self) -> data.Silos:
        return self.experiment.silos

    @property
    def summary(self) -> dict[str, Any]:
        """What `summary.json` holds."""
        result: dict[str, Any] = json.loads((self.folder / "summary.json").read_text())
        return result

    def predictor(self, silo: SiloId) -> Callable[[Tensor | Array], Prediction]:
        """A function from inputs to the silo's `Prediction` of them: normalised tensors (N, ...) as in the
        silo's splits, or arrays of raw images or features as the data source has them.
        """
        predict = predictor(self.experiment, silo)
        return lambda x: predict(x if isinstance(x, Tensor) else self.silos.prepare(x, silo))


def start(config: Config, out: Path, progress: Progress | None = None) -> Path:
    """Run a configuration in a new folder `out`, and return it. All that can be checked is checked before anything
    is written: raises ConfigurationError or DataError; RunError once the run has begun.
    """
    silos, methods = data.load(config.data, config.seed), [config.method.name, *config.beside]
    silos.check(config.training.batch_size)
    if config.federation.min_silos > len(silos):
        raise ConfigurationError(
            f"federation.min_silos = {config.federation.min_silos}, but data.source {config.data.source!r} gives "
            f"{len(silos)} silos"
        )
    for name in methods:
        _experiment(config, silos, out, config.build_method(name)).build()
    _check_empty(out)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"cannot make the folder {out}: {error.strerror}") from error
    replace(out / "config.toml", configuration.dump(config).encode())
    return _carry_out(config, silos, out, progress or Silent())


def proceed(folder: Path, progress: Progress | None = None, workers: int | None = None) -> Path:
    """Continue an interrupted run; a finished one is left as it is. Same bits as without the interruption."""
    config = load_config(folder)
    silos = data.load(config.data, config.seed)
    splits = folder / "splits.json"
    if splits.exists() and json.loads(splits.read_text()) != json.loads(json.dumps(data.splits_record(silos))):
        raise RunError(f"{folder}: the data of {config.data.source!r} are not those that the run began with")
    return _carry_out(config, silos, folder, progress or Silent(), workers)


def open_run(folder: Path) -> Run:
    """A finished run, to predict with. Raises ConfigurationError if it is none."""
    config = load_config(folder)
    if not (folder / "summary.json").exists():
        raise ConfigurationError(f"{folder} is not finished; `caveat resume {folder}` continues it")
    return Run(_experiment(config, data.load(config.data, config.seed), folder, config.build_method()))


def load_config(folder: Path) -> Config:
    if not (folder / "config.toml").exists():
        raise ConfigurationError(f"{folder} is not a run: it has no config.toml")
    return configuration.load(str(folder / "config.toml"))


def _experiment(
    config: Config, silos: data.Silos, folder: Path, method: Method, workers: int | None = None
) -> Experiment:
    participation = Participation(config.seed, config.federation.participation, config.federation.min_silos)
    workers = workers or config.engine.workers
    return Experiment(folder, silos, method, config.model, config.seed, participation, config.evaluation, workers)


def _carry_out(config: Config, silos: data.Silos, out: Path, progress: Progress, workers: int | None = None) -> Path:
    """The method itself, then those beside it, with as many rounds of training as it took."""
    main = _experiment(config, silos, out, config.build_method(), workers)
    _finish(main, progress, config.method.name)
    rounds = json.loads((out / "summary.json").read_text())["rounds_run"]
    for name in config.beside:
        same = dataclasses.replace(config, rounds=rounds)
        folder = out / "beside" / name
        folder.mkdir(parents=True, exist_ok=True)
        _finish(_experiment(same, silos, folder, same.build_method(name), workers), progress, name)
    return out


def _finish(experiment: Experiment, progress: Progress, title: str) -> None:
    if (experiment.folder / "summary.json").exists():
        return
    steps = Counter(step.trains for step in experiment.method.schedule())
    progress.begin(title, steps[True])
    try:
        experiment.prepare()
        experiment.proceed(progress)
    finally:
        progress.end()


def _check_empty(out: Path) -> None:
    if (out / "config.toml").exists():
        raise ConfigurationError(f"{out} already holds a run; `caveat resume {out}` continues it, --out names another")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigurationError(f"{out} exists and is not a run; name a new folder with --out")
