"""What code of one's own makes, to be known again: by another process, another day, at another silo."""

from __future__ import annotations

import hashlib
import inspect
import io
import textwrap
import tokenize
from collections.abc import Sequence
from typing import NamedTuple

from torch import nn

from ..core import Method
from ..nn.frozen import FrozenEncoder
from ..nn.probe import Said, alike


class MadeModel(NamedTuple):
    """A model as it begins."""

    frozen: FrozenEncoder | None
    behind: nn.Module
    """The model, or what is left of it behind its frozen encoder."""
    digest: str
    """Of all of it, where code of one's own made it; else empty."""
    untaught: str
    """The digest without the bits of what learns."""
    says: tuple[Said, ...]
    """What it says of fixed inputs (`caveat.nn.probe`), where code of one's own made it."""


class CodeMade:
    """What models are that code of one's own makes: of `[model]`, then of silos' own ones in their order."""

    def __init__(self, models: Sequence[MadeModel]) -> None:
        self.digest = _digest([made.digest for made in models])
        self.untaught = _digest([made.untaught for made in models])
        self.says: tuple[Said, ...] = tuple(said for made in models for said in made.says)

    def same(self, digest: str, says: Sequence[Said]) -> bool:
        """Whether all began with these tensors and compute this."""
        return digest == self.digest and alike(says, self.says)

    def same_elsewhere(self, untaught: str, says: Sequence[Said]) -> bool:
        """Likewise by machines that draw weights with other last bits: what learns may have those."""
        return untaught == self.untaught and alike(says, self.says)


def _digest(digests: Sequence[str]) -> str:
    """SHA-256 of digests in their order."""
    return hashlib.sha256("".join(f"{digest}\n" for digest in digests).encode()).hexdigest()


_TEXTS = dict[type[Method], str | None]()
"""What `text_of` has found in this process: what a file says later is not what was imported."""


def text_of(method: Method) -> str | None:
    """SHA-256 of the text of a method's classes that are not caveat's, but for comments and empty lines.

    None where all are caveat's, or where a text cannot be found, as of classes that an interactive session has typed.
    """
    kind = type(method)
    if kind not in _TEXTS:
        _TEXTS[kind] = _text_of(kind)
    return _TEXTS[kind]


def _text_of(kind: type[Method]) -> str | None:
    known = ("caveat", "builtins", "typing", "abc")
    own = [each for each in kind.__mro__ if each.__module__.partition(".")[0] not in known]
    try:
        texts = [_without_comments(textwrap.dedent(inspect.getsource(each))) for each in own]
    except (OSError, TypeError, SyntaxError, tokenize.TokenError):
        return None
    return hashlib.sha256("\n".join(texts).encode()).hexdigest() if texts else None


def _without_comments(text: str) -> str:
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return " ".join(token.string for token in tokens if token.type not in (tokenize.COMMENT, tokenize.NL))
