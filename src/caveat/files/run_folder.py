"""The validated content of a run's folder, parts of which may be missing if the run has not finished."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from ..core import DataError
from ..core.errors import MissingError
from . import schema
from .reading import RUN, Manifest, checked, lines_of, manifest_of, record_of, text_of
from .sent_messages import Sent, read_sent

_FILES = (RUN, "rounds.jsonl", "summary.json")
_CHECKED = (
    RUN, "splits.json", "rounds.jsonl", "ledger.jsonl", "preparation.json", "join.json", "gallery.json",
    "features.json", "federation.json",
)  # fmt: skip
FAILURE = "failure.json"
FINAL = "final"
"""The phase of rows that evaluate the final model."""
_COMMON = ("seed", "init_from", "data", "model", "federation", "evaluation", "privacy", "server")
"""The sections that are equal in the descriptions of a run and of its baselines."""


@dataclass(frozen=True, eq=False)
class RunFolder:
    """The content of a run's folder. Any part may be missing, but not all parts. Two objects are never equal."""

    path: Path
    given: str = ""
    """The folder as the user wrote it, for commands that are shown."""
    config: str | None = None
    """The text of config.toml, for display only."""
    record: schema.RunFile | None = None
    """The content of run.json."""
    rows: Sequence[schema.RoundRow] = ()
    left_out: Sequence[schema.LeftOut] = ()
    noted: Sequence[schema.NotedUpdate] = ()
    """Remarks on silos' updates, such as unusual ones."""
    summary: schema.Summary | None = None
    failure: schema.Failure | None = None
    """The error of a run that failed and was not continued afterwards."""
    gallery: schema.Gallery | None = None
    features: schema.Features | None = None
    sent: Sent | None = None
    """Totals of the messages that left the silos."""
    greeting: schema.FederationFile | None = None
    """What silos sent before the first round, if each silo reads its own data."""
    joined: schema.JoinFile | None = None
    """The finished federation that the silos of this run joined, if they did."""
    baselines: Mapping[str, RunFolder] = field(default_factory=dict)
    """The baselines by the names of their folders."""

    @property
    def method(self) -> str | None:
        if self.summary:
            return self.summary.method
        return _text(self.section("method").get("name"))

    def section(self, name: str) -> Mapping[str, Any]:
        """Return a section of the run's specification in `run.json`; empty if it is missing."""
        found = self.record.spec.get(name) if self.record is not None else None
        return found if isinstance(found, Mapping) else {}

    @property
    def quantity(self) -> bool:
        """Whether the run predicts a quantity or a time."""
        if self.summary is not None:
            return self.summary.target is not None
        return any(row.crps is not None for row in self.rows) or self.section("data").get("predict") == "quantity"

    @property
    def title(self) -> str:
        """The name of the method if it is known, else the name of the folder."""
        return self.method or self.path.name

    @property
    def source(self) -> str | None:
        return _text(self.section("data").get("source"))

    @property
    def federated(self) -> bool:
        """Whether the run is that of a federation on Flower, which is continued from its project."""
        return self.record is not None and self.record.federated

    @property
    def plugins(self) -> list[str]:
        """The options `--plugin` of the run. They are only displayed and never executed."""
        return self._options("--plugin", "plugins")

    @property
    def resumed(self) -> str:
        """The command that continues the run."""
        if self.record is not None and self.record.in_python:
            return f"caveat.run(..., out={self.path.name!r})"
        words = ["caveat", "resume", self.path.name, *self.plugins, *self._options("--model", "models")]
        return shlex.join(words + (["--project", "DIR"] if self.federated else []))

    def _options(self, option: str, kind: str) -> list[str]:
        records = [each.record for each in (self, *self.baselines.values())]
        known = [each.code for each in records if each is not None and each.code is not None]
        return [
            word for name in dict.fromkeys(n for code in known for n in getattr(code, kind)) for word in (option, name)
        ]

    @property
    def complete(self) -> bool:
        return self.summary is not None and self.summary.complete

    @property
    def lacking(self) -> list[str]:
        """The baselines of a finished run that have no result."""
        names = self.section("baselines") if self.complete else {}
        there = {self.method, *(name for name, other in self.baselines.items() if other.summary is not None)}
        return [name for name in names if name not in there]

    @property
    def rounds_run(self) -> int:
        return self.summary.rounds_run if self.summary else max((row.round for row in self.rows), default=0)

    @property
    def rounds_planned(self) -> int | None:
        planned = self.section("method").get("rounds")
        return planned if isinstance(planned, int) else None

    @property
    def split(self) -> str:
        """The split of the metrics in `silos`, which is "validation" for a run without a summary."""
        return "test" if self.summary else "validation"

    @property
    def newcomers(self) -> list[schema.SiloRecord]:
        """The final metrics of held-out silos."""
        return [silo for silo in self.summary.silos if silo.newcomer] if self.summary else []

    @property
    def silos(self) -> list[schema.SiloRecord]:
        """The final metrics of silos that are not held out; without a summary, the metrics of each silo's last
        validation row."""
        if self.summary:
            return [silo for silo in self.summary.silos if not silo.newcomer]
        latest = {row.silo: row for row in self.curve_rows}
        return [
            schema.SiloRecord(
                name=row.silo,
                domain=row.domain,
                test=schema.Metrics(**{name: getattr(row, name) for name in schema.Metrics.model_fields}),
                codewords=row.codewords,
                perplexity=row.perplexity,
            )
            for row in sorted(latest.values(), key=lambda row: natural(row.silo))
        ]

    @property
    def absent(self) -> list[str]:
        """Silos that are missing in the final metrics, because they have no test metrics."""
        return self.summary.absent if self.summary else []

    @property
    def mean(self) -> schema.Metrics:
        """The unweighted mean over silos."""
        if self.summary and self.summary.mean:
            return self.summary.mean
        names = ("mae", "rmse", "crps") if self.quantity else ("accuracy",)
        return schema.Metrics.model_validate({name: _mean(self.silos, name) for name in (*names, "entropy")})

    @property
    def worst(self) -> schema.Worst | None:
        """The silo with the lowest accuracy."""
        if self.summary and self.summary.worst:
            return self.summary.worst
        known = [(silo.test.accuracy, silo.name) for silo in self.silos if silo.test.accuracy is not None]
        return schema.Worst(silo=min(known)[1], accuracy=min(known)[0]) if known else None

    @property
    def curve_rows(self) -> list[schema.RoundRow]:
        """One validation row per round and silo, in the order of rounds. If several models have rows (local, global,
        switched), these are the rows of the model with the most rounds. Rows of the final model, whose temperature is
        fitted, are excluded if there are other rows, so that a curve shows the same quantity in all rounds."""
        validation = [row for row in self.rows if row.split == "validation"]
        validation = [row for row in validation if row.phase != FINAL] or validation
        match_rounds: dict[str, set[int]] = {}
        for row in validation:
            match_rounds.setdefault(row.model, set()).add(row.round)
        model = max(match_rounds, key=lambda name: len(match_rounds[name]), default="")
        newest = {(row.round, row.silo): row for row in validation if row.model == model}
        return sorted(newest.values(), key=lambda row: row.round)

    @property
    def comparable(self) -> dict[str, RunFolder]:
        """The baselines whose metrics come from the same split."""
        return {name: other for name, other in self.baselines.items() if other.silos and other.split == self.split}


def read_run(path: Path) -> RunFolder:
    """Read a run's folder, and the folders of its baselines.

    Raises MissingError if it is not the folder of a run, DataError for a file that is damaged or that caveat did not
    write. An incomplete run is not an error: `complete` is then false, and parts are missing.
    """
    if not path.is_dir():
        raise MissingError(f"{path} is not a folder; expected the folder of a run, written by `caveat run --out`")
    if not _is_run(path):
        about = other_kind(path) or f"is not the folder of a run: it contains none of {', '.join(_FILES)}"
        raise MissingError(f"{path} {about}")
    summary = record_of(path / "summary.json", schema.Summary)
    manifest = (
        Manifest(path, summary.files) if summary else manifest_of(path)
    )  # manifest_of would read the summary again
    manifest.check(*_CHECKED)
    config = text_of(path / "config.toml")
    rows, left_out, noted = read_rows(path / "rounds.jsonl")
    return RunFolder(
        path=path.resolve(),  # so that "." has a name
        given=str(path),
        config=config,
        record=record_of(path / RUN, schema.RunFile),
        joined=record_of(path / "join.json", schema.JoinFile),
        rows=rows,
        left_out=left_out,
        noted=noted,
        summary=summary,
        failure=record_of(path / FAILURE, schema.Failure) if summary is None else None,
        gallery=record_of(path / "gallery.json", schema.Gallery),
        features=record_of(path / "features.json", schema.Features),
        sent=read_sent(path / "ledger.jsonl"),
        greeting=record_of(path / "federation.json", schema.FederationFile),
        baselines={each.name: _beside(each, path) for each in sorted(path.glob("baselines/*")) if _is_run(each)},
    )


def other_kind(folder: Path) -> str:
    """Return a description of a folder that is not the folder of a run, as a predicate; "" for an unknown folder."""
    if (folder / "grid.json").exists():
        return "is a comparison: repeat the command that started it to continue; its runs are in the folder runs"
    if (folder / "plan.json").exists():
        return "is an audit: repeat the command that started it to continue; its page is audit.html"
    if (folder / "silo.toml").exists():
        return "is the folder of a silo; its copy of a run is in STATE/FEDERATION/METHOD"
    if methods := sorted(path.parent.name for path in folder.glob("*/silo.json")):
        return f"is a silo's folder of a federation; expected the folder of a method in it: {', '.join(methods)}"
    return ""


def _beside(folder: Path, main: Path) -> RunFolder:
    """Read a baseline. Raise DataError if it belongs to another run."""
    splits, found, of_main = "splits.json", read_run(folder), record_of(main / RUN, schema.RunFile)
    if (folder / splits).exists() and text_of(folder / splits) != text_of(main / splits):
        raise DataError(f"{folder / splits} differs from {splits} in {main}: it belongs to another run")
    if found.record is not None and of_main is not None:
        for name in _COMMON:
            if found.record.spec.get(name) != of_main.spec.get(name):
                raise DataError(f"{folder / RUN}: {name} differs from that of {main}: it belongs to another run")
    if found.summary is not None and found.summary.method != folder.name:
        raise DataError(f"{folder / 'summary.json'} belongs to method {found.summary.method}, expected {folder.name}")
    return found


def natural(name: str) -> tuple[tuple[int, str], ...]:
    """Return a sort key that puts silo-2 before silo-10."""
    digits_apart = "".join(c if c.isdigit() else f" {c} " for c in name).split()
    return tuple((int(part), "") if part.isdecimal() else (-1, part) for part in digits_apart)


def _is_run(folder: Path) -> bool:
    return any((folder / name).is_file() for name in (*_FILES, FAILURE))


def read_rows(path: Path) -> tuple[list[schema.RoundRow], list[schema.LeftOut], list[schema.NotedUpdate]]:
    """Return the metrics, the excluded silos and the remarks on updates in a file `rounds.jsonl`. Raise DataError if it
    is damaged."""
    rows, left_out, noted = list[schema.RoundRow](), list[schema.LeftOut](), list[schema.NotedUpdate]()
    for value, where in lines_of(path):
        if isinstance(value, dict) and "left_out" in value:
            left_out.append(checked(value, schema.LeftOut, where))
        elif isinstance(value, dict) and "noted" in value:
            noted.append(checked(value, schema.NotedUpdate, where))
        else:
            rows.append(checked(value, schema.RoundRow, where))
    return rows, left_out, noted


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _mean(silos: Sequence[schema.SiloRecord], metric: str) -> float | None:
    values = [value for silo in silos if (value := getattr(silo.test, metric)) is not None]
    return fmean(values) if values else None
