"""A silo in a federation: its data, its private state, and its messages.

Its stored copy of a finished federation can be opened for predictions.
"""

import dataclasses
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from ... import config as configuration
from ...core import ConfigurationError, DataError, Payload, RunError, Silo, SiloId, Update, check_silo_name
from ...core.devices import find_device
from ...data import Silos
from ...data.agreement import own_schema, shared_schema
from ...data.quantities import fitted, kind_of, summed
from ...data.shared_schema import DataSchema
from ...data.tables.declarations import LabelCode, OwnColumn
from ...data.tables.reading_settings import NUMERIC
from ...engines.executor import Executor
from ...engines.flower_messages import NEVER, Order, Words
from ...engines.secure_sums import weight_in, weights_of
from ...files import Ledger, held, read, refuse_link, refuse_links, to_bytes, write_bytes, write_record
from ...files.schema import SCHEMA, FileSum, ModelFile, SiloKeeps, SiloSource
from ...runs.finished_run import Run
from ...runs.initial_model import MODEL
from ...runs.spec import spec_of
from ...runs.spec_file import described
from ...runs.stored_preparation import PREPARATION, kept_preparation
from ...secure.messages import SecureRefused
from ...wrappers.base import find
from ...wrappers.evaluation import TEST
from ...wrappers.privacy import Private
from ..refusals import check_count, check_counts, check_grid, check_terms, told_by_rule
from ..request_terms import Terms, differing
from .data import SiloData, agreement
from .secure import PEERS, SecureFolder, SignedName
from .silo_file import SiloFile
from .store import KeptSiloRun, OwnBooks, SiloRun, own_manifest

BUSY = 60.0
"""Seconds to wait for another process of the same silo, such as one whose node was killed."""


Member = TypeVar("Member", SiloRun, KeptSiloRun)
MODEL_FILES = ("silo.json", MODEL, "model/model.json")
"""A silo's stored copy of a federation's model, for predictions."""


@dataclass(frozen=True)
class SiloSide:
    """A silo with its own data."""

    file: SiloFile
    key: Path | None = None
    """The file of the silo's private key, if it has one."""

    def introduce(self, terms: Terms) -> dict[str, str | int]:
        """Return the description of the silo's data for the agreement (see `data.shared_schema.DataSchema`)."""
        self.file.limits.check_begin(self.file.silo, terms, self.file.state)
        silo = self.file.silo
        with told_by_rule(self.file, terms):
            check_terms(self.file, terms)
            check_grid(terms.grid, self.file)
            known = None if terms.agreement is None else self.data.frozen(terms).known()
            if known is not None:
                return {"silo": silo, "sketch": json.dumps(known.told)}
            settings, allowed = self.data.settings(terms), self.file.categorical or ()
            schema = own_schema(
                settings, terms.config.seed, silo, allowed, self.data.rearranged(settings),
                lambda counts, classes: check_count("train", counts, classes, self.file), self.file.magnitudes,
                terms.grid if terms.agreement is None else None,
            )  # fmt: skip
        return {"silo": silo, "sketch": json.dumps(schema.to_json())}

    def check_joining(self, terms: Terms) -> Silos:
        """Run all checks of `introduce` and `join`, without other silos and without writing anything; return the silo.

        Raises the errors of both: ToldRefusal, with the full error as its cause, for a refusal by a rule; BeyondLimits,
        DataError and ConfigurationError otherwise.
        """
        data = terms.config.data

        def schema(grid: tuple[float, ...]) -> DataSchema:
            return DataSchema.of_json(json.loads(str(self.introduce(replace(terms, grid=grid))["sketch"])))

        def count(grid: Tensor) -> Tensor:
            edges = tuple(grid.tolist())
            return summed([schema(edges).sums], data, edges)

        agreed = shared_schema({self.file.silo: schema(())}, data)
        if data.predict in NUMERIC:
            kind, bounds = kind_of(data), data.range
            agreed = agreed.predicting(fitted(lambda: kind.counted(count, data.target or "", bounds), data))
        return self._silos(replace(terms, names=(self.file.silo,), agreement=agreed), self.data.read_anew)

    def join(self, terms: Terms) -> dict[str, str | int]:
        """Return the silo's sizes, class counts and the hashes of its splits, under the agreement."""
        self.file.limits.check_begin(self.file.silo, terms, self.file.state)
        self.keep_configuration(terms)
        part = self.run(terms)
        part.silos.check(terms.config.training.batch_size)
        return {"silo": self.file.silo, **self.data.sizes(terms, part.silos[0])}

    def says(self, terms: Terms) -> dict[str, str | int]:
        """Return the silo's current sizes, which are sent with every update after rows were removed from its data."""
        return self.data.sizes_once_dropped(terms)

    def secure(self, terms: Terms, question: Words) -> Words:
        """Answer a question of secure aggregation. Raises SecureRefused."""
        self.keep_configuration(terms)
        folder = self.folder(terms)
        if not terms.config.federation.secure:
            raise SecureRefused(f"silo {self.file.silo!r} joined a federation without secure aggregation")
        folder.mkdir(exist_ok=True)
        busy = f"{folder}: another process has been using it for {BUSY:.0f} s"
        with held(folder / "lock", busy, BUSY):
            refuse_links(folder)
            return self._secure(folder).answer(f"{terms.federation}/{terms.method}", question)

    def _secure(self, folder: Path) -> SecureFolder:
        return SecureFolder(folder, SignedName(self.file.silo, self.key, folder.parent / PEERS, self.file.peers))

    def perform(self, terms: Terms, order: Order, payload: Payload, request: bytes = b"") -> Update:
        """Run a client task; store the new state, and a ledger line about what is sent. In a federation with secure
        aggregation, an update of which the server needs only the sum is masked. `request` is a digest of the request.

        Raises RunError for a request that no server of this federation would send, BeyondLimits for an update beyond
        the silo's limits, SecureRefused for a request without the keys to mask its update."""
        self.keep_configuration(terms)
        folder = self.folder(terms)
        busy = f"{folder}: another process has been using it for {BUSY:.0f} s"
        with held(folder / "lock", busy, BUSY), self._counting():
            run = self.run(terms)
            executor = run.joining if order.joins else run.executor()
            books = OwnBooks(folder)
            check_order(order, executor, self.file.silo, books)
            self.file.limits.check_order(self.file.silo, terms, order, self.file.state)
            refuse_links(folder)
            ledger = Ledger(folder / "ledger.jsonl")

            spec, noise = run.spec, find(executor.method, Private)
            weights = weights_of(executor.method, order.t, order.task) if spec.federation.secure else None

            def record(update: Update, known: FileSum | None) -> FileSum:
                if order.joins and weights is not None:
                    update = Update({}, update.examples)
                ledger.recover(known)
                ledger.add({self.file.silo: update}, weights is not None, t=order.t, task=order.task)
                ledger.log.sync()
                return ledger.log.sum

            update = books.perform(executor, order, payload, record, terms.config.engine.kept_checkpoints)
            if order.task == TEST:
                self._keep_model(folder, terms, order.t, payload)
            if weights is not None and any(update.payload.values()):
                if order.joins:
                    return Update({}, update.examples)
                shares = noise.silos if spec.privacy.where == "sum" and noise is not None else 0
                return self._secure(folder).masked(order, request, update, weight_in(update, weights), shares)
        return update

    @contextmanager
    def _counting(self) -> Iterator[None]:
        """Prevent other federations of the silo from sending within this context, if limits are checked."""
        if not self.file.limits.counts:
            yield
            return
        busy = f"{self.file.state}: another federation has been using it for {BUSY:.0f} s"
        with held(self.file.private() / "lock", busy, BUSY):
            yield

    def keep_configuration(self, terms: Terms) -> None:
        """Store a federation's configuration when it is first received. Raises DataError if it differs later, RunError
        if its folder is a link."""
        for folder in (self.home(terms), self.folder(terms)):
            refuse_link(folder)
        path = self.file.private(self.home(terms).name) / "config.toml"
        if not path.exists():
            write_bytes(path, configuration.dump(terms.config).encode())
            about = f"{terms.config.method.name}, {terms.config.rounds} rounds"
            print(f"caveat: silo {self.file.silo!r} joins a federation, {about}; its files are in {path.parent}",
                  file=sys.stderr, flush=True)  # fmt: skip
        elif path.read_text() != configuration.dump(terms.config):
            joined = described(spec_of(configuration.loads(path.read_text(), str(path))))
            if found := differing(joined, terms.config):
                raise DataError(f"the federation's configuration differs from {path}, stored at joining: {found}")

    def run(self, terms: Terms) -> SiloRun:
        """Return the run of these terms on the silo's data."""
        return self._run(terms, self._silos(terms, self.data.silo), self.folder(terms), self.file.secret())

    def _silos(self, terms: Terms, read: Callable[[Terms], Silo]) -> Silos:
        """Return the silo alone, encoded with the agreed schema. Raises ToldRefusal if its rules do not allow that."""
        with told_by_rule(self.file, terms):
            check_terms(self.file, terms)
            wanted = terms.config.data.subgrouping
            subgroups = None if wanted is None else wanted.fitted(())  # declared, so independent of data
            agreed = agreement(terms)
            silos = Silos((read(terms),), agreed.classes, subgroups=subgroups, target=agreed.quantity)
            check_counts(silos, self.file)
        return silos

    def predicting(self, terms: Terms, folder: Path) -> KeptSiloRun:
        """Return the run in a folder, for predictions; it writes nothing."""
        prepares = kept_preparation(folder)
        spec = spec_of(terms.own_config, terms.method)
        return _with_same_code(
            KeptSiloRun(
                spec=spec, folder=folder, prepares=prepares, read_silos=lambda: self.data.stored(terms, prepares),
                names=terms.names, devices=self.devices, positive_class=terms.config.data.positive_class,
            ),
            terms,
        )  # fmt: skip

    @property
    def devices(self) -> tuple[torch.device, ...]:
        """The silo's devices. Raises ConfigurationError for a device that does not exist."""
        return (find_device(self.file.device, key="device"),)

    def _run(self, terms: Terms, silos: Silos, folder: Path, secret: int) -> SiloRun:
        spec = spec_of(terms.own_config, terms.method)
        run = SiloRun(spec=spec, folder=folder, silos=silos, names=terms.names, secret=secret, devices=self.devices)
        return _with_same_code(run, terms)

    @property
    def data(self) -> SiloData:
        """The silo's own data."""
        return SiloData(self.file)

    def home(self, terms: Terms) -> Path:
        """Return the folder of a federation."""
        return self.data.home(terms)

    def folder(self, terms: Terms) -> Path:
        """Return the folder of one method of a federation."""
        if terms.method not in (terms.config.method.name, *terms.config.baselines):
            raise DataError(f"{terms.method!r} is not a method of the federation")
        return self.home(terms) / terms.method

    def _keep_model(self, folder: Path, terms: Terms, t: int, down: Payload) -> None:
        """Store the global model of the last evaluation, for `caveat predict` at the silo."""
        (folder / "model").mkdir(exist_ok=True)
        write_bytes(folder / "model" / "model.safetensors", to_bytes(down))
        write_record(folder / "model" / "model.json", ModelFile(schema=SCHEMA, t=t))
        kept = {key: value for key, value in vars(self.file).items() if key in SiloSource.model_fields}
        own = {key: [dataclasses.asdict(each) for each in kept[key] or ()] for key in ("label_codes", "rename_columns")}
        source = SiloSource.model_validate(kept | own | {"state": str(self.file.state)})
        write_record(folder / "silo.json", SiloKeeps(schema=SCHEMA, file=source, terms=terms.to_text()))
        OwnBooks(folder).keep_files(*MODEL_FILES, *self._keep_preparation(folder, terms))

    def _keep_preparation(self, folder: Path, terms: Terms) -> list[str]:
        """Store the preprocessing of new inputs; return the file."""
        known = self.data.frozen(terms).known()
        if known is None:
            return []
        write_record(folder / PREPARATION, known.preparation)
        return [PREPARATION]


def _with_same_code(run: Member, terms: Terms) -> Member:
    """Return the run. Raises ConfigurationError if the model's code builds a different model than at the server."""
    # Frozen weights are not sent, so nothing else would reveal a difference.
    made = run.spec.code_made(run.info) if terms.code else None
    if terms.code and (made is None or not made.same_elsewhere(terms.code, terms.says)):
        raise ConfigurationError(
            "the model's code builds a different model here than at the server: its parts, frozen weights or "
            "outputs differ; use the same code here, and the same file of model.weights",
            "model",
        )
    return run


def check_order(order: Order, executor: Executor, silo: SiloId, books: OwnBooks) -> None:
    """Raise RunError for a request for another silo, for an unknown task, or for a past round. A past round is valid if
    the run was rolled back, or if the silo makes up for missed rounds and sends nothing."""
    if order.silo != silo:
        raise RunError(f"the server sent silo {silo!r} a request for silo {order.silo!r}")
    executor.find_task(order.t, order.task)
    goes_back = order.joins or books.goes_back(order)
    if order.t < (newest := max(executor.states.versions(silo), default=NEVER)) and not goes_back:
        raise RunError(
            f"the server asks silo {silo!r} for round {order.t + 1} of the schedule, but the silo already has a state "
            f"of round {newest + 1}"
        )


def open_member(folder: Path, device: str = "cpu") -> Run:
    """Open a silo's stored copy of a finished federation, to predict on a device.

    No data are needed; nothing is written, in the folder or elsewhere. Raises RunError if the folder is invalid,
    DataError if its file is damaged or another version of caveat wrote it.
    """
    path = folder / "silo.json"
    kept = read(path, SiloKeeps)
    try:
        own, terms = kept.file, Terms.of_text(kept.terms)
        check_silo_name(own.silo)
    except (ConfigurationError, DataError) as error:
        raise DataError(f"{path}: {error}") from None
    own_manifest(folder).check(*MODEL_FILES, PREPARATION)
    categorical, numeric = (each if each is None else tuple(each) for each in (own.categorical, own.numeric))
    file = SiloFile(
        own.silo, Path(own.state), own.source, own.target, categorical, numeric, own.decimal, own.separator,
        own.thousands, None if own.missing is None else tuple(own.missing), device,
        label_codes=tuple(LabelCode(**each) for each in own.label_codes),
        rename_columns=tuple(OwnColumn(**each) for each in own.rename_columns),
    )  # fmt: skip
    try:
        return Run(SiloSide(file).predicting(terms, folder))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"cannot read {path}: {error}") from error
