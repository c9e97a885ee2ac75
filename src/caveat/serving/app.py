"""The HTTP service: `/predict`, the Open Inference Protocol, MLflow's routes, and the batches behind them.

Requests are answered by one thread, which takes all that wait as one batch. Nothing that was sent is written to a log,
an error or the audit; errors name the row and the column.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import os
import queue
import socket
import threading
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import Future
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from .._version import __version__
from ..core import CaveatError, ConfigurationError
from ..export.export_model import Arrays
from ..files.writing import privately
from .answers import WATCHED, Refusal, ServedInputs, ServedModel, described
from .requests import parsed, request_of, tensors_of
from .watch import Watch, rank_of

BATCH = 256
"""Maximum number of inputs of a batch, unless one request has more."""
SAVED = 1.0
"""Seconds between two states of the watch on disk."""
DATATYPES = {"f": "FP64", "i": "INT64", "b": "BOOL", "u": "UINT8"}
PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>caveat serve</title><h1>caveat serve</h1>
<p>POST <code>/predict</code> with <code>{"rows": [{"COLUMN": VALUE}]}</code> or <code>{"inputs": [...]}</code>.
All routes: <a href="/openapi.json">openapi.json</a>.</p></html>"""


LOG = logging.getLogger(__name__)


class Answered(NamedTuple):
    """The outputs of a request."""

    id: str
    found: Arrays
    asked: ServedInputs


class AnswerLog:
    """A file for its owner alone, with a line for every answer."""

    def __init__(self, path: Path, model: ServedModel) -> None:
        try:
            self.file = os.fdopen(privately(str(path), os.O_WRONLY | os.O_APPEND | os.O_CREAT), "a", encoding="utf-8")
            os.fchmod(self.file.fileno(), 0o600)
        except OSError as error:
            raise ConfigurationError(f"--audit {path}: {error.strerror}") from None
        self.model = model

    def write(self, id: str, answers: list[dict[str, Any]]) -> None:
        model, now = self.model, datetime.now(UTC).isoformat(timespec="milliseconds")
        for row, answer in enumerate(answers):
            line = {
                "time": now, "id": id, "row": row, "silo": model.silo, "model": model.version[:12],
                **{name: answer[name] for name in ("decision", "reason", "label")},
            }  # fmt: skip
            if answer.get("typicality") is not None and model.n_calibration:
                line |= {"rank": rank_of(answer["typicality"], model.n_calibration), "of": model.n_calibration + 1}
            self.file.write(json.dumps(line, ensure_ascii=False) + "\n")
        self.file.flush()


class AnsweringThread:
    """The thread that reads and answers requests, in batches."""

    def __init__(self, model: ServedModel, audit: AnswerLog | None, watch: Watch | None, state: Path | None) -> None:
        self.model, self.audit, self.watch, self.state = model, audit, watch, state
        self.waiting: queue.SimpleQueue[tuple[Callable[[], ServedInputs], list[str] | None, Future[Answered]] | None]
        self.waiting, self.saved, self.batches = queue.SimpleQueue(), time.monotonic(), 0
        self.thread = threading.Thread(target=self._work, daemon=True)

    def submit(self, read: Callable[[], ServedInputs], groups: list[str] | None) -> Future[Answered]:
        answer: Future[Answered] = Future()
        self.waiting.put((read, groups, answer))
        return answer

    def close(self) -> None:
        """Answer what waits, and save the watch."""
        self.waiting.put(None)
        self.thread.join()
        if self.audit is not None:
            self.audit.file.close()

    def _work(self) -> None:
        running = True
        while running:
            batch, count = [], 0
            first = self.waiting.get()
            while first is not None:
                read, groups, answer = first
                try:
                    asked = read()
                    if groups is not None and len(groups) != len(asked):
                        raise Refusal((None, None, "expected a group for each input"))
                    batch.append((asked, groups, answer))
                    count += len(asked)
                except Exception as error:
                    answer.set_exception(error)
                if count >= BATCH:
                    break
                try:
                    first = self.waiting.get_nowait()
                except queue.Empty:
                    break
            running = first is not None
            if batch:
                self._answer(batch)
            if (
                self.watch is not None
                and self.state is not None
                and (not running or time.monotonic() - self.saved > SAVED)
            ):
                self._save(self.watch, self.state)

    def _save(self, watch: Watch, state: Path) -> None:
        try:
            watch.save(state)
        except (CaveatError, OSError) as error:  # answers go on; the next save may succeed
            LOG.error("the state of the watch was not saved: %s", error)
        self.saved = time.monotonic()

    def _answer(self, batch: list[tuple[ServedInputs, list[str] | None, Future[Answered]]]) -> None:
        self.batches += 1
        try:
            every = self.model.ask([asked for asked, _, _ in batch])
        except Exception as error:
            for _, _, answer in batch:
                answer.set_exception(error)
            return
        for (asked, groups, answer), found in zip(batch, every, strict=True):
            id = uuid.uuid4().hex
            try:
                watched = found.pop(WATCHED, None)
                if self.audit is not None:
                    self.audit.write(id, described(self.model, found, asked))
                if self.watch is not None:
                    self.watch.add(found if watched is None else found | {"typicality": watched}, asked, groups)
            except Exception as error:
                answer.set_exception(error)
                continue
            answer.set_result(Answered(id, found, asked))


def listed(value: Any) -> Any:
    """Return an array as lists, with null for numbers that are not finite."""
    if isinstance(value, list):
        return [listed(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class Guard:
    """Refuses bodies that are too long, and turns every error into a response that quotes nothing."""

    def __init__(self, app: Any, most: int) -> None:
        self.app, self.most = app, most

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        seen, started = 0, False

        async def counted() -> Any:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self.most:
                raise _TooLong
            return message

        async def sent(message: Any) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            lengths = [value for name, value in scope["headers"] if name == b"content-length"]
            if any(not each.isdigit() or int(each[:20]) > self.most for each in lengths):
                raise _TooLong
            await self.app(scope, counted, sent)
        except Exception as error:
            if started:
                return
            long = isinstance(error, _TooLong)
            told = f"expected a body of at most {self.most:,} bytes" if long else "internal error"
            await _send(send, 413 if long else 500, {"error": told})


class _TooLong(Exception):
    pass


async def _send(send: Any, status: int, value: Mapping[str, Any]) -> None:
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(value).encode()})


def service(
    model: ServedModel, name: str, worker: AnsweringThread, *, most_rows: int = 4096, most_bytes: int = 4 << 20
) -> Any:
    """Return the ASGI application. Raises ConfigurationError without FastAPI."""
    try:
        from fastapi import FastAPI, Request
        from fastapi.responses import HTMLResponse, JSONResponse
    except ImportError as error:
        raise ConfigurationError("caveat serve needs FastAPI and uvicorn: pip install 'caveat[serve]'") from error

    @contextlib.asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        worker.thread.start()
        yield
        await asyncio.to_thread(worker.close)

    app = FastAPI(title="caveat serve", version=__version__, docs_url=None, redoc_url=None, lifespan=lifespan)
    version = model.version[:12]
    Reads = Callable[[ServedModel, Mapping[str, Any], int], Callable[[], ServedInputs]]

    async def answer(request: Any, reads: Reads) -> tuple[dict[str, Any], Answered]:
        body = parsed(await request.body())
        groups = body.get("groups")
        if groups is not None and not (isinstance(groups, list) and all(isinstance(each, str) for each in groups)):
            raise Refusal((None, None, "expected groups as a list of texts"))
        return body, await asyncio.wrap_future(worker.submit(reads(model, body, most_rows), groups))

    def outputs(found: Answered) -> list[dict[str, Any]]:
        return [
            {"name": each, "shape": list(values.shape), "datatype": DATATYPES[values.dtype.kind],
             "data": listed(values.ravel().tolist())}
            for each, values in found.found.items()
        ]  # fmt: skip

    Handler = Callable[..., Awaitable[Any]]

    def told(handler: Handler) -> Handler:
        """Return a handler whose refusals are responses."""

        async def handled(request: Request) -> Any:
            try:
                return await handler(request)
            except Refusal as refusal:
                places = [{"row": row, "column": column, "expected": each} for row, column, each in refusal.places]
                return JSONResponse({"error": refusal.text, "detail": places}, 422)
            except _TooLong:
                return JSONResponse({"error": f"expected a body of at most {most_bytes:,} bytes"}, 413)
            except Exception as error:
                LOG.error("a request failed: %s", type(error).__name__)
                return JSONResponse({"error": "internal error"}, 500)

        handled.__name__, handled.__doc__ = handler.__name__, handler.__doc__
        handled.__annotations__ = {"request": Request}
        return handled

    async def predict(request: Request) -> Any:
        """Answer rows of a table, objects by column, or inputs, lists of numbers."""
        _, found = await answer(request, request_of)
        head = {"id": found.id, "silo": model.silo, "model": name, "version": version, "promises": model.promises}
        return JSONResponse({**head, "answers": described(model, found.found, found.asked)})

    async def invocations(request: Request) -> Any:
        """MLflow's route: the same outputs as those of an exported MLflow model."""
        _, found = await answer(request, request_of)
        predictions = {each: listed(values.tolist()) for each, values in found.found.items()}
        notes = {"notes": list(found.asked.notes)} if found.asked.notes else {}
        return JSONResponse({"predictions": predictions | notes}, headers={"x-answer-id": found.id})

    async def infer(request: Request) -> Any:
        """The Open Inference Protocol: a tensor of inputs, or a tensor for each column of a table."""
        if request.path_params["model"] != name:
            return JSONResponse({"error": "no such model"}, 404)
        body, found = await answer(request, tensors_of)
        id = body.get("id")
        own = id if isinstance(id, str) and len(id) <= 64 and id.isascii() and id.isprintable() else found.id
        head = {"model_name": name, "model_version": version, "id": own, "parameters": {"answer_id": found.id}}
        return JSONResponse({**head, "outputs": outputs(found)})

    for path, handler in (("/predict", predict), ("/invocations", invocations), ("/v2/models/{model}/infer", infer)):
        app.add_api_route(path, told(handler), methods=["POST"])

    async def live() -> Any:
        return {"live": True}

    async def ready() -> Any:
        return JSONResponse({"ready": worker.thread.is_alive()}, 200 if worker.thread.is_alive() else 503)

    async def metadata(request: Request) -> Any:
        if request.path_params["model"] != name:
            return JSONResponse({"error": "no such model"}, 404)
        table = [
            {"name": each.name, "datatype": "FP64" if each.categories is None else "BYTES", "shape": [-1]}
            for each in model.columns
        ]
        kinds = {"float32": "FP32", "int64": "INT64", "uint8": "UINT8"}
        whole = [{"name": "inputs", "datatype": kinds[model.dtype], "shape": [-1, *model.shape]}]
        shapes = {"probs": [-1, len(model.classes)], "sets": [-1, len(model.classes)]}
        whole_numbers = dict.fromkeys(("label", "decision", "reason", "answered_by"), "INT64") | {"sets": "BOOL"}
        given = [
            {"name": each, "datatype": whole_numbers.get(each, "FP64"), "shape": shapes.get(each, [-1])}
            for each in model.output_names
        ]
        return {"name": name, "versions": [version], "platform": "caveat", "inputs": table or whole, "outputs": given}

    async def server() -> Any:
        return {"name": "caveat", "version": __version__, "extensions": []}

    async def watched() -> Any:
        """What the watch has found."""
        if worker.watch is None:
            return JSONResponse({"error": "no watch"}, 404)
        return {"lines": worker.watch.lines(), "evidence": worker.watch.points}

    async def version_of() -> Any:
        return HTMLResponse(__version__)

    async def page() -> Any:
        return HTMLResponse(PAGE)

    for path, get in (
        ("/", page), ("/ping", live), ("/health", live), ("/version", version_of), ("/watch", watched),
        ("/v2", server), ("/v2/health/live", live), ("/v2/health/ready", ready), ("/v2/models/{model}", metadata),
        ("/v2/models/{model}/ready", ready),
    ):  # fmt: skip
        get.__annotations__ = {each: Request if each == "request" else Any for each in get.__annotations__}
        app.add_api_route(path, get, methods=["GET"], response_model=None)
    return Guard(app, most_bytes)


def serving(app: Any, host: str, port: int) -> None:
    """Serve until interrupted. Raises ConfigurationError without uvicorn, or if the port is taken."""
    try:
        import uvicorn
    except ImportError as error:
        raise ConfigurationError("caveat serve needs FastAPI and uvicorn: pip install 'caveat[serve]'") from error
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    with bound:
        try:
            bound.bind((host, port))
        except OSError as error:
            raise ConfigurationError(f"--host {host} --port {port}: {error.strerror or error}") from None
        settings = uvicorn.Config(app, log_level="warning", access_log=False, server_header=False)
        uvicorn.Server(settings).run(sockets=[bound])
