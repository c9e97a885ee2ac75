"""The initial model of a run, and fingerprints of what a run depends on but cannot store: code and data."""

import hashlib
import inspect
import io
import json
import textwrap
import tokenize
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from .. import data
from ..core import ConfigurationError, DataError, Method, RunError, SiloId, Tensors
from ..core.errors import OtherBeginning
from ..data.silos import Population
from ..files.reading import manifest_of, sum_of
from ..files.schema.run import CodeFingerprint, DataFingerprint
from ..files.tensors import read_payload
from ..methods.plugins import named
from ..nn.frozen import FrozenEncoder
from ..nn.probe import Said, alike
from ..training.modules import tensors_of

MODEL = "model/model.safetensors"


def read_model(folder: Path) -> Tensors:
    """The federation's model of a finished run. Raises ConfigurationError if the folder holds none."""
    if not (folder / "summary.json").exists() or not (folder / MODEL).exists():
        raise ConfigurationError(f"{{key}} = {str(folder)!r} is not a finished run", "init_from")
    try:
        manifest_of(folder).check(MODEL)
        found = read_payload(folder / MODEL)
    except (DataError, RunError) as error:
        raise ConfigurationError(f"{{key}} = {str(folder)!r}: {error}", "init_from") from None
    return found.get("model", {})


def fits(module: nn.Module, tensors: Tensors) -> bool:
    """Whether a module has tensors of all these names and shapes."""
    there = tensors_of(module)
    return bool(tensors) and all(n in there and there[n].shape == t.shape for n, t in tensors.items())


def initialised(module: nn.Module, tensors: Tensors) -> nn.Module:
    """A module with these tensors in it; others, which the other run kept at its silos, stay as they are."""
    there = tensors_of(module)
    with torch.no_grad():
        for name, tensor in tensors.items():
            there[name].copy_(tensor)
    return module


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
        self.digest = _of_digests([made.digest for made in models])
        self.untaught = _of_digests([made.untaught for made in models])
        self.says: tuple[Said, ...] = tuple(said for made in models for said in made.says)

    def same(self, digest: str, says: Sequence[Said]) -> bool:
        """Whether all began with these tensors and compute this."""
        return digest == self.digest and alike(says, self.says)

    def same_elsewhere(self, untaught: str, says: Sequence[Said]) -> bool:
        """Likewise by machines that draw weights with other last bits: what learns may have those."""
        return untaught == self.untaught and alike(says, self.says)


def _of_digests(digests: Sequence[str]) -> str:
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


def code_fingerprint(made: CodeMade | None, method: Method, models: Sequence[str]) -> CodeFingerprint | None:
    """The fingerprint of a run's code; `models` are the names of the code of its models. None for caveat's own code."""
    text = text_of(method)
    if made is None and text is None:
        return None
    of_model = {"model": made.digest, "says": made.says, "models": list(models)} if made is not None else {}
    of_method = {"method": text, "plugins": named()} if text is not None else {}
    return CodeFingerprint.model_validate({**of_model, **of_method})


def check_code(folder: Path, known: CodeFingerprint | None, made: CodeMade | None, method: Method) -> None:
    """Raises RunError if the code of the model or of the method differs from when the run in a folder began."""
    if known is None:
        return
    if known.model is not None and (made is None or not made.same(known.model, known.says)):
        raise OtherBeginning(
            f"{folder}: the code of the model makes another one than when the run began, in its parts, in the weights "
            "that it begins with or in what it computes: put the code back, or begin another run"
        )
    text = text_of(method)
    if None not in (known.method, text) and text != known.method:
        raise OtherBeginning(
            f"{folder}: the code of the method {method.name} is another one than when the run began, by the text of "
            "its classes without comments: put the code back, or begin another run"
        )


def data_fingerprint(silos: data.Silos, measured: Collection[SiloId]) -> DataFingerprint:
    """The fingerprint of a run's data, beside the splits of the silos that are measured.

    The silos of a population are made when a round asks for them, so it does not cover those that are not measured.
    """
    columns = [
        (name, [(column.name, column.categories) for column in encoder.table])
        for name, encoder in sorted(silos.encoders.items())
    ]
    others = None
    if not isinstance(silos.silos, Population) and len(measured) < len(silos):
        others = _digest(data.splits_record(silo for silo in silos if silo.name not in measured))
    return DataFingerprint(classes=list(silos.classes), columns=_digest(columns), others=others)


def check_data(folder: Path, known: DataFingerprint | None, silos: data.Silos, measured: Collection[SiloId]) -> None:
    """Raises RunError if data differ in anything but the splits of the measured silos from what a run began with."""
    now = data_fingerprint(silos, measured)
    for name in ("classes", "columns", "others") if known is not None else ():
        if getattr(known, name) != getattr(now, name):
            what = {"columns": "the names or categories of columns", "others": "the data of other silos"}.get(name)
            raise OtherBeginning(f"{folder}: {what or 'the names of classes'} are not those that the run began with")


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


def initial_model_fingerprint(init: str | None) -> str | None:
    """SHA-256 of the model with which a run begins; None for one that begins with random weights."""
    return None if init is None else sum_of(Path(init) / MODEL).sha256
