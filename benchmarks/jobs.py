"""Jobs to measure engines with: synthetic silos, a method, and the bare loop with the same steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from caveat.core import Data, Method, Silo
from caveat.core.devices import CPU, brought
from caveat.engines.executor import Executor, channels_last
from caveat.engines.rounds import Participation
from caveat.engines.silos_on_device import one_thread
from caveat.engines.single_machine import SingleMachineEngine
from caveat.engines.vectorization import Vectorization
from caveat.files import SiloStore
from caveat.methods import FedAvg
from caveat.nn.models import ModelSettings, build_model
from caveat.training.fit import Training
from caveat.wrappers.evaluation import Evaluated


@dataclass(frozen=True)
class Job:
    """A federation of equal silos, one epoch of SGD a round."""

    silos: int
    examples: int
    shape: tuple[int, ...]
    model: ModelSettings
    batch: int = 64
    classes: int = 10

    @property
    def training(self) -> Training:
        return Training(batch_size=self.batch, optimizer="sgd", lr=0.01)

    def data(self) -> dict[str, Silo]:
        torch.manual_seed(0)
        none = Data(torch.zeros(0, *self.shape), torch.zeros(0, dtype=torch.long))
        width = len(str(self.silos))
        return {
            f"silo-{k:0{width}d}": Silo(
                f"silo-{k:0{width}d}",
                "",
                Data(torch.randn(self.examples, *self.shape), torch.randint(self.classes, (self.examples,))),
                none,
                none,
                none,
            )
            for k in range(self.silos)
        }

    def module(self) -> nn.Module:
        return channels_last(build_model(self.model, self.shape, self.classes, 0))

    def bare(self, silos: Mapping[str, Silo], device: torch.device = CPU) -> Callable[[], None]:
        """A round as one would write it by hand: load, train, sum, with all data on the device."""
        module, training = self.module().to(device), self.training
        data = [(brought(silo.train.x, device), brought(silo.train.y, device)) for silo in silos.values()]
        weights = {name: tensor.clone() for name, tensor in module.state_dict().items()}

        def round() -> None:
            nonlocal weights
            sums = {name: torch.zeros_like(t, dtype=torch.float64) for name, t in weights.items()}
            for x, y in data:
                module.load_state_dict(weights)
                module.train()
                optimizer = torch.optim.SGD(module.parameters(), training.lr, fused=True)
                for batch in brought(torch.randperm(self.examples), device).split(self.batch):
                    optimizer.zero_grad()
                    cross_entropy(module(x[batch]), y[batch]).backward()
                    optimizer.step()
                for name, tensor in module.state_dict().items():
                    sums[name].add_(tensor, alpha=1 / len(silos))
            weights = {name: sums[name].to(t.dtype) for name, t in weights.items()}

        return round


@contextmanager
def bare_processes(job: Job, silos: dict[str, Silo], count: int) -> Iterator[Callable[[], None]]:
    """A round of as many bare loops at once, each in a process of its own with its share of the silos.

    What no engine with so many workers can beat by much: nothing is sent, and nothing is summed over processes.
    """
    context = get_context("fork")
    pipes, processes = [], []
    for k in range(count):
        ours, theirs = context.Pipe()
        share = dict(list(silos.items())[k::count])
        processes.append(context.Process(target=_repeat, args=(job, share, theirs), daemon=True))
        processes[-1].start()
        pipes.append(ours)

    def round() -> None:
        for pipe in pipes:
            pipe.send(None)
        for pipe in pipes:
            pipe.recv()

    yield round
    for process in processes:
        process.terminate()
        process.join()


def _repeat(job: Job, silos: dict[str, Silo], pipe: Connection) -> None:
    torch.set_num_threads(1)
    round = job.bare(silos)
    while True:
        pipe.recv()
        round()
        pipe.send(None)


@contextmanager
def rounds(
    job: Job,
    method: Method,
    silos: Mapping[str, Silo],
    workers: int,
    vectorization: Vectorization | None = None,
    asked: int = 0,
    device: torch.device = CPU,
) -> Iterator[Callable[[], None]]:
    """A function that carries out the next round on the single-machine engine, of all silos or of so many that are
    drawn."""
    with TemporaryDirectory() as folder:
        module = channels_last(method.build(job.module()))
        names = None if isinstance(silos, dict) else silos.population.names  # type: ignore[attr-defined]
        place = Executor(Evaluated(method), module, silos, SiloStore(Path(folder)), 0, names=names, device=device)
        context = place.context(next(iter(silos)))
        server, t = method.init_server(context), 0
        steps = iter(place.schedule)
        participation = Participation(0, asked / len(silos) if asked else 1.0)
        with SingleMachineEngine(place, workers, vectorization=vectorization) as engine:

            def round() -> None:
                nonlocal server, t
                step = next(steps)
                cohort = participation.cohort(t, step, engine.silos)
                replies = engine.exchange(t, step.address, step.broadcast(server), cohort, step.linear)
                server = step.aggregate(server, replies, context)
                t += 1

            yield round


def seconds(task: Callable[[], object]) -> float:
    start = time.perf_counter()
    task()
    return time.perf_counter() - start


def side_by_side(*works: Callable[[], object], pairs: int = 7, warm: int = 2) -> list[list[float]]:
    """Seconds of each work, in turns, so that what else the machine does hits all alike."""
    for _ in range(warm):
        for task in works:
            task()
    return [list(each) for each in zip(*([seconds(task) for task in works] for _ in range(pairs)), strict=True)]


def ratio(one: list[float], other: list[float]) -> float:
    """The median of one over the other, pair by pair."""
    return median(a / b for a, b in zip(one, other, strict=True))


LENET = Job(9, 2000, (1, 28, 28), ModelSettings(name="lenet5"))
ENCODER = Job(9, 2000, (1, 28, 28), ModelSettings(name="residual", width=16))


def fedavg(job: Job) -> Method:
    return FedAvg(rounds=10**6, training=job.training)


__all__ = [
    "ENCODER",
    "LENET",
    "Job",
    "bare_processes",
    "fedavg",
    "one_thread",
    "ratio",
    "rounds",
    "seconds",
    "side_by_side",
]
