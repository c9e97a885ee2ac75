"""A work carried out for K silos at once by `torch.func.vmap`, as far as one of its calls of `Training.fit` or whole.

A work is a plain function that trains in its middle, where silos need not be at the same step. So it is replayed: up to
the call, whose module then holds where training starts; once per step up to the call again, for the loss that the work
has made there; and from its beginning to its end with what training has come to. All but training is cheap there, since
`load` puts tensors in place instead of copying them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import vmap

from ...core import Payload, Site, State, Tensors, Update, Work
from ..modules import Swaps
from .site import FitCall, NotStackable, StackedSite

Tree = dict[str, Any]
"""Tensors (K, ...) in nested dictionaries and lists: what vmap maps over."""


class Ended(NamedTuple):
    """What a work has come to at all silos: tensors (K, ...)."""

    payload: Payload
    examples: Tensor
    state: State


class Trained(NamedTuple):
    """What a call of fit has come to: tensors (K, ...)."""

    tensors: Tensors
    """Of the call's module: trained parameters and buffers."""
    steps: Tensor
    """(K,) int64."""
    remembered: Tensors
    """What the optimiser goes on with."""


class _Reached(Exception):
    """A work has come to the call of fit that is looked for."""

    def __init__(self, call: FitCall) -> None:
        super().__init__()
        self.call = call


class StackedWork:
    """A work at silos of one architecture whose states have the same form."""

    def __init__(self, work: Work, down: Payload, site: Site) -> None:
        """`site` is any of theirs: its round, its workspaces. What was sent is not changed, nor is what lies in them
        after a replay.
        """
        self.work, self.site = work, site
        self.down = {group: {name: t.clone() for name, t in tensors.items()} for group, tensors in down.items()}
        self.swaps = Swaps(*(module for module in (site.module, site.own) if module is not None))
        self.trained: list[Trained] = []
        """What the calls of fit so far have come to, in the work's order."""

    def replay(self, then: Callable[[FitCall, Tree], Tree], silos: Tree, index: Tensor | None = None) -> Tree | Ended:
        """What `then` makes, for each silo, of the first call of fit that is not trained yet; what the work has come to
        if there is none.

        `silos` hold "state" and "examples" (K,), and what `then` needs; `index` (K,) are the silos' places among those
        of `trained`, where they are not all of them.
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
            raise NotStackable("it changes tensors in place that it was given")
        return Ended(made["payload"], made["examples"], made["state"]) if ended else made

    def _carry_out(self, silo: Tree) -> tuple[Update, State]:
        calls = iter(silo["trained"])

        def trainer(call: FitCall) -> tuple[Tensor, Tensors]:
            done = next(calls, None)
            if done is None:
                raise _Reached(call)
            self.swaps.put(call.site.module, done["tensors"])
            return done["steps"], done["remembered"]

        return self.work(self.down, _copied(silo["state"]), StackedSite.of(self.site, silo["examples"], trainer))


def _copied(state: State) -> State:
    """The same tensors in dictionaries that a work may change."""
    return {group: dict(tensors) for group, tensors in state.items()}


def _chosen(trained: Trained, index: Tensor | None) -> Tree:
    tree = {"tensors": trained.tensors, "steps": trained.steps, "remembered": trained.remembered}
    return tree if index is None else chosen(tree, index)


def chosen(tree: Any, index: Tensor) -> Any:
    """Those silos of a tree of tensors (K, ...)."""
    if isinstance(tree, Mapping):
        return {name: chosen(each, index) for name, each in tree.items()}
    return tree.index_select(0, index)


def _tensors(tree: Any) -> Iterator[Tensor]:
    if isinstance(tree, Tensor):
        yield tree
    else:
        for each in tree.values() if isinstance(tree, Mapping) else tree:
            yield from _tensors(each)
