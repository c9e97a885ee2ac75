"""Measure what HTTP adds to an answer, and what micro-batches gain with many clients.

Starts `caveat serve` at a free port, asks single inputs with 1 and with 32 clients, which are one other process, and
does so again with batches of one request. Prints medians in ms and requests per second.

python benchmarks/serving.py RUN SILO [MODEL.onnx]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import caveat
from caveat.serving import answering, app
from caveat.serving.answering import read_together
from caveat.serving.answers import ServedModel, open_model
from caveat.serving.requests import request_of

CLIENTS, SECONDS = 32, 8.0


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


def used(process: int) -> float:
    """The seconds of processor time of a process."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def load(port: int, clients: int, body: dict[str, Any], path: str, process: int) -> list[float]:
    """The median and the 99 % quantile in ms, requests per second, and ms of processor time per request."""
    text = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(text)}\r\n\r\n"
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
    answering.BATCH = batch
    worker = answering.AnsweringThread([answering.Served("model", open_model(place, silo, caveat.load))])
    app.serving(app.service(worker), worker, "127.0.0.1", port)


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


def measured(place: Path, silo: str | None) -> None:
    model = open_model(place, silo, caveat.load)
    body = body_of(model)
    alone, found = direct(model, body), {}
    for batch in (answering.BATCH, 1):
        port = free_port()
        command = [sys.executable, __file__, str(place), "--port", str(port), "--batch", str(batch)]
        with subprocess.Popen(command + ([] if silo is None else ["--silo", silo])) as process:
            try:
                for _ in range(300):
                    time.sleep(0.1)
                    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                        break
                found[batch] = [load(port, clients, body, "/predict", process.pid) for clients in (1, CLIENTS)]
            finally:
                process.terminate()
    (one, *_), (p50, p99, rate, cost) = found[answering.BATCH]
    _, (slow50, _, slow, slow_cost) = found[1]
    cells = f"{alone:.2f}", f"{one:.2f}", f"{rate:,.0f}", f"{p50:.1f}", f"{p99:.1f}", f"{cost:.2f}"
    print(f"| {' | '.join([place.name, *cells, f'{slow:,.0f}', f'{slow50:.0f}', f'{slow_cost:.2f}'])} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("places", nargs="+", type=Path, metavar="RUN|MODEL.onnx")
    parser.add_argument("--silo", help="silo of runs")
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--batch", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.port is not None:
        served(given.places[0], given.silo, given.port, given.batch)
        return
    columns = "model", "ms, 1 row without HTTP", "with", "rows/s, 32 clients", "p50", "p99", "processor ms a row"
    columns += "rows/s without batches", "p50", "processor ms a row"
    print(f"| {' | '.join(columns)} |\n|---|{'---:|' * (len(columns) - 1)}")
    for place in given.places:
        measured(place, None if place.suffix == ".onnx" else given.silo)


if __name__ == "__main__":
    main()
