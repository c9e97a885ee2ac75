"""A silo's data: the source that its file names, its stored splits, and its held-out rows."""

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from ...core import DataError, Silo
from ...core.silo import SPLITS, SiloInfo
from ...data import DataSettings, Preparation, Silos, augmented, splits_record
from ...data.agreement import OwnSilos, own_silos, silos_of
from ...data.groups import whole_groups
from ...data.raw_samples import Pool
from ...data.shared_schema import SharedSchema
from ...data.sources import read_silo
from ...data.splits import Rearrange
from ...data.tables.declarations import NOTHING
from ...files.schema import DataFile
from ..refusals import check_usable
from ..request_terms import Terms
from .frozen_splits import FrozenData
from .held_out_before import HELD_OUT, hold_out, rearranged_by, row_key
from .silo_file import SiloFile

OWN_FILES = ("secret", "lock")
"""Files in a silo's `state` next to its federations."""


@dataclass(frozen=True)
class SiloData:
    """The data of one silo, for the federations whose state is in its folder."""

    file: SiloFile

    def home(self, terms: Terms) -> Path:
        """Return the folder of a federation. Raises DataError for an invalid name of a federation."""
        if not (terms.federation.isalnum() and terms.federation.isascii()) or terms.federation.lower() in OWN_FILES:
            raise DataError(f"{terms.federation!r} is not a valid name of a federation")
        return self.file.state / terms.federation

    def silos(self, terms: Terms) -> Silos:
        """Read the silo's data again, with the preprocessing of new inputs."""
        return own_silos(self.settings(terms), terms.config.seed, self.file.silo, agreement(terms))

    def settings(self, terms: Terms) -> DataSettings:
        """Return the settings for the silo's own source."""
        return self.file.settings(terms.config.data)

    def stored(self, terms: Terms, prepares: Preparation) -> Silos:
        """Return the silo's data when it joined, if they are still stored; otherwise read the source again."""
        frozen = self.frozen(terms)
        known = frozen.known()
        if known is None or not frozen.tensors(known).exists():
            return self.silos(terms)
        silo = self._augmented(terms, frozen.read(known))
        return Silos(
            (silo,), prepares.classes, prepares.normalize, prepares.encoders, prepares.image_format,
            prepares.sequence_format, prepares.scalings, terms.config.data.positive_class, prepares.subgroups,
            prepares.target,
        )  # fmt: skip

    def frozen(self, terms: Terms) -> FrozenData:
        """Return the silo's stored splits under these terms."""
        about = [
            repr(terms.config.data), terms.config.seed, agreement(terms).to_json(), self.file.target,
            self.file.categorical, self.file.numeric, self.file.decimal, self.file.separator,
            self.file.groups, self.file.time,
        ]  # fmt: skip
        declared = dataclasses.replace(
            terms.config.data.declared,
            label_codes=self.file.label_codes or (),
            rename_columns=self.file.rename_columns or (),
            **{key: value for key in ("thousands", "missing") if (value := getattr(self.file, key)) is not None},
        )
        about += [repr(declared)] if declared != NOTHING else []
        key = hashlib.sha256(json.dumps(about).encode()).hexdigest()[:16]
        agreed, batch_size = agreement(terms), terms.config.training.batch_size
        return FrozenData(
            self.home(terms) / f"data-{key}.json", self.file.silo, self.settings(terms), self.file.changed,
            lambda: row_key(self.file.secret()), lambda silo: check_usable(silo, agreed, batch_size),
        )  # fmt: skip

    def silo(self, terms: Terms) -> Silo:
        """Return the silo's splits, after the first time from its disk. Raises DataChanged if the source has changed
        and `data.changed` does not allow the change."""
        frozen = self.frozen(terms)
        known = frozen.known()
        if known is None or not frozen.tensors(known).exists():
            known = self._freeze(terms, frozen, known)
        else:
            known = frozen.checked(known)
        return self._augmented(terms, frozen.read(known))

    def read_anew(self, terms: Terms) -> Silo:
        """Read the silo's source again with the checks of joining, without storing anything."""
        frozen = self.frozen(terms)
        _, own = self._read(terms, frozen.settings)
        frozen.check(own.silos[0])
        return own.silos[0]

    def _read(self, terms: Terms, settings: DataSettings) -> tuple[Pool, OwnSilos]:
        pool = read_silo(settings, self.file.silo)
        return pool, silos_of(pool, settings, terms.config.seed, agreement(terms), self.rearranged(settings))

    def _freeze(self, terms: Terms, frozen: FrozenData, again: DataFile | None) -> DataFile:
        """Read the silo's source, and store the splits."""
        source, settings = frozen.state(), frozen.settings
        pool, own = self._read(terms, settings)
        known, data = frozen.made(pool, own, source, again)
        frozen.check(own.silos[0])
        splits = whole_groups(pool, {split: own.silos[0].indices[split].numpy() for split in SPLITS})
        hold_out(self.file.state, settings, pool, splits, frozen.key())
        frozen.store(known, data)
        return known

    def rearranged(self, settings: DataSettings) -> Rearrange | None:
        """Return a function that keeps rows that were held out in any federation out of training."""
        if not (self.file.state / HELD_OUT).exists():
            return None
        return rearranged_by(self.file.state, settings, row_key(self.file.secret()))

    def _augmented(self, terms: Terms, silo: Silo) -> Silo:
        """Return the silo with random augmentation of its training batches, which is not part of stored tensors."""
        data = terms.config.data
        train = augmented(silo.train, data.augment, data.normalize) if data.augment else silo.train
        return dataclasses.replace(silo, train=train)

    def sizes_once_dropped(self, terms: Terms) -> dict[str, str | int]:
        """Return current sizes and hashes if rows were removed since the silo joined; otherwise an empty dictionary."""
        frozen = self.frozen(terms)
        known = frozen.known()
        return self.sizes(terms, self._augmented(terms, frozen.read(known))) if known and known.dropped else {}

    def sizes(self, terms: Terms, silo: Silo) -> dict[str, str | int]:
        """Return sizes, class counts and the hashes of the silo's splits, as JSON."""
        known, classes = self.frozen(terms).known(), len(agreement(terms).classes)
        dropped = {} if known is None else known.dropped
        card = dataclasses.replace(SiloInfo.of(silo, classes), dropped=dropped)
        record = splits_record([silo], classes)[silo.name]
        if dropped and isinstance(record, dict):
            record |= {"dropped": dropped}
        return {"card": json.dumps(card.to_json()), "record": json.dumps(record)}


def agreement(terms: Terms) -> SharedSchema:
    """Return the schema that the silos agreed on. Raises DataError before the agreement."""
    if terms.agreement is None:
        raise DataError("the silos of the federation have not agreed on a schema yet")
    return terms.agreement
