"""A small federation for checks of methods, with three silos with different data, and a model with BatchNorm and
dropout.

The checks of a method take seconds. `CheckedMethod` runs the method, and `assert_same` compares two results.
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
from ..engines.norm_bounding import NormBound
from ..engines.rounds import FinishedRound, Participation, run
from ..engines.single_machine import SingleMachineEngine
from ..files import SiloStore, sum_of
from ..files.schema import KeptState
from ..nn.encoders import Model, Tokens, head
from ..wrappers.base import Wrapper
from ..wrappers.evaluation import Evaluated

LATEST = 10**6
"""A round that is later than all others."""
Manifest = Mapping[str, Mapping[str, list[str]]]
"""The names of the tensors that leave a silo, by class and group; "*" means all tensors."""


class Violation(AssertionError):
    """A violation of the contract, in one sentence."""


def check(condition: object, message: str) -> None:
    """Raise Violation unless the condition is true, also with `python -O`."""
    if not condition:
        raise Violation(message)


def flat(payload: Payload) -> dict[str, Tensor]:
    """Return the tensors of a payload by "GROUP/NAME"."""
    return {f"{group}/{name}": tensor for group, named in payload.items() for name, tensor in named.items()}


def assert_same(a: Payload, b: Payload) -> None:
    """Raise Violation unless the tensors of two payloads are bit-identical."""
    one, other = flat(a), flat(b)
    check(one.keys() == other.keys(), f"different tensors: {sorted(one.keys() ^ other.keys())}")
    for name in one:
        check(torch.equal(one[name], other[name]), f"{name} differs")


def assert_same_states(a: Mapping[SiloId, State], b: Mapping[SiloId, State]) -> None:
    """Raise Violation unless `a` and `b` have the same silos with bit-identical states."""
    check(a.keys() == b.keys(), f"different silos: {sorted(a.keys() ^ b.keys())}")
    for name in a:
        assert_same(a[name], b[name])


def small_model(seed: int = 0) -> Model:
    """Return a model of two features and three classes. The layers of its encoder are `encoder.0` to `encoder.4`, where
    `encoder.1` is a BatchNorm."""
    torch.manual_seed(seed)
    encoder = nn.Sequential(nn.Linear(2, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 6), Tokens())
    return Model(encoder, head(1, 6, 8, 3, dropout=0.3, dropout_logits=False), tokens=1, features=6, shape=(2,))


@cache
def small_architectures() -> tuple[nn.Module, nn.Module]:
    """Return two local models of silos: the small model, and a smaller model without BatchNorm."""
    encoder = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), Tokens())
    return small_model(), Model(encoder, head(1, 4, 4, 3, dropout=0.3, dropout_logits=False), tokens=1, features=4)


def small_silo(k: int, generator: torch.Generator) -> Silo:
    """Return `silo-k` with 40 + 20 k training examples, 20 examples in each other split, and two subgroups."""
    x = torch.randn(100 + 20 * k, 2, generator=generator) + k
    y = (x.sum(-1) > k).long() + (x[:, 0] > k + 1).long()
    parts = [Data(x[i:j], y[i:j]) for i, j in ((0, 20), (20, 40), (40, 60), (60, len(x)))]
    of = [(x[i:j, 1] > k).long() for i, j in ((0, 20), (20, 40), (40, 60), (60, len(x)))]
    subgroups = {"train": of[3], "validation": of[2], "calibration": of[1], "test": of[0]}
    return Silo(f"silo-{k}", f"shift({k})", parts[3], parts[2], parts[1], parts[0], subgroups=subgroups)


def small_silos(count: int = 3) -> dict[SiloId, Silo]:
    """Return silos by name, with an increasing shift of features. All calls return the same silos."""
    generator = torch.Generator().manual_seed(1)
    return {silo.name: silo for silo in (small_silo(k, generator) for k in range(count))}


def innermost(method: Method) -> Method:
    """Return the method inside all wrappers."""
    return method.method if isinstance(method, Wrapper) else method


def small_executor(
    method: Method,
    folder: Path,
    data: Mapping[SiloId, Silo] | None = None,
    seed: int = 0,
    model: Callable[[], nn.Module] | None = None,
    device: torch.device = CPU,
) -> Executor:
    """Return an executor of a method's client tasks at the small silos, which stores the states of silos in a folder.
    `model` builds a model for two features and three classes, by default the small model."""
    module, silos = channels_last(method.build((model or small_model)())), dict(data or small_silos())
    own = _own_models(method, module, silos, model) if innermost(method).personal else {}
    return Executor(Evaluated(method), module, silos, SiloStore(folder), seed, own, device=device)


def _own_models(
    method: Method, module: nn.Module, silos: Iterable[SiloId], model: Callable[[], nn.Module] | None
) -> dict[SiloId, nn.Module]:
    """Return the local models of silos, which have two architectures in turn if the method supports this."""
    one, other = small_architectures() if model is None else (model(), small_architectures()[1])
    taken = (one, one if method.mismatch(module, other) else other)
    return {name: taken[k % 2] for k, name in enumerate(silos)}


def kept_state(place: Executor, silo: SiloId, until: int = LATEST) -> State:
    """Return the newest state of a silo up to a round."""
    return place.state(silo, newest_state(place.states, silo, until))


def newest_state(states: SiloStore, silo: SiloId, until: int = LATEST) -> KeptState | None:
    """Return the record of a silo's newest state up to a round; None if there is no state."""
    known = [t for t in states.versions(silo) if t <= until]
    if not known:
        return None
    path = states.root / silo / f"{known[-1]:06d}.safetensors"
    return KeptState(silo=silo, t=known[-1], sha256=sum_of(path).sha256)


class SmallFederation:
    """Runs a method on the small silos, and stores the server's state and every message. The states of silos are files
    in `folder`, `workers` is the number of processes, and client tasks run on `device`."""

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
        """Run the schedule, or only the rounds from `start` to before `stop`, and return the server's state."""
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
        """Return the newest states of all silos up to a round."""
        return {name: kept_state(self.place, name, until) for name in self.place.silos}


def chain(method: Method) -> list[Method]:
    """Return the method and the methods that it wraps."""
    return [method, *chain(method.base)] if isinstance(method, Wrapper) else [method]


@dataclass(frozen=True)
class CheckedMethod:
    """A method to check, a new folder for the files of its runs, and its manifest."""

    method: Method
    folder: Path
    manifest: Manifest = field(default_factory=dict)
    model: Callable[[], nn.Module] | None = None
    """Function that builds a model instead of the small model."""

    @cached_property
    def whole(self) -> SmallFederation:
        """A federation that ran the method's whole schedule with one worker, without interruption."""
        federation = self.federation("whole")
        federation.run()
        return federation

    def federation(self, name: str, **more: Any) -> SmallFederation:
        """Return a new federation of the method, in its own folder."""
        return SmallFederation(self.method, self.folder / name, model=self.model, **more)

    def same_as_whole(self, other: SmallFederation, what: str) -> None:
        """Raise Violation, with the cause `what`, unless another run has a result that is bit-identical to `whole`."""
        with explained(what):
            assert_same(self.whole.server, other.server)
            assert_same_states(self.whole.states(), other.states())


@contextmanager
def explained(what: str) -> Iterator[None]:
    """Prefix the message of a Violation with `what`."""
    try:
        yield
    except Violation as error:
        raise Violation(f"{what}: {error}") from None
