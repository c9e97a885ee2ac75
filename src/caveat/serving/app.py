"""The HTTP service: `/predict`, the Open Inference Protocol, MLflow's routes, and the batches behind them.

One thread answers requests, and takes all waiting requests as one batch. Values of requests are never written to a log,
an error or the audit; errors name the row and the column.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import logging
import math
import re
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from html import escape
from typing import Any

from .._version import __version__
from ..core import ConfigurationError
from .inference_thread import Answered, AnsweringThread, NoModel, Served
from .requests import outcomes_of, parsed, request_of, tensors_of
from .responses import responses
from .served_model import Given, Refusal

DATATYPES = {"f": "FP64", "i": "INT64", "b": "BOOL", "u": "UINT8"}
PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>caveat serve</title>
<style>body{{font:16px system-ui;max-width:60em;margin:2em auto;padding:0 1em}}td{{padding:.2em 1em .2em 0}}</style>
<h1>caveat serve</h1>
<p>Models:</p><ul>{models}</ul>
<p><code>POST /predict</code> with a body such as</p><pre>{body}</pre>
<table>{rows}</table>
<p>The same as <a href="/openapi.json">OpenAPI</a>. With several models, <code>?model=NAME</code>.</p></html>"""
CONNECTIONS = 512
"""Maximum number of connections and requests at once; further requests get status 503."""
SLOWEST = 30.0
"""Maximum number of seconds from the head of a request to the end of its body."""
HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[0-9]{1,5})?")
LOG = logging.getLogger(__name__)


def listed(value: Any) -> Any:
    """Return an array as lists, with null for numbers that are not finite."""
    if isinstance(value, list):
        return [listed(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def refusal_of(headers: Iterable[tuple[bytes, bytes]], names: Collection[str]) -> str:
    """Return why a request is refused because a page of another site may have sent it from a browser; "" otherwise.

    Browsers name the site of such a page as `Origin`. If the name of a site resolves to the address of the service
    (DNS rebinding), the origin is the same, but `Host` is the name of the site."""
    given = [(name, value.decode("latin-1").lower()) for name, value in headers if name in (b"host", b"origin")]
    hosts, origins = ([value for name, value in given if name == wanted] for wanted in (b"host", b"origin"))
    host = HOST.fullmatch(hosts[0]) if len(hosts) == 1 else None
    if host is None or (host[1] not in {"localhost", *names} and not _is_address(host[1].strip("[]"))):
        return "expected an address, localhost, or a name given by --host or --allow-host, as Host"
    if any(re.sub("^https?://", "", origin) != hosts[0] for origin in origins):
        return "expected no Origin, or the same as Host: pages of other sites may not send requests"
    return ""


def _is_address(name: str) -> bool:
    try:
        return bool(ipaddress.ip_address(name))
    except ValueError:
        return False


class Guard:
    """Refuses requests of other sites, and bodies that are too long or too slow, and turns every error into a response
    that quotes nothing. `names` are the host names of the service."""

    def __init__(self, app: Any, most: int, names: Iterable[str] = ()) -> None:
        self.app, self.most, self.names = app, most, {each.lower() for each in names}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        seen, started, more = 0, False, True
        until = asyncio.get_running_loop().time() + SLOWEST

        async def counted() -> Any:
            nonlocal seen, more
            try:
                async with asyncio.timeout_at(until if more else None):
                    message = await receive()
            except TimeoutError:
                raise _Refused(408, f"expected the whole body within {SLOWEST:g} seconds") from None
            seen, more = seen + len(message.get("body", b"")), message.get("more_body", False)
            if seen > self.most:
                raise self._too_long
            return message

        async def sent(message: Any) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            if refused := refusal_of(scope["headers"], self.names):
                raise _Refused(403, refused)
            if {b"content-length", b"transfer-encoding"} <= {name for name, _ in scope["headers"]}:
                raise _Refused(400, "expected Content-Length or Transfer-Encoding, not both")  # proxies differ
            lengths = [value for name, value in scope["headers"] if name == b"content-length"]
            if any(not each.isdigit() or int(each[:20]) > self.most for each in lengths):
                raise self._too_long
            await self.app(scope, counted, sent)
        except Exception as error:
            if started:
                return
            refusal = error if isinstance(error, _Refused) else _Refused(500, "internal error")
            await _send(send, refusal.status, {"error": str(refusal)})

    @property
    def _too_long(self) -> _Refused:
        return _Refused(413, f"expected a body of at most {self.most:,} bytes")


def page_of(schema: Mapping[str, Any], served: Sequence[Served]) -> str:
    """Return a page of all models and routes, which needs no other file."""
    rows = [
        f"<tr><td>{method.upper()} <code>{escape(path)}</code><td>{escape(each.get('description', ''))}"
        for path, methods in schema["paths"].items()
        for method, each in methods.items()
    ]
    models = [
        f"<li><code>{escape(each.name)}</code>, silo {escape(each.model.silo)}, version {each.version}"
        for each in served
    ]
    return PAGE.format(models="\n".join(models), rows="\n".join(rows), body=escape(json.dumps(example(served[-1]))))


def example(served: Served) -> dict[str, Any]:
    """Return an example of a body of `/predict`."""
    model = served.model
    if model.kind == "table":
        return {"rows": [{each.name: 1.0 if each.categories is None else each.categories[0] for each in model.columns}]}
    return {"inputs": ["..."]}


class _Refused(Exception):
    """A request that is refused before it is read to its end."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


async def _send(send: Any, status: int, value: Mapping[str, Any]) -> None:
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(value).encode()})


def service(
    worker: AnsweringThread, *, most_rows: int = 4096, most_bytes: int = 4 << 20, names: Sequence[str] = ()
) -> Any:
    """Return the ASGI application; `names` are its host names, in addition to localhost and addresses. Raises
    ConfigurationError without FastAPI."""
    try:
        from fastapi import FastAPI, Request
        from fastapi.responses import HTMLResponse, JSONResponse
    except ImportError as error:
        raise ConfigurationError("caveat serve needs FastAPI and uvicorn: pip install 'caveat[serve]'") from error

    @contextlib.asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        worker.deliver = asyncio.get_running_loop().call_soon_threadsafe
        worker.thread.start()
        yield
        await asyncio.to_thread(worker.close)

    app = FastAPI(
        title="caveat serve",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
    )
    Handler = Callable[..., Awaitable[Any]]

    def failed(status: int, text: str, **more: Any) -> Any:
        return JSONResponse({"error": text, **more}, status)

    def told(handler: Handler) -> Handler:
        """Return a handler whose errors are responses that quote nothing."""

        async def handled(request: Request) -> Any:
            try:
                return await handler(request)
            except Refusal as refusal:
                places = [{"row": row, "column": column, "expected": each} for row, column, each in refusal.places]
                return failed(422, refusal.text, detail=places)
            except NoModel:
                return failed(404, "no such model; POST /v2/repository/index lists all models")
            except _Refused as refused:
                return JSONResponse({"error": str(refused)}, refused.status, {"connection": "close"})
            except Exception as problem:
                LOG.error("a request failed: %s", type(problem).__name__)
                return failed(500, "internal error")

        handled.__name__, handled.__doc__ = handler.__name__, handler.__doc__
        handled.__annotations__ = {"request": Request}
        return handled

    @app.exception_handler(404)
    @app.exception_handler(405)
    async def unknown(request: Request, problem: Any) -> Any:
        return failed(problem.status_code, "no such route, or the route has other methods; see /")

    def asked(request: Any) -> Served:
        """Return the model of a request: by its path, or by ?model= and ?version=."""
        path, query = request.path_params, request.query_params
        name, version = path.get("model", query.get("model")), path.get("version", query.get("version"))
        return worker.find(name, version)

    async def answer(request: Any, reads: Callable[[Mapping[str, Any], int], Given]) -> tuple[Any, Served, Answered]:
        body = parsed(await request.body(), nan=request.url.path == "/invocations")
        given, served = reads(body, most_rows), asked(request)
        return body, served, await worker.answered(served, given)

    async def predict(request: Request) -> Any:
        """Answer rows of a table (objects with a value for each column), or inputs (lists of numbers)."""
        _, served, found = await answer(request, request_of)
        model = served.model
        head = {"id": found.id, "silo": model.silo, "model": served.name, "version": served.version}
        answers = found.answers or responses(model, found.found, found.asked)
        return JSONResponse({**head, "promises": model.promises, "answers": answers})

    async def invocations(request: Request) -> Any:
        """MLflow's route: the outputs are the same as from an exported MLflow model."""
        _, _, found = await answer(request, request_of)
        predictions = {each: listed(values.tolist()) for each, values in found.found.items()}
        notes = {"notes": list(found.asked.notes)} if found.asked.notes else {}
        return JSONResponse({"predictions": predictions | notes}, headers={"x-answer-id": found.id})

    async def infer(request: Request) -> Any:
        """The Open Inference Protocol: a tensor of inputs, or a tensor for each column of a table."""
        body, served, found = await answer(request, tensors_of)
        id = body.get("id")
        own = id if isinstance(id, str) and len(id) <= 64 and id.isascii() and id.isprintable() else found.id
        head = {"model_name": served.name, "model_version": served.version, "id": own}
        outputs = [
            {"name": each, "shape": list(values.shape), "datatype": DATATYPES[values.dtype.kind],
             "data": listed(values.ravel().tolist())}
            for each, values in found.found.items()
        ]  # fmt: skip
        return JSONResponse({**head, "parameters": {"answer_id": found.id}, "outputs": outputs})

    async def outcomes(request: Request) -> Any:
        """Add the true classes or numbers of answers to the watch, each once, by the id of the answer and the row."""
        if not any(each.watch is not None and "outcomes" in each.watch.monitors for each in worker.served):
            return failed(404, "no watch of outcomes: it needs --watch, and a guarantee of errors or intervals")
        given = outcomes_of(parsed(await request.body()), most_rows)
        counted = await asyncio.wrap_future(worker.outcomes(given))
        return {"counted": sum(counted), "not_counted": [i for i, each in enumerate(counted) if not each]}

    async def live(request: Request) -> Any:
        """Say that the process runs."""
        return {"live": True}

    async def ready(request: Request) -> Any:
        """Say whether a model answers."""
        if "model" in request.path_params:
            asked(request)
        alive = worker.thread.is_alive()
        return JSONResponse({"ready": alive}, 200 if alive else 503)

    async def metadata(request: Request) -> Any:
        """The inputs and outputs of a model."""
        served = asked(request)
        return described_model(served, [each.version for each in worker.served if each.name == served.name])

    async def index(request: Request) -> Any:
        """All models that are served, by name, version and silo."""
        return [
            {"name": each.name, "version": each.version, "state": "READY", "reason": "", "silo": each.model.silo}
            for each in worker.served
        ]

    async def server(request: Request) -> Any:
        """The name and the version of the server."""
        return {"name": "caveat", "version": __version__, "extensions": ["model_repository"]}

    async def watched(request: Request) -> Any:
        """The findings of the watch."""
        watch = asked(request).watch
        if watch is None:
            return failed(404, "no watch")
        return {"lines": watch.lines(), "evidence": list(watch.points)}

    async def watch_page(request: Request) -> Any:
        """The findings as a page: evidence over time, and the start, the column and the remedy for each alarm."""
        watch = asked(request).watch
        return failed(404, "no watch") if watch is None else HTMLResponse(watch.page())

    async def version_of(request: Request) -> Any:
        """The version of caveat."""
        return HTMLResponse(__version__)

    async def page(request: Request) -> Any:
        """This page."""
        return HTMLResponse(page_of(app.openapi(), worker.served))

    model, version = "/v2/models/{model}", "/v2/models/{model}/versions/{version}"
    for path, handler in (
        ("/predict", predict), ("/invocations", invocations), (f"{model}/infer", infer), (f"{version}/infer", infer),
        ("/v2/repository/index", index), ("/outcomes", outcomes),
    ):  # fmt: skip
        app.add_api_route(path, told(handler), methods=["POST"], response_model=None)
    for path, handler in (
        ("/", page), ("/ping", live), ("/health", live), ("/version", version_of), ("/watch", watched),
        ("/watch.html", watch_page),
        ("/v2", server), ("/v2/health/live", live), ("/v2/health/ready", ready), (model, metadata),
        (version, metadata), (f"{model}/ready", ready), (f"{version}/ready", ready),
    ):  # fmt: skip
        app.add_api_route(path, told(handler), methods=["GET"], response_model=None)
    return Guard(app, most_bytes, names)


def described_model(served: Served, versions: list[str]) -> dict[str, Any]:
    """Return the metadata of a model, in the format of the Open Inference Protocol."""
    model = served.model
    table = [
        {"name": each.name, "datatype": "FP64" if each.categories is None else "BYTES", "shape": [-1]}
        for each in model.columns
    ]
    kinds = {"float32": "FP32", "int64": "INT64", "uint8": "UINT8"}
    whole = [{"name": "inputs", "datatype": kinds[model.dtype], "shape": [-1, *model.shape]}]
    shapes = {"probs": [-1, len(model.classes)], "sets": [-1, len(model.classes)]}
    types = dict.fromkeys(("label", "decision", "reason", "answered_by"), "INT64") | {"sets": "BOOL"}
    given = [
        {"name": each, "datatype": types.get(each, "FP64"), "shape": shapes.get(each, [-1])}
        for each in model.output_names
    ]
    return {"name": served.name, "versions": versions, "platform": "caveat", "inputs": table or whole, "outputs": given}


def serving(app: Any, worker: AnsweringThread, host: str, port: int) -> None:
    """Serve until interrupted; SIGHUP reloads the models. Raises ConfigurationError without uvicorn, or if the port is
    taken."""
    try:
        import uvicorn
    except ImportError as error:
        raise ConfigurationError("caveat serve needs FastAPI and uvicorn: pip install 'caveat[serve]'") from error
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, lambda *_: worker.reload())
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    with bound:
        try:
            bound.bind((host, port))
        except OSError as error:
            raise ConfigurationError(f"--host {host} --port {port}: {error.strerror or error}") from None
        settings = uvicorn.Config(
            app, http="h11", log_level="warning", access_log=False, server_header=False, limit_concurrency=CONNECTIONS
        )  # h11 limits the size of heads, unlike httptools
        uvicorn.Server(settings).run(sockets=[bound])
