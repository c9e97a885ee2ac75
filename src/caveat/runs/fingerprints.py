"""Fingerprints of code and data, on which a run depends but which it cannot store."""

import hashlib
import inspect
import io
import json
import textwrap
import tokenize
from collections.abc import Collection, Sequence
from pathlib import Path

from .. import data
from ..core import Method, SiloId
from ..core.errors import RunChanged
from ..data.silo_collection import Population
from ..files import sum_of
from ..files.schema import CodeFingerprint, DataFingerprint
from ..methods.plugins import named
from ..nn.model_checks import Said, alike
from .initial_model import MODEL, MadeModel


class CodeMade:
    """Fingerprints of the models made by custom code: of `[model]`, then of personalized models in order."""

    def __init__(self, models: Sequence[MadeModel]) -> None:
        self.digest = _of_digests([made.digest for made in models])
        self.untaught = _of_digests([made.untaught for made in models])
        self.says: tuple[Said, ...] = tuple(said for made in models for said in made.says)

    def same(self, digest: str, says: Sequence[Said]) -> bool:
        """Return whether all models have the initial tensors of `digest` and the outputs `says`."""
        return digest == self.digest and alike(says, self.says)

    def same_elsewhere(self, untaught: str, says: Sequence[Said]) -> bool:
        """Return whether models are the same across machines whose random weights differ in the last bits."""
        return untaught == self.untaught and alike(says, self.says)


def _of_digests(digests: Sequence[str]) -> str:
    """Return SHA-256 of digests in order."""
    return hashlib.sha256("".join(f"{digest}\n" for digest in digests).encode()).hexdigest()


_TEXTS = dict[type[Method], str | None]()
"""Results of `text_of` in this process, because files may change after they were imported."""


def text_of(method: Method) -> str | None:
    """Return SHA-256 of the source of a method's classes outside caveat, without comments and empty lines. None if all
    are built in, or if the source is unavailable, as in an interactive session."""
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


def code_fingerprint(made: CodeMade | None, method: Method, models: Sequence[str]) -> CodeFingerprint | None:
    """Return the fingerprint of a run's custom code, None without such code; `models` names the code of its models."""
    text = text_of(method)
    if made is None and text is None:
        return None
    of_model = {"model": made.digest, "says": made.says, "models": list(models)} if made is not None else {}
    of_method = {"method": text, "plugins": named()} if text is not None else {}
    return CodeFingerprint.model_validate({**of_model, **of_method})


def check_code(folder: Path, known: CodeFingerprint | None, made: CodeMade | None, method: Method) -> None:
    """Raise RunError if the code of the model or of the method has changed since the run in a folder started."""
    if known is None:
        return
    if known.model is not None and (made is None or not made.same(known.model, known.says)):
        raise RunChanged(
            f"{folder}: the code of the model has changed since the run started: its parts, initial weights or outputs "
            "differ; restore the code, or start a new run"
        )
    text = text_of(method)
    if None not in (known.method, text) and text != known.method:
        raise RunChanged(
            f"{folder}: the code of the method {method.name} has changed since the run started (comments aside); "
            "restore the code, or start a new run"
        )


def data_fingerprint(silos: data.Silos, measured: Collection[SiloId]) -> DataFingerprint:
    """Return the fingerprint of a run's data, in addition to the splits of evaluated silos. Silos of a population are
    created on demand, so silos that are not evaluated are not covered."""
    columns = [
        (name, [(column.name, column.categories) for column in encoder.table])
        for name, encoder in sorted(silos.encoders.items())
    ]
    others = None
    if not isinstance(silos.silos, Population) and len(measured) < len(silos):
        others = _digest(data.splits_record(silo for silo in silos if silo.name not in measured))
    return DataFingerprint(classes=list(silos.classes), columns=_digest(columns), others=others)


def check_data(folder: Path, known: DataFingerprint | None, silos: data.Silos, measured: Collection[SiloId]) -> None:
    """Raise RunError if the data, apart from the splits of evaluated silos, have changed since the run started."""
    now = data_fingerprint(silos, measured)
    for name in ("classes", "columns", "others") if known is not None else ():
        if getattr(known, name) != getattr(now, name):
            what = {"columns": "the names or categories of columns", "others": "the data of other silos"}.get(name)
            raise RunChanged(f"{folder}: {what or 'the names of classes'} have changed since the run started")


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


def initial_model_fingerprint(init: str | None) -> str | None:
    """Return SHA-256 of the model that initializes a run; None for random weights."""
    return None if init is None else sum_of(Path(init) / MODEL).sha256
