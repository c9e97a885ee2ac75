"""Record a function as a program of torch operators, for batches of any size.

Tensors that do not depend on the inputs become constants: weights, masks of MC dropout, temperatures, thresholds. All
other operators are recorded. Branches that depend on inputs, and random numbers per input, are refused. The function is
recorded for batches of two sizes: numbers that differ between the two are sizes, k N + c for a batch of N. Any other
difference is refused, because the program would only be valid for one batch size.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_iter, tree_map

from ..core import ConfigurationError
from .decompositions import FUNCTIONS, OPERATORS, PLAIN
from .recorded_program import Program, Size, Value, used

Outputs = dict[str, Tensor]
READING = {
    Tensor.tolist,
    Tensor.numpy,
    Tensor.__array__,
    Tensor.item,
    Tensor.__bool__,
    Tensor.__float__,
    Tensor.__int__,
}
"""Operators that turn tensors into Python numbers."""
SCALAR = torch.ops.aten._local_scalar_dense.default
BRANCH = "a branch in Python depends on the inputs"
SIZES = (5, 7)
"""Sizes of the two batches, smaller than any chunk into which code splits a batch."""
COUNTED = "the computation depends on the number of inputs"


class NotRecordable(ConfigurationError):
    """Raised for a function that cannot be recorded as operators."""


class OperatorRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the operators on a batch of inputs."""

    def __init__(self, x: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.values: list[Value] = []
        self._known: dict[int, Value] = {}
        self._constants: dict[tuple[int, int], Value] = {}
        self._stale: set[int] = set()
        self._changed: dict[int, list[Tensor]] = {}
        self._alive: list[Tensor] = []  # keeps tensors alive, so that ids are not reused
        self.inputs = self._know(x, Value(tuple(x.shape), x.dtype))

    def knows(self, value: object) -> bool:
        """Return whether a tensor depends on the inputs."""
        return isinstance(value, Tensor) and id(value) in self._known

    def value(self, tensor: Tensor) -> Value:
        """Return a tensor's value: a constant, if it does not depend on the inputs."""
        changed = () if id(tensor) in self._known else self._changed.get(_place(tensor), ())
        if id(tensor) in self._stale or any(_overlap(tensor, each) for each in changed):
            raise NotRecordable("a tensor is read after a part of it was written")
        if id(tensor) in self._known:
            return self._known[id(tensor)]
        key = id(tensor), tensor._version  # a workspace contains several models in turn
        if key not in self._constants:
            with _disable_current_modes():
                copy = tensor.detach().clone(memory_format=torch.contiguous_format)
            self._constants[key] = Value(tuple(copy.shape), copy.dtype, constant=copy)
            self.values.append(self._constants[key])
            self._alive.append(tensor)
        return self._constants[key]

    def _know(self, tensor: Tensor, value: Value) -> Value:
        self._known[id(tensor)] = value
        self._stale.discard(id(tensor))
        self._alive.append(tensor)
        self.values.append(value)
        return value

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        # Operators `new_...` use only the type of a tensor.
        if not any(map(self.knows, tree_iter((args, kwargs)))) or str(func).startswith("aten.new_"):
            return func(*args, **kwargs)
        if func is SCALAR:
            raise NotRecordable(BRANCH)
        name = func.overloadpacket.__name__
        draws = torch.Tag.nondeterministic_seeded in func.tags
        if func._schema.is_mutable and not draws:
            return self._change(func, args, kwargs)
        if func in OPERATORS:
            with self:
                return OPERATORS[func](*args, **kwargs)
        if name not in PLAIN and (decomposed := decomposition_table.get(func)) is not None:
            with self:
                return decomposed(*args, **kwargs)
        if name not in PLAIN and func.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd):
            with self:
                return func.decompose(*args, **kwargs)
        if draws:
            raise NotRecordable(f"random numbers are drawn per input ({name})")
        return self._write_down(func, args, kwargs)

    def _write_down(self, func: Any, args: Any, kwargs: Any) -> Any:
        given = tree_map(self._argument, tuple(args)), tree_map(self._argument, dict(kwargs))
        with _disable_current_modes():
            found = func(*args, **kwargs)
        several = not isinstance(found, Tensor)
        for i, each in enumerate(found if several else [found]):
            if isinstance(each, Tensor):
                self._know(each, Value(tuple(each.shape), each.dtype, func, *given, item=i if several else None))
        return found

    def _argument(self, value: Any) -> Any:
        return self.value(value) if isinstance(value, Tensor) else value

    def _change(self, func: Any, args: Any, kwargs: Any) -> Any:
        kwargs = dict(kwargs)
        target = kwargs.pop("out") if "out" in kwargs else args[0]
        with self:
            made = _functional(func)(*args, **kwargs)
            shaped = torch.Tag.inplace_view in func.tags  # such as `transpose_`, which changes no value
            if not shaped and (made.dtype != target.dtype or made.shape != target.shape):
                made = made.to(target.dtype).expand(target.shape)
        value = self.value(made)
        with _disable_current_modes():
            func(*args, **kwargs) if shaped else target.copy_(made)
        if not shaped:
            place = _place(target)
            self._changed.setdefault(place, []).append(target)
            others = (each for each in self._alive if each is not target and _place(each) == place)
            self._stale |= {id(each) for each in others if _overlap(each, target)}
        self._known[id(target)] = value
        self._stale.discard(id(target))
        self._alive.append(target)
        return target


def _place(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _overlap(a: Tensor, b: Tensor) -> bool:
    with _disable_current_modes():
        every = torch.arange(a.untyped_storage().nbytes() // a.element_size())
        parts = [every.as_strided(each.size(), each.stride(), each.storage_offset()) for each in (a, b)]
        return bool(torch.isin(*parts).any())


@cache
def _functional(func: Any) -> Any:
    schema = func._schema
    packet = getattr(torch.ops.aten, schema.name.removeprefix("aten::").removesuffix("_"))
    wanted = [(each.name, str(each.type)) for each in schema.arguments if not each.is_out]
    for overload in packet.overloads():
        found = getattr(packet, overload)
        named = [(each.name, str(each.type)) for each in found._schema.arguments]
        if named == wanted and not found._schema.is_mutable:
            return found
    raise NotRecordable(f"the model uses an operator that cannot be translated ({func})")


class Instead(TorchFunctionMode):
    """Replaces functions that should not be recorded by equivalent ones."""

    def __init__(self, recorder: OperatorRecorder, batch: int) -> None:
        super().__init__()
        self.recorder, self.batch = recorder, batch

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in READING and self.recorder.knows(args[0]):
            raise NotRecordable(BRANCH)
        if func in FUNCTIONS:
            return FUNCTIONS[func](self.batch, *args, **kwargs)
        return func(*args, **kwargs)


def program_of(function: Callable[[Tensor], Outputs], sample: Callable[[int], Tensor]) -> Program:
    """Record a function of batches, which `sample` draws. Raises NotRecordable if that is not possible."""
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
        raise NotRecordable(f"the model uses an operator that cannot be translated ({', '.join(sorted(strange))})")
    return Program(recorder.inputs, tuple(values), outputs)


@contextmanager
def _in_plain_operators() -> Iterator[None]:
    """Disable fused operators of whole layers, which cannot be translated."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns about flags of other hardware
            with torch.backends.mkldnn.flags(enabled=False):
                yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def name_of(operator: Any) -> str:
    """Return the name of an operator without its overload."""
    return str(operator.overloadpacket.__name__)


class _Merger:
    """Merges the recordings of two batches."""

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
        """Return a constant or, if its shape depends on the batch, its repeated part."""
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
