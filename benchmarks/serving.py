"""Measure what HTTP adds to an answer, and what micro-batches gain with many clients.

Starts `caveat serve` at a free port, asks single inputs with 1 client, in turns with answers without HTTP, and
with 32 clients, which are one other process; the latter again with batches of one request. Prints medians in ms,
requests per second, and the processor time of the service.

python benchmarks/serving.py RUN MODEL.onnx --silo NAME

With --answers and files of inputs, compares the answers to 8 threads, 10,000 each, with those to one at a time.

python benchmarks/serving.py RUN MODEL.onnx --silo NAME --answers january.csv
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import csv
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

import caveat
from caveat.serving import app, inference_thread
from caveat.serving.inference_thread import read_together
from caveat.serving.requests import request_of
from caveat.serving.responses import P_VALUES
from caveat.serving.served_model import Given, ServedModel, open_model

CLIENTS, SECONDS = 32, 4.0
THREADS, EACH, DISTINCT = 8, 10_000, 2000


def body_of(model: ServedModel) -> dict[str, Any]:
    """A request of one input."""
    if model.kind == "table":
        row = {each.name: 1.0 if each.categories is None else each.categories[0] for each in model.columns}
        return {"rows": [row]}
    return {"inputs": np.zeros((1, *model.shape), model.dtype).tolist()}


def direct(model: ServedModel, body: dict[str, Any], seconds: float = 3.0) -> float:
    """The median time of an answer without HTTP, in ms."""
    times = []
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        start = time.perf_counter()
        model.ask(read_together(model, [request_of(body, 1)]))
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times)


async def client(port: int, request: bytes, until: float, times: list[float]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while time.perf_counter() < until:
        start = time.perf_counter()
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        assert head.startswith(b"HTTP/1.1 200"), head
        await reader.readexactly(length)
        times.append(time.perf_counter() - start)
    writer.close()


def one_client(port: int, body: dict[str, Any]) -> float:
    """The median time of an answer to the only client, over a connection that stays open, in ms."""
    text, times = json.dumps(body).encode(), []
    head = f"POST /predict HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(text)}"
    with socket.create_connection(("127.0.0.1", port)) as asked, asked.makefile("rb") as answers:
        asked.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        until = time.perf_counter() + SECONDS
        while time.perf_counter() < until:
            start = time.perf_counter()
            asked.sendall(head.encode() + b"\r\n\r\n" + text)
            lines = list(iter(answers.readline, b"\r\n"))
            assert lines[0].startswith(b"HTTP/1.1 200"), lines[0]
            length = next(int(line[15:]) for line in lines if line.lower().startswith(b"content-length:"))
            answers.read(length)
            times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times)


def used(process: int) -> float:
    """The seconds of processor time of a process."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def load(port: int, clients: int, body: dict[str, Any], path: str, process: int) -> list[float]:
    """The median and the 99 % quantile in ms, requests per second, and ms of processor time per request."""
    text = json.dumps(body).encode()
    lines = f"POST {path} HTTP/1.1", "host: localhost", "content-type: application/json", f"content-length: {len(text)}"
    head = "\r\n".join((*lines, "", ""))
    times: list[float] = []

    async def all_of_them() -> None:
        until = time.perf_counter() + SECONDS
        await asyncio.gather(*(client(port, head.encode() + text, until, times) for _ in range(clients)))

    before = used(process)
    asyncio.run(all_of_them())
    cost = 1e3 * (used(process) - before) / len(times)
    return [1e3 * statistics.median(times), 1e3 * float(np.quantile(times, 0.99)), len(times) / SECONDS, cost]


def served(place: Path, silo: str | None, port: int, batch: int) -> None:
    """Serve a model, with batches of so many inputs."""
    inference_thread.BATCH = batch
    worker = inference_thread.AnsweringThread([inference_thread.Served("model", open_model(place, silo, caveat.load))])
    app.serving(app.service(worker), worker, "127.0.0.1", port)


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


def measured(place: Path, silo: str | None) -> None:
    model = open_model(place, silo, caveat.load)
    body = body_of(model)
    alone, added, found = [], [], {}
    for batch in (inference_thread.BATCH, 1):
        port = free_port()
        command = [sys.executable, __file__, str(place), "--port", str(port), "--batch", str(batch)]
        with subprocess.Popen(command + ([] if silo is None else ["--silo", silo])) as process:
            try:
                for _ in range(300):
                    time.sleep(0.1)
                    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                        break
                pairs = [(direct(model, body), one_client(port, body)) for _ in range(3)] if batch > 1 else []
                added += [with_http - without for without, with_http in pairs]
                alone += [without for without, _ in pairs]
                found[batch] = load(port, CLIENTS, body, "/predict", process.pid)
            finally:
                process.terminate()
    p50, p99, rate, cost = found[inference_thread.BATCH]
    slow50, _, slow, slow_cost = found[1]
    numbers = (
        f"{statistics.median(alone):.2f}", f"{statistics.median(added):+.2f}", f"{rate:,.0f}", f"{p50:.1f}",
        f"{p99:.1f}", f"{cost:.2f}", f"{slow:,.0f}", f"{slow50:.0f}", f"{slow_cost:.2f}",
    )  # fmt: skip
    print(f"| {place.name} | {' | '.join(numbers)} |", flush=True)


def given_in(path: Path) -> list[Given]:
    """Each row of a csv file, or each image or row of features of an npz file, as a request."""
    if path.suffix == ".npz":
        return [Given(1, values=[x.tolist()]) for x in np.load(path)["x_test"][:DISTINCT]]
    with path.open() as file:
        return [Given(1, {k: [v or None] for k, v in row.items()}) for row in csv.DictReader(file)][:DISTINCT]


def compared(place: Path, silo: str | None, given: list[Given]) -> None:
    """Compare answers to several threads with those to one request at a time."""
    model = open_model(place, silo, caveat.load)
    exact = ("label", "decision", "reason", *(each for each in P_VALUES if each in model.output_names))

    def told(found: dict[str, Any]) -> tuple[list[float], Any]:
        return [found[each][0] for each in exact], found["probs"][0]

    start = time.perf_counter()
    known = [told(model.ask(read_together(model, [each]))[0]) for each in given]
    alone = len(known) / (time.perf_counter() - start)
    worker = inference_thread.AnsweringThread([inference_thread.Served("model", model)])
    worker.thread.start()

    def ask(thread: int) -> tuple[int, float]:
        drawn, other, most = np.random.default_rng(thread), 0, 0.0
        for k in drawn.integers(len(given), size=EACH).tolist():
            values, probs = told(worker.submit(worker.find(), given[k]).result().found)
            other += values != known[k][0]
            most = max(most, float(abs(probs - known[k][1]).max()))
        return other, most

    start = time.perf_counter()
    with ThreadPoolExecutor(THREADS) as pool:
        found = list(pool.map(ask, range(THREADS)))
    rate = THREADS * EACH / (time.perf_counter() - start)
    worker.close()
    other, most = sum(each for each, _ in found), max(each for _, each in found)
    numbers = f"{len(given):,}", f"{THREADS * EACH:,}", f"{other:,}", f"{most:.1g}", f"{alone:,.0f}", f"{rate:,.0f}"
    print(f"| {place.name} | {' | '.join(numbers)} | {worker.batches:,} |", flush=True)


def head(*columns: str) -> None:
    print(f"| model | {' | '.join(columns)} |\n|---|{'---:|' * len(columns)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("places", nargs="+", type=Path, metavar="RUN|MODEL.onnx")
    parser.add_argument("--silo", help="silo of runs")
    parser.add_argument("--answers", nargs="+", type=Path, metavar="FILE", help="csv or npz files of inputs")
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--batch", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.port is not None:
        served(given.places[0], given.silo, given.port, given.batch)
        return
    if given.answers:
        head("inputs", "answers", "other label, decision, reason or p", "probabilities differ by at most",
             "answers/s one at a time", f"of {THREADS} threads", "batches")  # fmt: skip
    else:
        head("ms, 1 row without HTTP", "HTTP adds", "rows/s, 32 clients", "p50", "p99", "processor ms a row",
             "rows/s without batches", "p50", "processor ms a row")  # fmt: skip
    for place in given.places:
        silo = None if place.suffix == ".onnx" else given.silo
        if given.answers:
            compared(place, silo, [each for path in given.answers for each in given_in(path)])
        else:
            measured(place, silo)


if __name__ == "__main__":
    main()
