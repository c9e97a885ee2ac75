"""The thread that answers: models by name and version, batches of the waiting requests, the audit, and reloading.

All models share one thread, because a prediction uses torch's global state. The model of a request is determined when
the request arrives, so a replaced model still answers earlier requests.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import queue
import stat
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from ..core import CaveatError, ConfigurationError
from ..data.tables.drift_reference import FEWEST
from ..export.export_model import Arrays
from ..export.wrong_outcomes import outcome_of
from ..files.writing import privately
from .responses import responses
from .served_model import WATCHED, Given, Refusal, ServedInputs, ServedModel
from .watch import Watch, rank_of

BATCH = 256
"""Maximum number of inputs of a batch, unless one request has more."""
SAVED = 1.0
"""Seconds after which the state of a watch is saved again."""
BEGINNING = b'{"time": "'
"""The beginning of every line of an audit."""
LOG = logging.getLogger(__name__)


@dataclass(eq=False)
class Served:
    """A model under a name, with its watch and the file of the watch's state."""

    name: str
    model: ServedModel
    watch: Watch | None = None
    state: Path | None = None

    @property
    def version(self) -> str:
        return self.model.version[:12]


class NoModel(Exception):
    """No model has the name or the version that was asked for."""


class Answered(NamedTuple):
    """The outputs of a request."""

    id: str
    found: Arrays
    asked: ServedInputs
    answers: list[dict[str, Any]] | None = None
    """An answer per input, if the audit needed them."""


Answer = Future[Answered] | asyncio.Future[Answered]


class Waiting(NamedTuple):
    """A request to a model."""

    served: Served
    given: Given
    answer: Answer


class Outcome(NamedTuple):
    """The true class, quantity or time of a row of an answer, as a text."""

    id: str
    row: int
    label: str


class AnswerLog:
    """A file that only its owner may read, with a line for every answer. Raises ConfigurationError for other files."""

    def __init__(self, path: Path) -> None:
        try:
            self.file = os.fdopen(privately(str(path), os.O_RDWR | os.O_APPEND | os.O_CREAT), "a", encoding="utf-8")
            file, about = self.file.fileno(), os.fstat(self.file.fileno())
            known = not about.st_size or os.pread(file, len(BEGINNING), 0) == BEGINNING
            if not (known and stat.S_ISREG(about.st_mode)):
                self.file.close()
                raise ConfigurationError(f"--audit {path}: expected a new file, or one that caveat serve wrote")
            os.fchmod(file, 0o600)
        except OSError as error:
            raise ConfigurationError(f"--audit {path}: {error.strerror or error}") from None

    def write(self, id: str, served: Served, answers: list[dict[str, Any]]) -> None:
        model, now = served.model, datetime.now(UTC).isoformat(timespec="milliseconds")
        lines = []
        for row, answer in enumerate(answers):
            line = {
                "time": now, "id": id, "row": row, "silo": model.silo, "model": served.version,
                **{name: answer[name] for name in ("decision", "reason", *model.answer_names) if name in answer},
            }  # fmt: skip
            if answer.get("typicality") is not None and model.n_calibration:
                line |= {"rank": rank_of(answer["typicality"], model.n_calibration), "of": model.n_calibration + 1}
            lines.append(json.dumps(line, ensure_ascii=False) + "\n")
        self.file.write("".join(lines))
        self.file.flush()


class AnsweringThread:
    """The thread that reads and answers requests, in batches. `reopen` returns the models to serve from now on, given
    those that are served."""

    def __init__(
        self,
        served: Sequence[Served],
        audit: AnswerLog | None = None,
        reopen: Callable[[Sequence[Served]], Sequence[Served]] | None = None,
    ) -> None:
        self.served, self.audit, self.reopen = tuple(served), audit, reopen
        self.waiting: queue.SimpleQueue[Waiting | Callable[[], None]] = queue.SimpleQueue()
        """Requests, and what is to be done between batches."""
        self.changed: dict[Served, None] = {}
        self.saved, self.batches, self.open = time.monotonic(), 0, True
        self.deliver: Callable[[Callable[[], None]], object] = lambda found: found()
        """Calls a function that sets the results of a batch; for asyncio, in the thread of its loop. A call for each
        result would wake that thread, and wait for it, for each result."""
        self.thread = threading.Thread(target=self._work, daemon=True)

    def find(self, name: str | None = None, version: str | None = None) -> Served:
        """Return a model; of several versions, the last one if no version is given. Raises NoModel."""
        served = self.served
        if name is None and len({each.name for each in served}) > 1:
            raise NoModel
        fitting = [each for each in served if name in (None, each.name) and version in (None, each.version)]
        if not fitting:
            raise NoModel
        return fitting[-1]

    def submit(self, served: Served, given: Given) -> Future[Answered]:
        answer: Future[Answered] = Future()
        self.waiting.put(Waiting(served, given, answer))
        return answer

    async def answered(self, served: Served, given: Given) -> Answered:
        """Return the answer, in the event loop that `deliver` calls."""
        answer: asyncio.Future[Answered] = asyncio.get_running_loop().create_future()
        self.waiting.put(Waiting(served, given, answer))
        return await answer

    def reload(self) -> None:
        """Reload the models after the waiting requests have been answered."""
        self.waiting.put(self._reload)

    def outcomes(self, found: Sequence[Outcome]) -> Future[list[bool]]:
        """Add outcomes to the watches of the answers, and save the watches. Returns for each outcome whether it counts.
        The result raises Refusal if an outcome is not a class or a number; then no outcome counts."""
        counted: Future[list[bool]] = Future()

        def count() -> None:
            try:
                counted.set_result(self._count(found))
            except Exception as error:
                counted.set_exception(error)

        self.waiting.put(count)
        return counted

    def close(self) -> None:
        """Answer the waiting requests, and save the watch."""
        self.waiting.put(self._end)
        self.thread.join()
        if self.audit is not None:
            self.audit.file.close()

    def _work(self) -> None:
        while self.open:
            then, batch = self._next()
            of: dict[Served, list[Waiting]] = {}
            for each in batch:
                of.setdefault(each.served, []).append(each)
            found = [each for served, requests in of.items() for each in self._answer(served, requests)]
            if found:
                self.deliver(partial(_set, found))
            if then is not None:
                then()
            elif time.monotonic() - self.saved > SAVED:
                self._save()

    def _reload(self) -> None:
        self._save()
        if self.reopen is not None:
            try:
                self.served = tuple(self.reopen(self.served))
            except Exception as error:  # the thread has to go on
                why = error if isinstance(error, CaveatError | OSError) else type(error).__name__
                LOG.error("the models were not opened again, and the old models go on answering: %s", why)

    def _end(self) -> None:
        self._save()
        self.open = False

    def _count(self, found: Sequence[Outcome]) -> list[bool]:
        waiting: list[tuple[Served, Watch, float] | None] = []
        for i, (id, row, label) in enumerate(found):
            pairs = ((each, each.watch) for each in self.served)
            at = next(((each, watch) for each, watch in pairs if watch and watch.waits_for(id, row)), None)
            try:
                number = 0.0 if at is None else outcome_of(label, at[0].model.classes, at[0].model.target)
            except ValueError as error:
                raise Refusal((i, "label", str(error))) from None
            waiting.append(None if at is None else (*at, number))
        counted = []
        for (id, row, _), known in zip(found, waiting, strict=True):
            counted.append(known is not None and known[1].add_outcome(id, row, known[2]))
            self.changed |= {} if known is None else {known[0]: None}
        self._save()
        return counted

    def _next(self) -> tuple[Callable[[], None] | None, list[Waiting]]:
        """Wait for a request; return what is to be done after the batch, if anything, and the batch of requests."""
        batch: list[Waiting] = []
        count = 0
        try:
            first = self.waiting.get(timeout=SAVED if self.changed else None)
            while isinstance(first, Waiting):
                batch.append(first)
                count += first.given.count
                if count >= BATCH:
                    return None, batch
                first = self.waiting.get_nowait()
            return first, batch
        except queue.Empty:
            return None, batch

    def _save(self) -> None:
        for served in list(self.changed):
            if served.watch is not None and served.state is not None:
                try:
                    served.watch.save(served.state)
                except (CaveatError, OSError) as error:  # answers go on; the next save may succeed
                    LOG.error("the state of the watch was not saved: %s", error)
                    continue
            del self.changed[served]
        self.saved = time.monotonic()

    def _answer(self, served: Served, requests: list[Waiting]) -> list[tuple[Answer, Answered | Exception]]:
        self.batches += 1
        try:
            read = read_together(served.model, [each.given for each in requests])
            fine = [
                (each, asked) for each, asked in zip(requests, read, strict=True) if isinstance(asked, ServedInputs)
            ]
            every = served.model.ask([asked for _, asked in fine]) if fine else []
        except Exception as error:
            return [(each.answer, error) for each in requests]
        told: list[tuple[Answer, Answered | Exception]] = [
            (each.answer, asked)
            for each, asked in zip(requests, read, strict=True)
            if not isinstance(asked, ServedInputs)
        ]
        for (each, asked), found in zip(fine, every, strict=True):
            told.append((each.answer, self._told(each, asked, found)))
        return told

    def _told(self, request: Waiting, asked: ServedInputs, found: Arrays) -> Answered | Exception:
        id, served, answers = uuid.uuid4().hex, request.served, None
        try:
            watched = found.pop(WATCHED, None)
            if self.audit is not None:
                answers = responses(served.model, found, asked)
                self.audit.write(id, served, answers)
            if served.watch is not None:
                ranked = found if watched is None else found | {"typicality": watched}
                served.watch.add(ranked, asked, request.given.groups, answer=id)
                self.changed[served] = None
        except Exception as error:
            return error
        return Answered(id, found, asked, answers)


def _set(found: Sequence[tuple[Answer, Answered | Exception]]) -> None:
    for answer, value in found:
        if answer.done():  # the client has gone
            continue
        if isinstance(value, Exception):
            answer.set_exception(value)
        else:
            answer.set_result(value)


def read_together(model: ServedModel, given: Sequence[Given]) -> list[ServedInputs | Exception]:
    """Return the inputs of each request, or why it is refused, as if each request were read alone. Few rows with the
    same columns, and values of the same types in each, are read as one table, which takes little longer than one
    row."""
    found: dict[int, ServedInputs | Exception] = {}
    tables: list[tuple[dict[str, type | None], list[int]]] = []
    for i, each in enumerate(given):
        if each.columns is None or each.count >= FEWEST:  # notes on all rows together begin there
            continue
        types = _types(each.columns)
        for known, members in tables:
            if types is not None and _fit(known, types):
                known.update({name: kind for name, kind in types.items() if kind is not None})
                members.append(i)
                break
        else:
            if types is not None:
                tables.append((types, [i]))
    for _, members in tables:
        if len(members) > 1:
            parts = [given[i].columns or {} for i in members]
            whole = {name: [value for part in parts for value in part[name]] for name in parts[0]}
            try:
                together = model.rows(whole, apart=True)
            except Refusal:  # some request is refused, so each is read alone
                continue
            start = 0
            for i in members:
                found[i] = together.part(start, start + given[i].count)
                start += given[i].count
    return [found[i] if i in found else _alone(model, each) for i, each in enumerate(given)]


def _alone(model: ServedModel, given: Given) -> ServedInputs | Exception:
    try:
        return model.rows(given.columns) if given.columns is not None else model.inputs(given.values)
    except Exception as error:
        return error


def _fit(known: Mapping[str, type | None], types: Mapping[str, type | None]) -> bool:
    """Return whether two tables have the same columns, and values of the same types in each."""
    return known.keys() == types.keys() and all(None in (known[k], types[k]) or known[k] is types[k] for k in types)


def _types(columns: Mapping[str, Sequence[Any]]) -> dict[str, type | None] | None:
    """Return the type of the values of each column, None for a column without values; None if one has several."""
    found: dict[str, type | None] = {}
    for name, values in columns.items():
        kinds = {float if type(value) is int else type(value) for value in values if value is not None}
        if len(kinds) > 1 or not kinds <= {float, str, bool}:
            return None
        found[name] = next(iter(kinds), None)
    return found
