"""A silo's side of a federation: its data, its private state, and what it has sent, all on its own disk."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from torch import Tensor

from .. import config as configuration
from ..core import Data, DataError, Payload, RunError, Silo, SiloId, Update
from ..core.silo_info import SPLITS, FederationInfo, SiloInfo
from ..data import Silos, splits_record
from ..data.schema.agreement import SharedSchema, own_schema, own_silos
from ..engines.executor import Executor
from ..engines.flower import Order
from ..files.atomic import write_bytes, write_record
from ..files.ledger import Ledger
from ..files.locks import held
from ..files.payloads import read_payload, to_bytes
from ..files.reading import read
from ..files.schema.small_files import ModelFile, SiloKeeps, SiloSource
from ..runs.local import LocalRun, Run
from ..runs.spec import spec_of
from ..wrappers.evaluation import TEST
from .silo_file import SiloFile
from .terms import Terms, lasting

BUSY = 60.0
"""Seconds to wait for a process that still works for the same silo, such as one whose node was killed."""


@dataclass(frozen=True, kw_only=True)
class SiloRun(LocalRun):
    """A run as one silo knows it: the data of one silo, the names of all."""

    names: tuple[SiloId, ...]
    secret: int

    @cached_property
    def info(self) -> FederationInfo:
        unknown = {name: SiloInfo(name, "", {}, ()) for name in self.names}
        own = FederationInfo.of(self.silos.by_name, self.silos.names, self.silos.shape, self.silos.classes).silo_infos
        return FederationInfo(self.silos.shape, self.silos.classes, unknown | dict(own))

    def executor(self) -> Executor:
        return replace(super().executor(), secret=self.secret)


@dataclass(frozen=True)
class SiloSide:
    """A silo with data of its own."""

    file: SiloFile

    def introduce(self, terms: Terms) -> dict[str, str | int]:
        """What everyone has to know of its data before there is an agreement: see `data.schema.records.DataSchema`."""
        config = terms.config
        schema = own_schema(self.file.settings(config.data), config.seed, self.file.silo)
        return {"silo": self.file.silo, "sketch": json.dumps(schema.to_json())}

    def join(self, terms: Terms) -> dict[str, str | int]:
        """Its sizes, class counts and the hashes of its splits, under what was agreed."""
        self.keep_configuration(terms)
        part = self.run(terms)
        part.silos.check(terms.config.training.batch_size)
        card = part.info.silo_infos[self.file.silo].to_json()
        record = splits_record(part.silos, len(part.silos.classes))[self.file.silo]
        return {"silo": self.file.silo, "card": json.dumps(card), "record": json.dumps(record)}

    def perform(self, terms: Terms, order: Order, payload: Payload) -> Update:
        """Carry out a work; keep the state it leaves, and a line of what is sent.

        Raises RunError for an order that no server of this federation has a reason to give.
        """
        self.keep_configuration(terms)
        folder = self.folder(terms)
        busy = f"{folder}: another process has been at work there for {BUSY:.0f} s"
        with held(folder / "lock", busy, BUSY):
            executor = self.run(terms).executor()
            check_order(order, executor, self.file.silo)
            executor.states.forget(self.file.silo, order.counted)
            update = executor.perform(order.t, order.work, payload, self.file.silo)
            ledger = Ledger(folder / "ledger.jsonl")
            ledger.rewind(ledger.bytes)
            ledger.add({self.file.silo: update}, t=order.t, work=order.work)
            if order.work == TEST:
                self._keep_model(folder, terms, order.t, payload)
        return update

    def keep_configuration(self, terms: Terms) -> None:
        """Keep a federation's configuration when it is first seen. Raises DataError for another one after that."""
        path = self.file.private(self.home(terms).name) / "config.toml"
        if not path.exists():
            write_bytes(path, configuration.dump(terms.config).encode())
        elif lasting(configuration.loads(path.read_text(), str(path))) != lasting(terms.config):
            raise DataError(f"the federation's configuration is not the one that was joined, {path}")

    def run(self, terms: Terms) -> SiloRun:
        """The run that these terms make of its data."""
        return self._run(terms, Silos((self._data(terms),), agreement(terms).classes))

    def predicting(self, terms: Terms) -> SiloRun:
        """The run that these terms make of its data, read anew, so that it can prepare new inputs too."""
        return self._run(terms, self.silos(terms))

    def _run(self, terms: Terms, silos: Silos) -> SiloRun:
        return SiloRun(
            spec=spec_of(terms.config, terms.method), folder=self.folder(terms), silos=silos, names=terms.names,
            secret=self.file.secret(),
        )  # fmt: skip

    def silos(self, terms: Terms) -> Silos:
        """Its data, read anew, with what it takes to read more of the kind."""
        config = terms.config
        return own_silos(self.file.settings(config.data), config.seed, self.file.silo, agreement(terms))

    def home(self, terms: Terms) -> Path:
        """What it keeps of a federation."""
        if not (terms.federation.isalnum() and terms.federation.isascii()):
            raise DataError(f"{terms.federation!r} is no name of a federation")
        return self.file.state / terms.federation

    def folder(self, terms: Terms) -> Path:
        """What it keeps of one method of a federation."""
        if terms.method not in (terms.config.method.name, *terms.config.beside):
            raise DataError(f"{terms.method!r} is no method of the federation")
        return self.home(terms) / terms.method

    def _data(self, terms: Terms) -> Silo:
        """Its splits, from the disk after the first time: reading and encoding a source takes longer than a round."""
        about = [
            repr(terms.config.data), terms.config.seed, agreement(terms).to_json(), self.file.source, self.file.target,
            self.file.categorical, self.file.numeric, self.file.decimal, self.file.separator,
        ]  # fmt: skip
        key = hashlib.sha256(json.dumps(about).encode()).hexdigest()[:16]
        path = self.home(terms) / f"data-{key}.safetensors"
        if path.exists():
            return _silo(self.file.silo, read_payload(path))
        silo = self.silos(terms)[0]
        write_bytes(path, to_bytes(_tensors(silo)))
        return silo

    def _keep_model(self, folder: Path, terms: Terms, t: int, down: Payload) -> None:
        """The federation's model as it was measured last: with it, `caveat predict` works at the silo."""
        (folder / "model").mkdir(exist_ok=True)
        write_bytes(folder / "model" / "model.safetensors", to_bytes(down))
        write_record(folder / "model" / "model.json", ModelFile(schema=ModelFile.SCHEMA, t=t))
        source = SiloSource.model_validate(vars(self.file) | {"state": str(self.file.state)})
        write_record(folder / "silo.json", SiloKeeps(schema=SiloKeeps.SCHEMA, file=source, terms=terms.to_text()))


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
    if order.t < (newest := executor.states.newest(silo)):
        raise RunError(f"an order of round {order.t}, but there is a state of round {newest}")


def _tensors(silo: Silo) -> Payload:
    parts = {split: getattr(silo, split) for split in SPLITS} | {f"stream.{n}": d for n, d in silo.streams.items()}
    groups = {name: {"x": data.x, "y": data.y} for name, data in parts.items()}
    return groups | {"indices": dict(silo.indices), f"domain.{silo.domain}": {}}


def _silo(name: SiloId, groups: Payload) -> Silo:
    data = {group: Data(t["x"], t["y"]) for group, t in groups.items() if set(t) == {"x", "y"}}
    domain = next(group for group in groups if group.startswith("domain.")).removeprefix("domain.")
    indices: dict[str, Tensor] = groups["indices"]
    streams = {group.removeprefix("stream."): each for group, each in data.items() if group.startswith("stream.")}
    return Silo(name, domain, **{split: data[split] for split in SPLITS}, indices=indices, streams=streams)


def open_member(folder: Path) -> Run:
    """What a silo keeps of a finished federation, to predict with.

    Raises RunError if the folder is none, DataError if another version of caveat wrote it.
    """
    kept = read(folder / "silo.json", SiloKeeps)
    try:
        own = kept.file
        categorical, numeric = (each if each is None else tuple(each) for each in (own.categorical, own.numeric))
        file = SiloFile(
            own.silo, Path(own.state), own.source, own.target, categorical, numeric, own.decimal, own.separator
        )
        return Run(SiloSide(file).predicting(Terms.of_text(kept.terms)))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"cannot read {folder / 'silo.json'}: {error}") from error
