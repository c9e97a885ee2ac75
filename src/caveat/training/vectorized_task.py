"""Run a client task for K silos at once with `torch.func.vmap`, up to one of its calls of `Training.fit` or to its end.

A task is a plain function that trains in its middle, where silos need not be at the same step. So it is replayed: once
up to the call, where its module has the initial parameters; once per step up to the call, for the loss that the task
defines there; and once from beginning to end with the trained parameters. Everything except training is cheap, because
`load` replaces tensors instead of copying them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.func import vmap

from ..core import Data, Payload, SiloContext, SiloTask, State, Tensors, Update
from .modules import Swaps

Tree = dict[str, Any]
"""Tensors (K, ...) in nested dictionaries and lists, which vmap maps over."""


class NotVectorizable(Exception):
    """A task needs something that vectorized silos cannot provide; the text names it."""


class Hidden:
    """A value that differs between silos and is not a tensor; it can be passed on, but not read."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._refuse()

    def _refuse(self, *args: object) -> Any:
        raise NotVectorizable(f"it reads context.{self.name}, which differs between silos")

    __repr__ = __str__ = __format__ = __eq__ = __hash__ = __len__ = __iter__ = __int__ = __index__ = _refuse


class NoData(Data):
    """A split of vectorized silos; it cannot be read, because silos have different numbers of examples."""

    name: str

    @classmethod
    def split(cls, name: str) -> NoData:
        none = torch.zeros(0)
        made = cls(none, none)
        made.name = name
        return made

    def __getattribute__(self, name: str) -> Any:
        if name in ("x", "y", "batch", "labelled", "part"):
            raise NotVectorizable(f"it reads context.{self.name}, which vectorized silos do not provide")
        return super().__getattribute__(name)

    def __iter__(self) -> Iterator[Any]:
        raise NotVectorizable(f"it reads context.{self.name}, which vectorized silos do not provide")

    def __len__(self) -> int:
        raise NotVectorizable(f"it reads len(context.{self.name}), which differs between vectorized silos")

    def __repr__(self) -> str:
        return f"NoData({self.name!r})"


@dataclass(frozen=True)
class FitCall:
    """The arguments of a call of `Training.fit`."""

    training: Any
    context: SiloContext
    loss: Callable[[Tensor, Tensor], Tensor]
    correct: Callable[[str, Tensor], Tensor] | None
    frozen: frozenset[str]
    remembered: Tensors | None
    """The optimizer's initial state, by names such as "exp_avg.PARAMETER"."""
    undecayed: frozenset[str]
    """Parameters without weight decay."""


@dataclass(frozen=True)
class VectorizedContext(SiloContext):
    """A context for K silos within `torch.func.vmap`: a task sees a single silo, whose tensors are batched."""

    count: Tensor = field(kw_only=True)
    """n_k, the number of training examples: 0-dimensional int64."""
    trainer: Callable[[FitCall], tuple[Tensor, Tensors]] = field(kw_only=True)
    """Replaces `Training.fit`: returns the number of steps, 0-dimensional, and the optimizer's state."""

    @classmethod
    def of(
        cls, context: SiloContext, count: Tensor, trainer: Callable[[FitCall], tuple[Tensor, Tensors]]
    ) -> VectorizedContext:
        """Return a context for many silos."""
        train, validation, calibration = map(NoData.split, ("train", "validation", "calibration"))
        silo, domain, secret = (cast(Any, Hidden(name)) for name in ("id", "domain", "secret"))
        return cls(
            silo, train, validation, calibration, context.module, round=context.round, horizon=context.horizon,
            own=context.own,
            domain=domain, secret=secret, count=count, trainer=trainer,
        )  # fmt: skip

    @property
    def examples(self) -> Any:  # a tensor that tasks can use like the number
        return self.count


# The replay


class Ended(NamedTuple):
    """The result of a task at all silos: tensors (K, ...)."""

    payload: Payload
    examples: Tensor
    state: State


class Trained(NamedTuple):
    """The result of a call of fit: tensors (K, ...)."""

    tensors: Tensors
    """Trained parameters and buffers of the call's module."""
    steps: Tensor
    """Numbers of steps (K,), int64."""
    remembered: Tensors
    """The optimizer's final state."""


class _Reached(Exception):
    """Raised when a task reaches the next call of fit."""

    def __init__(self, call: FitCall) -> None:
        super().__init__()
        self.call = call


class VectorizedTask:
    """A client task at silos of one architecture whose states have the same form."""

    def __init__(self, task: SiloTask, down: Payload, context: SiloContext) -> None:
        """`context` is any silo's, for its round and workspaces. Neither `down` nor the workspaces change."""
        self.task, self.context = task, context
        self.down = {group: {name: t.clone() for name, t in tensors.items()} for group, tensors in down.items()}
        self.swaps = Swaps(*(module for module in (context.module, context.own) if module is not None))
        self.trained: list[Trained] = []
        """The results of the calls of fit so far, in order."""

    def replay(self, then: Callable[[FitCall, Tree], Tree], silos: Tree, index: Tensor | None = None) -> Tree | Ended:
        """Return the result of `then`, for each silo, on the first call of fit that is not trained yet, or the task's
        result if there is no such call.

        `silos` has "state" and "examples" (K,), and what `then` needs; `index` (K,) are the silos' positions in
        `trained`, unless all are included.
        """
        ended = False

        def of_one(silo: Tree) -> Tree:
            nonlocal ended
            try:
                update, state = self._carry_out(silo)
            except _Reached as reached:
                return then(reached.call, silo)
            ended = True
            examples: Any = update.examples
            if not isinstance(examples, Tensor):
                examples = torch.tensor(examples)
            return {"payload": update.payload, "examples": examples, "state": state}

        silos = silos | {"trained": [_chosen(each, index) for each in self.trained]}
        kept = [*_tensors(self.down), *_tensors(silos["state"])]
        before = [tensor._version for tensor in kept]
        with self.swaps.loading():
            made: Tree = vmap(of_one, randomness="error")(silos)
        if before != [tensor._version for tensor in kept]:
            raise NotVectorizable("it changes tensors of its arguments in place")
        return Ended(made["payload"], made["examples"], made["state"]) if ended else made

    def _carry_out(self, silo: Tree) -> tuple[Update, State]:
        calls = iter(silo["trained"])

        def trainer(call: FitCall) -> tuple[Tensor, Tensors]:
            done = next(calls, None)
            if done is None:
                raise _Reached(call)
            self.swaps.put(call.context.module, done["tensors"])
            return done["steps"], done["remembered"]

        return self.task(
            self.down, _copied(silo["state"]), VectorizedContext.of(self.context, silo["examples"], trainer)
        )


def _copied(state: State) -> State:
    """Return the same tensors in new dictionaries, which a task may change."""
    return {group: dict(tensors) for group, tensors in state.items()}


def _chosen(trained: Trained, index: Tensor | None) -> Tree:
    tree = {"tensors": trained.tensors, "steps": trained.steps, "remembered": trained.remembered}
    return tree if index is None else chosen(tree, index)


def chosen(tree: Any, index: Tensor) -> Any:
    """Return some silos of a tree of tensors (K, ...)."""
    if isinstance(tree, Mapping):
        return {name: chosen(each, index) for name, each in tree.items()}
    return tree.index_select(0, index)


def _tensors(tree: Any) -> Iterator[Tensor]:
    if isinstance(tree, Tensor):
        yield tree
    else:
        for each in tree.values() if isinstance(tree, Mapping) else tree:
            yield from _tensors(each)
