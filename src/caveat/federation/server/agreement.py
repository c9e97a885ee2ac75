"""What silos reported about their data and agreed on: schema, sample counts, class frequencies."""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch

from ...core import ConfigurationError, DataError, SiloId, check_silo_name
from ...core.silo import SPLITS, FederationInfo, SiloInfo
from ...data.shared_schema import DataSchema, SharedSchema
from ...files import read, write_json, write_record
from ...files.schema import SCHEMA, DataSchemaRecord, FederationFile, Member, as_json
from ...runs.spec import spec_of
from ..keys import NameKeys
from ..request_terms import Terms

TIMES_ROWS = 10
"""Maximum multiple of the other silos' median that a silo may report without the operator's confirmation."""
FILE = ".rows"
"""Suffix of the file in which the operator confirms a silo's number of rows."""


COUNTED = SPLITS
"""The splits whose inputs are counted in sums: of models, of sums after training, and of metrics of test inputs."""
ROUNDED = 2
"""Difference in rows between two silos' splits that rounding can cause."""


def incredible(
    counts: Mapping[SiloId, int], confirmed: Mapping[SiloId, int], split: str = "train"
) -> dict[SiloId, str]:
    """Return the silos whose sample counts of a split need a confirmation, and why.

    A silo is compared with the median of all others; a single silo is trusted. `confirmed` has the maximum number of
    training rows that the operator confirmed, by silo; it applies to every other split, too.
    """
    what, room = ("training", 0) if split == "train" else (split, ROUNDED)
    reasons: dict[SiloId, str] = {}
    for silo, count in counts.items():
        others = [each for name, each in counts.items() if name != silo]
        if not others or count <= max(TIMES_ROWS * (median(others) + room), confirmed.get(silo, 0)):
            continue
        reasons[silo] = (
            f"reports {count:,} {what} examples, more than {TIMES_ROWS} times the median of the other silos, "
            f"{median(others):,.0f}; to confirm the number, write it to {silo}{FILE} in the project's folder silos"
        )
    return reasons


@dataclass(frozen=True)
class Confirmed:
    """The numbers of rows that the operator confirmed, in NAME.rows next to the silos' keys."""

    folder: Path | None = None

    def read(self) -> dict[SiloId, int]:
        """Read the numbers. Raises ConfigurationError, naming the file, for a file without a number."""
        files = [] if self.folder is None else sorted(self.folder.glob(f"*{FILE}"))
        return {path.name.removesuffix(FILE): _number_in(path) for path in files}


def _number_in(path: Path) -> int:
    try:
        text = path.read_text(encoding="utf-8").strip()
        if not text.isascii() or not text.isdigit() or len(text) > 12:
            raise ValueError(f"{text[:40]!r}")
        return int(text)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path}: expected the number of a silo's training examples: {error}") from None


FAR = 0.2
"""Minimum difference between shares of a class for a warning."""
MOST_CLASSES = 10
"""Maximum number of classes for listing shares."""


def shares(card: SiloInfo, classes: Sequence[str]) -> dict[str, float]:
    """Return the share of each class in a silo's training examples."""
    total = sum(card.class_counts) or 1
    return {name: count / total for name, count in zip(classes, card.class_counts, strict=True)}


def shares_text(card: SiloInfo, classes: Sequence[str]) -> str:
    """Return the `shares` of a silo as text; "" for many classes."""
    if len(classes) > MOST_CLASSES:
        return ""
    return ", ".join(f"{name} {share:.0%}" for name, share in shares(card, classes).items())


def unlike_others(cards: Mapping[SiloId, SiloInfo], classes: Sequence[str]) -> list[str]:
    """Return a line for each silo where a class is much more or less frequent than at all other silos.

    Its share must differ from the nearest other silo's by more than `FAR`, and by more than the others' shares differ
    among themselves. Such differences can be real, but swapped class codes have the same effect.
    """
    found = {silo: shares(card, classes) for silo, card in cards.items()}
    lines = []
    for silo, own in found.items():
        others = [each for name, each in found.items() if name != silo]
        for name in classes if others else ():
            theirs = [each[name] for each in others]
            gap = min(abs(own[name] - share) for share in theirs)
            if gap > max(FAR, max(theirs) - min(theirs)):
                lines.append(
                    f"silo {silo}: {own[name]:.0%} of its training examples are {name!r}, at other silos "
                    f"{min(theirs):.0%} to {max(theirs):.0%}; check [data.label_codes] of its silo.toml"
                )
                break
    return lines


LONGEST_RECORD = 1_000_000
"""Maximum length of a silo's report on its sizes, and of the hashes of its splits."""


@dataclass
class Members:
    """The silos of a federation, and the agreement between them. Stored in `federation.json` of the run's folder, so
    that they are the same after a resume."""

    path: Path
    terms: Terms
    note: Callable[[str], None]
    """Reports refused silos, with reasons."""
    silo_infos: dict[SiloId, SiloInfo] = field(default_factory=dict)
    records: dict[SiloId, Any] = field(default_factory=dict)
    sketches: dict[SiloId, DataSchema] = field(default_factory=dict)
    keys: NameKeys = field(default_factory=NameKeys)
    """The keys to which silo names are bound."""
    confirmed: Confirmed = field(default_factory=Confirmed)
    """Numbers of rows that the operator confirmed."""
    changed: bool = field(default=False, init=False)
    """Whether there are changes to write."""

    @property
    def silos(self) -> Sequence[SiloId]:
        return sorted(self.silo_infos)

    @property
    def most(self) -> Mapping[SiloId, int]:
        return {name: card.most for name, card in self.silo_infos.items()}

    @property
    def cards(self) -> Mapping[SiloId, SiloInfo]:
        return self.silo_infos

    @property
    def terms_text(self) -> str:
        return dataclasses.replace(self.terms, names=tuple(self.silo_infos)).to_text()

    @property
    def secure_name(self) -> str:
        """The name of the sessions of secure aggregation of this method."""
        return f"{self.terms.federation}/{self.terms.method}"

    @property
    def info(self) -> FederationInfo:
        shape, classes = self.agreement.input_shape, self.agreement.classes
        positive = self.terms.config.data.positive_class
        wanted = self.terms.config.data.subgrouping
        return FederationInfo(
            shape, classes, self.silo_infos, dtype=_dtype(self.terms), positive=positive,
            subgroups=() if wanted is None else wanted.fitted(()).names, target=self.agreement.quantity,
        )  # fmt: skip

    @property
    def agreement(self) -> SharedSchema:
        """The schema that the silos agreed on. Raises DataError before the agreement."""
        if self.terms.agreement is None:
            raise DataError("the silos have not agreed on a schema yet")
        return self.terms.agreement

    def hear(self, silo: SiloId, words: Mapping[str, Any]) -> None:
        """Store a silo's new sizes, if it reports that rows were removed from its data. Raises DataError for sizes that
        cannot result from removing rows."""
        if "card" in words:
            self.take(silo, words)
            self.save_changes()

    def save_changes(self) -> None:
        """Write changes after a run has started."""
        if self.changed and self.path.exists():
            self.save()

    def take(self, silo: SiloId, words: Mapping[str, Any], summed: int | None = None) -> None:
        """Store a silo's sizes and splits; those that it sends later must be the same, except for removed rows.
        `summed` is the number of training targets in the sums that it sent before, if any."""
        card = SiloInfo.of_json(_said(words["card"]), len(self.agreement.classes))
        record = _said(words["record"])
        if card.name != silo:
            raise DataError(f"silo {silo!r} sent sizes under the name {card.name!r}")
        rows = card.examples["train"] + card.dropped.get("train", 0)
        if summed not in (None, rows):
            raise DataError(f"silo {silo!r} has {rows} training examples, but sent sums of {summed} targets")
        before = self.silo_infos.get(silo)
        if before is None:
            found = self.incredible({**self.silo_infos, card.name: card}) if self.path.exists() else {}
            if card.name in found:
                raise DataError(f"silo {card.name!r} {found[card.name]}")
            of = shares_text(card, self.agreement.classes)
            self.note(f"silo {silo} joined with {card.examples['train']} training examples")
            self.note(f"silo {silo}: {of}" if of else f"silo {silo}: {len(self.agreement.classes)} classes")
        elif (card, record) == (before, self.records[silo]):
            return
        elif not card.rest_of(before) or not _same_elsewhere(card, before, record, self.records[silo]):
            raise DataError(f"silo {silo!r}: its data changed after it joined")
        else:
            told = ", ".join(f"{split} {count}" for split, count in card.dropped.items())
            self.note(f"silo {silo}: {sum(card.dropped.values())} rows have been removed from its data so far ({told})")
        self.silo_infos[silo], self.records[silo] = card, record
        self.changed = True

    def incredible(self, cards: Mapping[SiloId, SiloInfo]) -> dict[SiloId, str]:
        """Return silos with implausible numbers of rows, with reasons."""
        if self.terms.config.federation.robust == "off":
            return {}
        confirmed, found = self.confirmed.read(), dict[SiloId, str]()
        for split in COUNTED:
            counts = {name: card.examples[split] for name, card in cards.items()}
            found = incredible(counts, confirmed, split) | found
        return found

    def save(self) -> None:
        """Write `federation.json`, and the silos' records of their splits as `splits.json`."""
        self.changed = False
        write_json(self.path.with_name("splits.json"), self.records)
        agreement = self.terms.agreement
        members = {
            name: Member(card=card.to_json(), record=self.records[name]) for name, card in self.silo_infos.items()
        }
        greeting = FederationFile(
            schema=SCHEMA,
            federation=self.terms.federation,
            agreement=None if agreement is None else agreement.to_json(),
            silos=members,
            sketches={name: DataSchemaRecord.model_validate(each.to_json()) for name, each in self.sketches.items()},
            **({"keys": dict(sorted(self.keys.bound.items()))} if self.keys.bound else {}),
        )
        write_record(self.path, greeting, lasting=True)

    def restore(self) -> None:
        """Read what `save` wrote. Raises DataError, naming the file, if it is damaged."""
        found = read(self.path, FederationFile)
        try:
            agreement = SharedSchema.of_json(found.agreement)
            for name, member in found.silos.items():
                self.silo_infos[name] = SiloInfo.of_json(member.card, len(agreement.classes))
                self.records[name] = member.record
                check_silo_name(name)
                if self.silo_infos[name].name != name:
                    raise DataError(f"the sizes of silo {name!r} have the name {self.silo_infos[name].name!r}")
            self.keys.bound = dict(found.keys)
            self.sketches = {name: DataSchema.of_json(as_json(sketch)) for name, sketch in found.sketches.items()}
        except DataError as error:
            raise DataError(f"{self.path}: {error}") from None
        self.terms = dataclasses.replace(self.agreed(agreement), federation=found.federation)

    def agreed(self, agreement: SharedSchema) -> Terms:
        """Return the terms with an agreement, and with the fingerprints of custom models for data with its schema."""
        terms = dataclasses.replace(self.terms, agreement=agreement, code="", says=(), grid=())
        info = FederationInfo(agreement.input_shape, agreement.classes, {}, dtype=_dtype(terms))
        made = spec_of(terms.config, terms.method).code_made(info)
        return terms if made is None else dataclasses.replace(terms, code=made.untaught, says=made.says)


def _same_elsewhere(card: SiloInfo, before: SiloInfo, record: Mapping[str, Any], known: Mapping[str, Any]) -> bool:
    """Return whether records of splits are the same except for splits with removed rows."""
    left = {split for split, count in card.dropped.items() if count != before.dropped.get(split, 0)} | {"dropped"}
    return {k: v for k, v in record.items() if k not in left} == {k: v for k, v in known.items() if k not in left}


def _dtype(terms: Terms) -> torch.dtype:
    return torch.int64 if terms.config.data.kind == "tokens" else torch.float32


def _said(text: object) -> dict[str, Any]:
    """Parse a JSON object that can be written again. Raises DataError, ValueError or RecursionError otherwise."""
    if not isinstance(text, str) or len(text) > LONGEST_RECORD:
        raise DataError(f"expected a text of at most {LONGEST_RECORD} characters")
    value = json.loads(text)
    if not isinstance(value, dict):
        raise DataError("expected an object")
    json.dumps(value, allow_nan=False)
    return value
