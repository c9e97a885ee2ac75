"""The server's app, which Flower starts: it trains a federation, or delivers its model to late-joining silos."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from ... import config as configuration
from ... import metrics
from ...config import Config
from ...core import ConfigurationError, Method, Round, RunError, SiloId, State, Tensors
from ...engines.allocator import use_huge_pages
from ...engines.flower import FlowerEngine
from ...engines.flower_grid import GridMessages
from ...engines.flower_messages import NEVER
from ...files import RUN, Entries, Ledger, ServerStore, held, manifest_of, owner_only, read_ledger
from ...runs.joining import DEFAULT_ROUNDS
from ...runs.progress import Progress
from ...runs.run_metrics import GROUP
from ...runs.spec import spec_of
from ...wrappers.evaluation import TEST, Evaluated
from ...wrappers.joining import Joining
from ..keys import SILO_KEYS, NameKeys
from ..request_terms import Terms
from .log import check_free, lock_of, logged
from .membership import PAUSE, OpenMembership
from .run import PATIENCE, FlowerRun, StartCommand, check_measurement, check_same, parts_of, serve

DELIVERED = "delivered"
MAJORITY = "that of the majority"
"""Reported next to a silo's accuracy, because its test split may be small and mostly of one class."""
TOLD = {
    "accuracy": "accuracy", MAJORITY: MAJORITY, "mae": "MAE", "reference_mae": "without inputs", "crps": "CRPS",
    "c_index": "C-index", "integrated_brier": "Brier score", "reference_integrated_brier": "without inputs",
    "interval_coverage": "coverage of intervals", "nll": "nll",
}  # fmt: skip
"""Metrics that are reported after a delivery, and their names."""


def deliver(
    config: Config,
    grid: Grid,
    folder: Path,
    silos: Sequence[SiloId],
    progress: Progress,
    rounds: int | None = None,
    start: StartCommand | None = None,
) -> None:
    """Wait for silos and send each the models of the finished federation in a folder, including its baselines.

    A silo that never trained with the others joins with `rounds` training rounds, 5 by default. Raises
    ConfigurationError for a federation that is not finished or has another configuration, RunError for silos that do
    not connect within `federation.start_timeout`, or do not get a model; all other silos get their models.
    """
    if config.data.source != "on_site":
        raise ConfigurationError(f"{folder}: only silos that read their own data store models")
    with held(lock_of(folder), f"{folder} is being run by another process"), owner_only():
        if not (folder / "summary.json").exists():
            raise ConfigurationError(f"{folder} is not finished, so its model cannot be delivered yet")
        check_same(folder, config)
        late: set[SiloId] = set()
        for name, part, own in parts_of(config, folder):
            late |= _deliver_part(config, own, name, folder, part, GridMessages(grid), silos, progress, rounds, start)
        if late:
            raise RunError(f"no model for {', '.join(sorted(late))}; repeat the command to try again")


def _deliver_part(
    config: Config, own: Config, name: str, folder: Path, part: Path, wire: GridMessages, silos: Sequence[SiloId],
    progress: Progress, rounds: int | None, start: StartCommand | None,
) -> set[SiloId]:  # fmt: skip
    """Deliver one method's model; return the silos that did not get it."""
    manifest_of(part).check(RUN, "ledger.jsonl")
    members = _members(config, own, name, folder, wire, silos, progress, start)
    here = [silo for silo in members.connected(wire) if silo in silos]
    run = FlowerRun(spec=spec_of(own, name), folder=part, wire=wire, members=members, config=config)
    found = Delivery.of(run, part, rounds, progress)
    missing = set(silos) - set(here)
    for silo in here:
        try:
            found.to(silo)
        except RunError as error:
            progress.note(f"{silo}: no model of {name}: {error}")
            missing.add(silo)
    return missing


def _members(
    config: Config, own: Config, name: str, folder: Path, wire: GridMessages, silos: Sequence[SiloId],
    progress: Progress, start: StartCommand | None,
) -> OpenMembership:  # fmt: skip
    """Return the membership of a finished run, after waiting for the named silos."""
    keys = NameKeys(Path(start.project) / SILO_KEYS if start is not None and start.project else None)
    keys.given()
    terms = Terms("", config, name, "", (), rounds=None if own.rounds == config.rounds else own.rounds)
    place = folder / DELIVERED / "federation.json"
    members = OpenMembership(place if place.exists() else folder / "federation.json", terms, progress.note, keys=keys)
    members.restore()
    members.path = place  # the finished run's file does not change
    place.parent.mkdir(exist_ok=True)
    members.save()
    start_timeout = config.federation.start_timeout or PATIENCE
    end = time.monotonic() + start_timeout
    progress.note(f"{name}: waiting for {', '.join(sorted(silos))}, at most {start_timeout:.0f} s")
    while set(silos) - set(members.connected(wire)) and time.monotonic() < end:
        members.meet(wire, end)
        time.sleep(PAUSE)
    if late := sorted(set(silos) - set(members.connected(wire))):
        progress.note(f"not connected after {start_timeout:.0f} s: {', '.join(late)}")
    members.save()
    return members


def _majority(sums: Tensors, class_counts: Sequence[int]) -> dict[str, float]:
    """Return the accuracy at a silo's test inputs of always predicting the most frequent class of its training data."""
    inputs = sums["confusion"].sum(1).tolist() if "confusion" in sums else []
    if len(inputs) != len(class_counts) or not sum(inputs):
        return {}
    return {MAJORITY: inputs[class_counts.index(max(class_counts))] / sum(inputs)}


@dataclass(frozen=True)
class Delivery:
    """Delivery of a finished federation's model to silos, one after the other."""

    method: Joining
    engine: FlowerEngine
    server: State
    last: int
    """The position of the last completed round in the schedule."""
    ledger: Ledger
    progress: Progress
    pasts: Mapping[SiloId, Past]

    @classmethod
    def of(cls, run: FlowerRun, part: Path, rounds: int | None, progress: Progress) -> Delivery:
        saved = ServerStore(part / "state").load()
        if saved is None:
            raise ConfigurationError(f"{part / 'state'}: the server's last state is missing")
        trained = saved.checkpoint.number
        method = Joining(run.complete_method, min(DEFAULT_ROUNDS, trained) if rounds is None else rounds, trained)
        bounds = {key: getattr(run.config.federation, key) for key in ("round_timeout", "start_timeout")}
        engine = FlowerEngine(
            Evaluated(method), run.wire, run.members, read=partial(check_measurement, run), joining=True,
            **{key: value for key, value in bounds.items() if value is not None},
        )  # fmt: skip
        ledger = Ledger(part / DELIVERED / "ledger.jsonl")
        (part / DELIVERED).mkdir(exist_ok=True)
        ledger.recover(None)
        pasts = pasts_of(read_ledger(part / "ledger.jsonl"), read_ledger(ledger.log.path), method.base)
        counted = {silo: past.done[-1] for silo, past in pasts.items() if past.done}
        engine.begin(saved.checkpoint.t, counted, {}, len(saved.checkpoint.rollbacks))
        return cls(method, engine, saved.server, saved.checkpoint.last, ledger, progress, pasts)

    def to(self, silo: SiloId) -> None:
        """Let a silo run the rounds that it missed, and store the model. Raises RunError for an invalid answer."""
        number = 0
        for t, step in self._missed(self.pasts.get(silo, Past())):
            number += step.trains
            replies = self.engine.exchange(t, step.address, step.broadcast(self.server), [silo])
            self.ledger.add(replies.updates, t=t, phase=step.name)
        down = self.engine.method.broadcast(self.server)
        replies = self.engine.exchange(self.last, TEST, down, [silo])
        self.ledger.add(replies.updates, t=self.last, phase="final", split=TEST)
        measured = replies.updates[silo].payload
        after = f" after {number} rounds alone" if number else ""
        if not measured:
            self.progress.note(f"{silo} has the model of {self.method.name}{after}; it measures it for itself alone")
            return
        majority = _majority(measured.get(GROUP, {}), self.engine.members.cards[silo].class_counts)
        found = metrics.figures(measured["sums"]) | majority
        told = ", ".join(f"{called} {found[name]:.3f}" for name, called in TOLD.items() if name in found)
        self.progress.note(f"{silo} has the model of {self.method.name}{after}: {told}")

    def _missed(self, past: Past) -> list[tuple[int, Round]]:
        """Return the rounds that a silo must still run, in the order of the schedule."""
        steps = [
            (t, step)
            for t, step in enumerate(self.engine.method.schedule())
            if t <= self.last and step.when(self.server)
        ]
        if not past.trained:  # it joins, or continues joining
            return [(t, step) for t, step in steps if t > past.last]
        # Only silos that never took part train: a model must not be trained further without being aggregated.
        after = [(t, step) for t, step in steps if not step.trains and t > past.last_trained]
        first = next((i for i, (t, _) in enumerate(after) if t not in past.done), len(after))
        # Later rounds depend on earlier ones: a temperature belongs to the model of a round.
        return after[first:]


@dataclass
class Past:
    """The rounds that a silo has run in a federation so far."""

    done: list[int] = field(default_factory=list)
    """Positions in the schedule of the rounds whose states the silo has; repeating a round undoes later rounds."""
    trained: bool = False
    """Whether the silo trained with the others, or has finished joining."""
    last_trained: int = NEVER
    """The last training round in `done`, or NEVER."""

    @property
    def last(self) -> int:
        """The round after which the silo continues joining: its last round, or NEVER if it has not trained alone."""
        return NEVER if self.last_trained == NEVER else self.done[-1]

    def add(self, t: int, trains: bool) -> None:
        """Record a round that the silo ran."""
        self.done = [*(each for each in self.done if each < t), t]
        self.last_trained = t if trains else self.last_trained


def pasts_of(run: Entries, delivered: Entries, method: Method) -> dict[SiloId, Past]:
    """Return the rounds that silos have run, from the ledgers of a run and its deliveries, with the run's method."""
    trains = [step.trains for step in method.schedule()]
    pasts = defaultdict[SiloId, Past](Past)
    for message in run.messages:
        if message.split is None and message.t is not None:
            pasts[message.silo].add(message.t, trains[message.t])
            pasts[message.silo].trained |= trains[message.t]
    for message in delivered.messages:
        past = pasts[message.silo]
        if message.split is None and message.t is not None:
            past.add(message.t, trains[message.t])
        elif past.last_trained != NEVER:  # it was evaluated with the finished model
            past.trained = True
    return dict(pasts)


PROJECT = "FEDERATION"
"""The environment variable with the project's folder, set by its scripts."""


def server_app(config_file: Path) -> ServerApp:
    """Return the server's app: it starts or continues the run in the folder that the run's configuration names.

    `run` is that folder, `set` are overrides of the configuration's keys, separated by ";". With `deliver`, silo names
    separated by ",", these silos get the model of the finished run; those that never took part join with `rounds`
    training rounds.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        use_huge_pages()
        given = context.run_config
        sets = [item.strip() for item in str(given.get("set", "")).split(";") if item.strip()]
        folder = Path(str(given.get("run") or "runs/federation")).expanduser().absolute()
        check_free(folder)  # before writing to the log of another process that runs it
        with logged(folder) as progress:
            progress.note(f"run: {folder}")
            config = configuration.load(str(config_file), sets)
            start = StartCommand(os.environ.get(PROJECT, ""), tuple(sets))
            if late := [name.strip() for name in str(given.get("deliver", "")).split(",") if name.strip()]:
                rounds = str(given.get("rounds", ""))
                deliver(config, grid, folder, late, progress, int(rounds) if rounds else None, start)
            else:
                serve(config, grid, folder, progress, start)

    return app
