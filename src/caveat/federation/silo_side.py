"""A silo's side of a federation: its data, its private state, and what it has sent, all on its own disk."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch

from .. import config as configuration
from ..core import ConfigurationError, DataError, Payload, RunError, Silo, SiloId, Update
from ..core.devices import find_device
from ..core.silo_info import SPLITS, SiloInfo
from ..data import DataSettings, Preparation, Silos, augmented, splits_record
from ..data.declared import NOTHING
from ..data.rows import Rearrange
from ..data.schema.agreement import SharedSchema, own_schema, own_silos, silos_of
from ..data.sources.by_name import read_own
from ..engines.executor import Executor
from ..engines.flower_messages import NEVER, Order
from ..files.atomic import write_bytes, write_record
from ..files.ledger import Ledger
from ..files.links import refuse_link, refuse_links
from ..files.locks import held
from ..files.payloads import to_bytes
from ..files.schema.small_files import DataFile, FileSum, ModelFile, SiloKeeps, SiloSource
from ..runs.prepared import PREPARATION, kept_preparation
from ..runs.spec import spec_of
from ..runs.warm import MODEL
from ..wrappers.evaluation import TEST
from .frozen import FrozenData
from .held_out import HELD_OUT, hold_out, rearranged_by, row_key
from .own_books import OwnBooks
from .refusals import check_count, check_counts, check_terms, told_by_rule
from .silo_file import SiloFile
from .silo_runs import KeptSiloRun, SiloRun
from .terms import Terms, lasting

BUSY = 60.0
"""Seconds to wait for a process that still works for the same silo, such as one whose node was killed."""


OWN_FILES = ("secret", "lock")
"""What lies in a silo's `state` beside its federations."""
Member = TypeVar("Member", SiloRun, KeptSiloRun)
MODEL_FILES = ("silo.json", MODEL, "model/model.json")
"""What a silo keeps of a federation's model, to predict with it."""


@dataclass(frozen=True)
class SiloSide:
    """A silo with data of its own."""

    file: SiloFile

    def introduce(self, terms: Terms) -> dict[str, str | int]:
        """What everyone has to know of its data before there is an agreement: see `data.schema.records.DataSchema`."""
        self.file.limits.check_begin(self.file.silo, terms, self.file.state)
        silo, begun = self.file.silo, self._began_before(terms)
        with told_by_rule(self.file, terms):
            if not begun:
                check_terms(self.file, terms)
            known = None if terms.agreement is None else self._frozen(terms).known()
            if known is not None and known.told:
                return {"silo": silo, "sketch": json.dumps(known.told)}
            settings, allowed = self._settings(terms), None if begun else self.file.categorical or ()
            schema = own_schema(
                settings, terms.config.seed, silo, allowed, self._rearranged(settings),
                lambda y, classes: None if begun else check_count("train", y.tolist(), classes, self.file),
            )  # fmt: skip
        return {"silo": silo, "sketch": json.dumps(schema.to_json())}

    def join(self, terms: Terms) -> dict[str, str | int]:
        """Its sizes, class counts and the hashes of its splits, under what was agreed."""
        self.file.limits.check_begin(self.file.silo, terms, self.file.state)
        self.keep_configuration(terms)
        part = self.run(terms)
        part.silos.check(terms.config.training.batch_size)
        return {"silo": self.file.silo, **self._sizes(terms, part.silos[0])}

    def says(self, terms: Terms) -> dict[str, str | int]:
        """What goes along with every update once rows have left its data: its sizes as they are now."""
        frozen = self._frozen(terms)
        known = frozen.known()
        return self._sizes(terms, self._augmented(terms, frozen.read(known))) if known and known.dropped else {}

    def _sizes(self, terms: Terms, silo: Silo) -> dict[str, str | int]:
        known, classes = self._frozen(terms).known(), len(agreement(terms).classes)
        dropped = {} if known is None else known.dropped
        card = dataclasses.replace(SiloInfo.of(silo, classes), dropped=dropped)
        record = splits_record([silo], classes)[silo.name]
        if dropped and isinstance(record, dict):
            record |= {"dropped": dropped}
        return {"card": json.dumps(card.to_json()), "record": json.dumps(record)}

    def perform(self, terms: Terms, order: Order, payload: Payload) -> Update:
        """Carry out a work; keep the state it leaves, and a line of what is sent.

        Raises RunError for an order that no server of this federation has a reason to give, BeyondLimits for one update
        more than the silo allows.
        """
        self.keep_configuration(terms)
        folder = self.folder(terms)
        busy = f"{folder}: another process has been at work there for {BUSY:.0f} s"
        with held(folder / "lock", busy, BUSY), self._counting():
            run = self.run(terms)
            executor = run.joining if order.joins else run.executor()
            check_order(order, executor, self.file.silo)
            self.file.limits.check_order(self.file.silo, terms, order, self.file.state)
            refuse_links(folder)
            ledger = Ledger(folder / "ledger.jsonl")

            def record(update: Update, known: FileSum | None) -> FileSum:
                ledger.recover(known)
                ledger.add({self.file.silo: update}, t=order.t, work=order.work)
                ledger.log.sync()
                return ledger.log.sum

            update = OwnBooks(folder).perform(executor, order, payload, record)
            if order.work == TEST:
                self._keep_model(folder, terms, order.t, payload)
        return update

    @contextmanager
    def _counting(self) -> Iterator[None]:
        """Within it, no other federation of the silo sends anything, where what is sent is held against limits."""
        if not self.file.limits.counts:
            yield
            return
        busy = f"{self.file.state}: another federation has been at work there for {BUSY:.0f} s"
        with held(self.file.private() / "lock", busy, BUSY):
            yield

    def keep_configuration(self, terms: Terms) -> None:
        """Keep a federation's configuration when it is first seen.

        Raises DataError for another one after that, RunError where its folder is a link.
        """
        for folder in (self.home(terms), self.folder(terms)):
            refuse_link(folder)
        path = self.file.private(self.home(terms).name) / "config.toml"
        if not path.exists():
            write_bytes(path, configuration.dump(terms.config).encode())
        elif lasting(configuration.loads_kept(path.read_text(), str(path))) != lasting(terms.config):
            raise DataError(f"the federation's configuration is not the one that was joined, {path}")

    def run(self, terms: Terms) -> SiloRun:
        """The run that these terms make of its data."""
        begun = self._began_before(terms)
        with told_by_rule(self.file, terms):
            if not begun:
                check_terms(self.file, terms)
            silos = Silos((self._data(terms),), agreement(terms).classes)
            if not begun:
                check_counts(silos[0], silos.classes, self.file)
        return self._run(terms, silos, self.folder(terms), self.file.secret())

    def predicting(self, terms: Terms, folder: Path) -> SiloRun | KeptSiloRun:
        """The run in a folder, to predict with; it writes nothing. What version 0.1 kept needs the data once more."""
        if (prepares := kept_preparation(folder)) is None:
            # Predictions get no noise: the secret is neither read nor drawn.
            return self._run(terms, self.silos(terms), folder, 0)
        spec = spec_of(terms.own_config, terms.method)
        return _with_same_code(
            KeptSiloRun(
                spec=spec, folder=folder, prepares=prepares, read_silos=lambda: self._stored(terms, prepares),
                names=terms.names, devices=self.devices,
            ),
            terms,
        )  # fmt: skip

    @property
    def devices(self) -> tuple[torch.device, ...]:
        """Where it computes. Raises ConfigurationError for a device that there is not."""
        return (find_device(self.file.device, key="device"),)

    def _run(self, terms: Terms, silos: Silos, folder: Path, secret: int) -> SiloRun:
        spec = spec_of(terms.own_config, terms.method)
        run = SiloRun(spec=spec, folder=folder, silos=silos, names=terms.names, secret=secret, devices=self.devices)
        return _with_same_code(run, terms)

    def silos(self, terms: Terms) -> Silos:
        """Its data, read anew, with what it takes to read more of the kind."""
        return own_silos(self._settings(terms), terms.config.seed, self.file.silo, agreement(terms))

    def _settings(self, terms: Terms) -> DataSettings:
        """How it reads its own source, by the rules of the version that it joined with."""
        settings, path = self.file.settings(terms.config.data), self.home(terms) / "config.toml"
        return configuration.by_own_rules(settings, path.read_text()) if path.exists() else settings

    def _stored(self, terms: Terms, prepares: Preparation) -> Silos:
        """Its data as they were when it joined, as far as they are still stored, else read anew."""
        frozen = self._frozen(terms)
        known = frozen.known()
        if known is None or not frozen.tensors(known).exists():
            return self.silos(terms)
        silo = self._augmented(terms, frozen.read(known))
        return Silos(
            (silo,), prepares.classes, prepares.normalise, prepares.encoders, prepares.image_format,
            prepares.sequence_format, prepares.scalings, terms.config.data.positive,
        )  # fmt: skip

    def _began_before(self, terms: Terms) -> bool:
        """Whether it joined the federation, as it is configured, before there were the rules of `refusals`."""
        path = self.home(terms) / "config.toml"
        if not path.exists() or not configuration.had_no_classes(text := path.read_text()):
            return False
        return lasting(configuration.loads_kept(text, str(path))) == lasting(terms.config)

    def home(self, terms: Terms) -> Path:
        """What it keeps of a federation."""
        if not (terms.federation.isalnum() and terms.federation.isascii()) or terms.federation.lower() in OWN_FILES:
            raise DataError(f"{terms.federation!r} is no name of a federation")
        return self.file.state / terms.federation

    def folder(self, terms: Terms) -> Path:
        """What it keeps of one method of a federation."""
        if terms.method not in (terms.config.method.name, *terms.config.beside):
            raise DataError(f"{terms.method!r} is no method of the federation")
        return self.home(terms) / terms.method

    def _frozen(self, terms: Terms) -> FrozenData:
        """Its splits as they are stored, as it reads them by these terms."""
        about = [
            repr(terms.config.data), terms.config.seed, agreement(terms).to_json(), self.file.target,
            self.file.categorical, self.file.numeric, self.file.decimal, self.file.separator,
        ]  # fmt: skip
        declared = dataclasses.replace(
            terms.config.data.declared, codes=self.file.codes or (), columns=self.file.columns or ()
        )
        about += [repr(declared)] if declared != NOTHING else []
        key = hashlib.sha256(json.dumps(about).encode()).hexdigest()[:16]
        classes, batch_size = agreement(terms).classes, terms.config.training.batch_size
        return FrozenData(
            self.home(terms) / f"data-{key}.json", self.file.silo, self._settings(terms), self.file.changed,
            lambda: row_key(self.file.secret()), lambda silo: Silos((silo,), classes).check(batch_size),
        )  # fmt: skip

    def _data(self, terms: Terms) -> Silo:
        """Its splits, from the disk after the first time, as long as the source is what it was or may have changed."""
        frozen = self._frozen(terms)
        known = frozen.known()
        if known is None or not frozen.tensors(known).exists():
            known = self._freeze(terms, frozen, known)
        else:
            known = frozen.checked(known)
        return self._augmented(terms, frozen.read(known))

    def _freeze(self, terms: Terms, frozen: FrozenData, again: DataFile | None) -> DataFile:
        """Read its source, and store what comes of it."""
        source, settings = frozen.state(), frozen.settings
        pool = read_own(settings, self.file.silo)
        own = silos_of(pool, settings, terms.config.seed, agreement(terms), self._rearranged(settings))
        known, data = frozen.made(pool, own, source, again)
        frozen.check(own.silos[0])
        splits = {split: own.silos[0].indices[split].numpy() for split in SPLITS}
        hold_out(self.file.state, settings, pool, splits, frozen.key())
        frozen.store(known, data)
        return known

    def _rearranged(self, settings: DataSettings) -> Rearrange | None:
        """What keeps rows from training that it once held out, in this federation or another one."""
        if not (self.file.state / HELD_OUT).exists():
            return None
        return rearranged_by(self.file.state, settings, row_key(self.file.secret()))

    def _augmented(self, terms: Terms, silo: Silo) -> Silo:
        """The silo with what changes its batches of training at random, which no tensor holds."""
        data = terms.config.data
        train = augmented(silo.train, data.augment, data.normalise) if data.augment else silo.train
        return dataclasses.replace(silo, train=train)

    def _keep_model(self, folder: Path, terms: Terms, t: int, down: Payload) -> None:
        """The federation's model as it was measured last: with it, `caveat predict` works at the silo."""
        (folder / "model").mkdir(exist_ok=True)
        write_bytes(folder / "model" / "model.safetensors", to_bytes(down))
        write_record(folder / "model" / "model.json", ModelFile(schema=ModelFile.SCHEMA, t=t))
        kept = {key: value for key, value in vars(self.file).items() if key in SiloSource.model_fields}
        own = {key: [vars(each) for each in kept[key] or ()] for key in ("codes", "columns")}
        source = SiloSource.model_validate(kept | own | {"state": str(self.file.state)})
        write_record(folder / "silo.json", SiloKeeps(schema=SiloKeeps.SCHEMA, file=source, terms=terms.to_text()))
        OwnBooks(folder).keep_files(*MODEL_FILES, *self._keep_preparation(folder, terms))

    def _keep_preparation(self, folder: Path, terms: Terms) -> list[str]:
        """What makes new inputs like its data: its own alone. Nothing where version 0.1 has read these."""
        known = self._frozen(terms).known()
        if known is None or known.preparation is None:
            return []
        write_record(folder / PREPARATION, known.preparation)
        return [PREPARATION]


def _with_same_code(run: Member, terms: Terms) -> Member:
    """The run. Raises ConfigurationError if the model's code makes another model than at the server."""
    # Frozen weights do not travel, so that nothing else would show that they are others.
    made = run.spec.code_made(run.info) if terms.code else None
    if terms.code and (made is None or not made.same_elsewhere(terms.code, terms.says)):
        raise ConfigurationError(
            "the model's code makes another model here than at the server, in its parts, in the weights that do "
            "not travel or in what it computes: have the same code here, and the same file of model.weights",
            "model",
        )
    return run


def agreement(terms: Terms) -> SharedSchema:
    """What the silos have agreed their data to look like. Raises DataError before they have."""
    if terms.agreement is None:
        raise DataError("the federation has no agreement yet: its silos have data of their own")
    return terms.agreement


def check_order(order: Order, executor: Executor, silo: SiloId) -> None:
    """Raises RunError for an order for somebody else, for a work that is no round's, or for a round that is over."""
    if order.silo != silo:
        raise RunError(f"an order for silo {order.silo!r}, but this is {silo!r}")
    executor.find_work(order.t, order.work)
    if order.t < (newest := max(executor.states.versions(silo), default=NEVER)):
        raise RunError(f"an order of round {order.t}, but there is a state of round {newest}")
