"""One program for batches of any size, from what a function does to batches of two sizes.

Numbers that differ between the two are sizes, k N + c of a batch of N. Whatever else differs makes a program of one
batch alone, and is refused.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from .operators import PLAIN
from .program import Program, Size, Value, used
from .recorder import Instead, NotRecordable, OperatorRecorder, Outputs

SIZES = (5, 7)
"""Inputs of the two batches: fewer than any part into which a batch is cut on the way."""
COUNTED = "what is computed depends on how many inputs there are"


def program_of(function: Callable[[Tensor], Outputs], sample: Callable[[int], Tensor]) -> Program:
    """The program of a function of batches, which `sample` makes. Raises NotRecordable if it has none."""
    one, other = (_recorded(function, sample(size)) for size in SIZES)
    return _Merger(other).merged(one)


def _recorded(function: Callable[[Tensor], Outputs], x: Tensor) -> Program:
    recorder = OperatorRecorder(x)
    with torch.no_grad(), _in_plain_operators(), Instead(recorder, len(x)), recorder:
        found = function(x)
    outputs = {name: recorder.value(tensor) for name, tensor in found.items()}
    values = used(recorder.values, outputs)
    strange = {str(value.operator) for value in values if value.operator and name_of(value.operator) not in PLAIN}
    if strange:
        raise NotRecordable(f"the model uses an operator that has no other form ({', '.join(sorted(strange))})")
    return Program(recorder.inputs, tuple(values), outputs)


@contextmanager
def _in_plain_operators() -> Iterator[None]:
    """No operators that do a whole layer at once, which have no other form."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch has remarks on flags of other hardware
            with torch.backends.mkldnn.flags(enabled=False):
                yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def name_of(operator: Any) -> str:
    """The name of an operator, whatever its overload."""
    return str(operator.overloadpacket.__name__)


class _Merger:
    """Goes through two recordings side by side."""

    def __init__(self, other: Program) -> None:
        self.other = other
        self.made: dict[int, tuple[Value, Value]] = {}
        self.constants: dict[Any, Value] = {}
        self.arguments: dict[int, tuple[Any, Any]] = {}

    def merged(self, one: Program) -> Program:
        values: list[Value] = []
        if len(one.values) != len(self.other.values) or one.outputs.keys() != self.other.outputs.keys():
            raise NotRecordable(COUNTED)
        for mine, yours in zip(one.values, self.other.values, strict=True):
            made = self.merge(mine, yours)
            self.made[id(mine)] = yours, made
            if made not in values[-1:] and (made.constant is None or not any(made is each for each in values)):
                values.append(made)
        inputs = self.made[id(one.inputs)][1]
        outputs = {name: self.argument(value, self.other.outputs[name]) for name, value in one.outputs.items()}
        return Program(inputs, tuple(values), outputs)

    def merge(self, mine: Value, yours: Value) -> Value:
        same = mine.operator is yours.operator and mine.dtype == yours.dtype and mine.item == yours.item
        if not same or len(mine.shape) != len(yours.shape) or (mine.constant is None) != (yours.constant is None):
            raise NotRecordable(COUNTED)
        shape = tuple(self.argument(a, b) for a, b in zip(mine.shape, yours.shape, strict=True))
        if mine.constant is not None and yours.constant is not None:
            return self.constant(mine.constant, yours.constant, shape)
        key = id(mine.args)
        if key not in self.arguments:
            self.arguments[key] = (
                self.argument(mine.args, yours.args),
                self.argument(dict(mine.kwargs), dict(yours.kwargs)),
            )
        args, kwargs = self.arguments[key]
        return Value(shape, mine.dtype, mine.operator, args, kwargs, mine.item)

    def argument(self, mine: Any, yours: Any) -> Any:
        if isinstance(mine, Value):
            partner, made = self.made[id(mine)]
            if partner is not yours:
                raise NotRecordable(COUNTED)
            return made
        if type(mine) is not type(yours):
            raise NotRecordable(COUNTED)
        if isinstance(mine, (list, tuple)):
            if len(mine) != len(yours):
                raise NotRecordable(COUNTED)
            return type(mine)(self.argument(a, b) for a, b in zip(mine, yours, strict=True))
        if isinstance(mine, dict):
            return {name: self.argument(value, yours[name]) for name, value in mine.items()}
        if mine == yours or mine != mine:
            return mine
        if not isinstance(mine, int) or isinstance(mine, bool):
            raise NotRecordable(COUNTED)
        factor, rest = divmod(yours - mine, SIZES[1] - SIZES[0])
        if rest:
            raise NotRecordable(COUNTED)
        return Size(factor, mine - factor * SIZES[0])

    def constant(self, mine: Tensor, yours: Tensor, shape: tuple[int | Size, ...]) -> Value:
        """A constant; of one whose shape depends on the batch the part that is repeated."""
        for dim, size in enumerate(shape):
            if isinstance(size, Size):
                mine, yours = _repeated(mine, dim), _repeated(yours, dim)
        if not torch.equal(mine, yours) and not torch.equal(mine.nan_to_num(), yours.nan_to_num()):
            raise NotRecordable(COUNTED)
        bits = mine.contiguous().view(-1).view(torch.uint8).numpy().tobytes() if mine.numel() else b""
        key = mine.dtype, shape, bits
        if key not in self.constants:
            self.constants[key] = Value(shape, mine.dtype, constant=mine.contiguous())
        return self.constants[key]


def _repeated(tensor: Tensor, dim: int) -> Tensor:
    first = tensor.narrow(dim, 0, 1)
    if not torch.equal(first.expand_as(tensor), tensor):
        raise NotRecordable(COUNTED)
    return first.contiguous()
