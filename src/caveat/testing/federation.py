"""A small federation to check methods on: three silos whose data differ, a model with BatchNorm and dropout.

One method takes seconds. `CheckedMethod` holds its runs, and `assert_same` says how two differ.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..core import Data, Method, Payload, Silo, SiloContext, SiloId, State
from ..core.devices import CPU
from ..engines.executor import Executor, channels_last
from ..engines.norms import NormBound
from ..engines.process_pool import SingleMachineEngine
from ..engines.rounds import FinishedRound, Participation, run
from ..files.checkpoints import SiloStore
from ..files.reading import sum_of
from ..files.schema import KeptState
from ..nn.encoders import Model, Tokens, head
from ..wrappers.base import Wrapper
from ..wrappers.evaluation import Evaluated

LATEST = 10**6
"""A round after all others."""
Manifest = Mapping[str, Mapping[str, list[str]]]
"""By class, then by group, the names of the tensors that leave a silo: of modules' parts, or "*" for all."""


class Violation(AssertionError):
    """What a method does not keep of the contract, in one sentence."""


def check(condition: object, message: str) -> None:
    """Raises Violation unless the condition holds; `assert` would not under `python -O`."""
    if not condition:
        raise Violation(message)


def flat(payload: Payload) -> dict[str, Tensor]:
    """Tensors by "GROUP/NAME"."""
    return {f"{group}/{name}": tensor for group, named in payload.items() for name, tensor in named.items()}


def assert_same(a: Payload, b: Payload) -> None:
    """Raises Violation unless both have the same tensors, bit by bit."""
    one, other = flat(a), flat(b)
    check(one.keys() == other.keys(), f"other tensors: {sorted(one.keys() ^ other.keys())}")
    for name in one:
        check(torch.equal(one[name], other[name]), f"{name} is another")


def assert_same_states(a: Mapping[SiloId, State], b: Mapping[SiloId, State]) -> None:
    """Raises Violation unless both have the same silos with the same states, bit by bit."""
    check(a.keys() == b.keys(), f"other silos: {sorted(a.keys() ^ b.keys())}")
    for name in a:
        assert_same(a[name], b[name])


def small_model(seed: int = 0) -> Model:
    """Two features to three classes, with an encoder `encoder.0` to `encoder.4`, of which 1 is a BatchNorm."""
    torch.manual_seed(seed)
    encoder = nn.Sequential(nn.Linear(2, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 6), Tokens())
    return Model(encoder, head(1, 6, 8, 3, dropout=0.3, dropout_logits=False), tokens=1, features=6)


@cache
def small_architectures() -> tuple[nn.Module, nn.Module]:
    """The one above, and a smaller one without BatchNorm: the models of silos' own."""
    encoder = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), Tokens())
    return small_model(), Model(encoder, head(1, 4, 4, 3, dropout=0.3, dropout_logits=False), tokens=1, features=4)


def small_silo(k: int, generator: torch.Generator) -> Silo:
    """The k-th silo, `silo-k`: 40 + 20 k training examples, and 20 of each other split."""
    x = torch.randn(100 + 20 * k, 2, generator=generator) + k
    y = (x.sum(-1) > k).long() + (x[:, 0] > k + 1).long()
    parts = [Data(x[i:j], y[i:j]) for i, j in ((0, 20), (20, 40), (40, 60), (60, len(x)))]
    return Silo(f"silo-{k}", f"shift({k})", parts[3], parts[2], parts[1], parts[0])


def small_silos(count: int = 3) -> dict[SiloId, Silo]:
    """Silos by name, each with its inputs moved further; the same ones every time."""
    generator = torch.Generator().manual_seed(1)
    return {silo.name: silo for silo in (small_silo(k, generator) for k in range(count))}


def innermost(method: Method) -> Method:
    """What a method's wrappers are around."""
    return method.method if isinstance(method, Wrapper) else method


def small_executor(
    method: Method,
    folder: Path,
    data: Mapping[SiloId, Silo] | None = None,
    seed: int = 0,
    model: Callable[[], nn.Module] | None = None,
    device: torch.device = CPU,
) -> Executor:
    """What carries out a method's works at the small silos, on a device, with their states below a folder.

    `model` makes another model for two features and three classes than the small one.
    """
    module, silos = channels_last(method.build((model or small_model)())), dict(data or small_silos())
    own = _own_models(method, module, silos, model) if innermost(method).personal else {}
    return Executor(Evaluated(method), module, silos, SiloStore(folder), seed, own, device=device)


def _own_models(
    method: Method, module: nn.Module, silos: Iterable[SiloId], model: Callable[[], nn.Module] | None
) -> dict[SiloId, nn.Module]:
    """The silos' own models, of two architectures in turn where the method takes both."""
    one, other = small_architectures() if model is None else (model(), small_architectures()[1])
    taken = (one, one if method.mismatch(module, other) else other)
    return {name: taken[k % 2] for k, name in enumerate(silos)}


def kept_state(place: Executor, silo: SiloId, until: int = LATEST) -> State:
    """What a silo has kept until a round, by what is there."""
    return place.state(silo, newest_state(place.states, silo, until))


def newest_state(states: SiloStore, silo: SiloId, until: int = LATEST) -> KeptState | None:
    """Which state a silo has kept last until a round, by what is there; None before the first."""
    known = [t for t in states.versions(silo) if t <= until]
    if not known:
        return None
    path = states.root / silo / f"{known[-1]:06d}.safetensors"
    return KeptState(silo=silo, t=known[-1], sha256=sum_of(path).sha256)


class SmallFederation:
    """Run a method on the small test silos; store the server state and every message.

    Silos' states are files below `folder`; `workers` is the number of processes, and works are carried out on `device`.
    """

    def __init__(
        self,
        method: Method,
        folder: Path,
        workers: int = 1,
        data: Mapping[SiloId, Silo] | None = None,
        model: Callable[[], nn.Module] | None = None,
        device: torch.device = CPU,
    ) -> None:
        self.method, self.workers = method, workers
        self.place = small_executor(method, folder, data, model=model, device=device)
        none = Data(torch.zeros(0, 2), torch.zeros(0, dtype=torch.long))
        self.context = SiloContext("server", none, none, none, method.build((model or small_model)()))
        self.server: State = method.init_server(self.context)
        self.done: list[FinishedRound] = []

    def run(
        self,
        engine: SingleMachineEngine | None = None,
        participation: Participation | None = None,
        after: Callable[[FinishedRound, State], None] | None = None,
        norms: NormBound | None = None,
        **bounds: int,
    ) -> State:
        """Run the schedule, or from round `start` to before round `stop`; return the server's state."""
        more = after or (lambda done, server: None)

        def after_each(done: FinishedRound, server: State) -> None:
            self.done.append(done)
            self.server = server
            more(done, server)

        with engine or SingleMachineEngine(self.place, self.workers) as transport:
            start = bounds.get("start", 0)
            if isinstance(transport, SingleMachineEngine):
                states = self.place.states
                found = {silo: newest_state(states, silo, start - 1) for silo in sorted(states.silos())}
                transport.begin(start, {}, {silo: kept for silo, kept in found.items() if kept is not None})
            self.server = run(
                self.place.method, transport, self.context, self.server,
                participation=participation or Participation(0), after=after_each, ended=lambda: False, norms=norms,
                **bounds,
            )  # fmt: skip
        return self.server

    def states(self, until: int = LATEST) -> dict[SiloId, State]:
        """What every silo has kept."""
        return {name: kept_state(self.place, name, until) for name in self.place.silos}


def chain(method: Method) -> list[Method]:
    """The method, and what it is wrapped around."""
    return [method, *chain(method.base)] if isinstance(method, Wrapper) else [method]


@dataclass(frozen=True)
class CheckedMethod:
    """A method to be checked, a new folder for its files, and what it declares to send."""

    method: Method
    folder: Path
    manifest: Manifest = field(default_factory=dict)
    model: Callable[[], nn.Module] | None = None
    """What makes another model than the small one."""

    @cached_property
    def whole(self) -> SmallFederation:
        """The method's whole schedule with one worker, uninterrupted."""
        federation = self.federation("whole")
        federation.run()
        return federation

    def federation(self, name: str, **more: Any) -> SmallFederation:
        """The method at its start, in a folder of its own."""
        return SmallFederation(self.method, self.folder / name, model=self.model, **more)

    def same_as_whole(self, other: SmallFederation, what: str) -> None:
        """Raises Violation, saying what makes a difference, unless another run came to the same bits."""
        with explained(what):
            assert_same(self.whole.server, other.server)
            assert_same_states(self.whole.states(), other.states())


@contextmanager
def explained(what: str) -> Iterator[None]:
    """Puts before a Violation what it is a violation of."""
    try:
        yield
    except Violation as error:
        raise Violation(f"{what}: {error}") from None
