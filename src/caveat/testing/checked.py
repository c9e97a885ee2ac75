"""A method that is checked, and where."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import nn

from ..core import Method
from ..wrappers.base import Wrapper
from .federation import SmallFederation
from .same import Violation, assert_same, assert_same_states

Manifest = Mapping[str, Mapping[str, list[str]]]
"""By class, then by group, the names of the tensors that leave a silo: of modules' parts, or "*" for all."""


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
