"""Frozen encoders: their outputs are computed once per input and replace the inputs.

The first stages of a `Model` that are not trained are removed. Their output, and the features that familiarity uses of
the input and of these stages (`caveat.nn.stage_features`), become one row of numbers: the new input. The rest of the
model takes such rows.
"""

import hashlib
import re
from dataclasses import dataclass
from types import CodeType, FunctionType

import torch
from torch import Tensor, nn

from .dropout import flat, has_dropout
from .encoders import Model
from .model_checks import sample
from .stage_features import Numbers, input_numbers, recording, stages


class Unpacked(Numbers):
    """Maps rows (N, W) of a frozen encoder to its tokens (N, T, D), and to the features stored with them by name."""

    def __init__(self, tokens: int, features: int, widths: dict[str, int]) -> None:
        super().__init__()
        self.tokens, self.features, self.widths = tokens, features, widths

    def forward(self, x: Tensor) -> Tensor:
        return x[:, : self.tokens * self.features].reshape(len(x), self.tokens, self.features)

    def numbers(self, x: Tensor) -> dict[str, Tensor]:
        """Return (N, d) features of the original inputs, by name."""
        parts = torch.split(x[:, self.tokens * self.features :], list(self.widths.values()), 1)
        return dict(zip(self.widths, parts, strict=True))


@dataclass(frozen=True)
class FrozenEncoder:
    """Computes rows from inputs."""

    module: nn.Module
    shape: tuple[int, ...]
    """Shape of one input."""
    unpacked: Unpacked
    digest: str
    """Hash of weights and architecture: encoders with the same hash compute the same rows."""

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        """Return inputs (N, ...) as rows (N, W) float32.

        Each input is computed separately in newly allocated memory, because the last bits of a layer's output may
        depend on the batch size and on memory alignment, and a cached row must equal a recomputed one.
        """
        return torch.cat([rows(self.module, x[i : i + 1].clone()) for i in range(len(x))])


class Whole(nn.Module):
    """A frozen encoder and the module after it, as one module that takes inputs (N, ...)."""

    def __init__(self, encoder: FrozenEncoder, behind: nn.Module) -> None:
        super().__init__()
        self.encoder, self.behind, self._rows = encoder.module, behind, encoder

    def forward(self, x: Tensor) -> object:
        return self.behind(self._rows(x))


def taken_off(model: nn.Module, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[FrozenEncoder | None, nn.Module]:
    """Return the frozen first stages of a model's encoder, or None, and the rest of the model."""
    if not isinstance(model, Model):
        return None, model
    parts = list(flat(model.encoder))
    learning = next((i for i, each in enumerate(parts) if any(p.requires_grad for p in each.parameters())), None)
    if learning is not None:  # dropout before trained stages drops units in training
        learning = next((i for i, each in enumerate(parts[:learning]) if _samples(each)), learning)
    frozen = nn.Sequential(*parts[:learning]).eval()
    if not any(True for _ in frozen.parameters()):
        return None, model
    x = sample(shape, dtype, 1)
    with torch.no_grad():
        tokens = frozen(x)
    if tokens.ndim != 3:  # feature maps inside the encoder: the stages up to its tokens are needed
        return None, model
    widths = {name: h.shape[1] for name, h in _numbers(frozen, x)[1].items()}
    unpacked = Unpacked(tokens.shape[1], tokens.shape[2], widths)
    about = digest_of(frozen).encode() + _code_of(frozen) + rows(frozen, x).numpy().tobytes()
    width = (unpacked.tokens * unpacked.features + sum(widths.values()),)  # of rows
    digest = hashlib.sha256(about).hexdigest()
    behind = Model(nn.Sequential(unpacked, *parts[len(frozen) :]), model.head, model.tokens, model.features, width)
    return FrozenEncoder(frozen, shape, unpacked, digest), behind


def _samples(stage: nn.Module) -> bool:
    """Return whether a stage without weights drops units in training; frozen weights run in evaluation mode."""
    return not any(True for _ in stage.parameters()) and has_dropout(stage)


@torch.no_grad()
def _numbers(module: nn.Module, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the tokens, and the features of the input and of all stages except the last, by name."""
    with recording(stages(module, sampled=False)) as found:
        tokens = module(x)
    within = {f"encoder{i}": passes[0] for i, passes in enumerate(found[:-1], 1) if passes}
    return tokens, input_numbers(x) | within


def rows(module: nn.Module, x: Tensor) -> Tensor:
    """Return the rows (N, W) of inputs (N, ...), computed in one batch."""
    tokens, numbers = _numbers(module, x)
    return torch.cat([tokens.flatten(1), *numbers.values()], 1)


def _code_of(module: nn.Module) -> bytes:
    """Return the SHA-256 digest of the compiled code of a module's classes, except torch's. The outputs for one sample
    do not show everything that the code computes."""
    kinds = {cls for part in module.modules() for cls in type(part).__mro__ if not cls.__module__.startswith("torch.")}
    codes = [
        value.__code__
        for kind in sorted(kinds, key=lambda kind: (kind.__module__, kind.__qualname__))
        for _, value in sorted(vars(kind).items())
        if isinstance(value, FunctionType)
    ]
    found = hashlib.sha256()
    while codes:
        code = codes.pop()
        # Sets have no order, so the hash would differ between processes.
        plain = [sorted(map(repr, each)) if isinstance(each, frozenset) else each for each in code.co_consts]
        plain = [each for each in plain if not isinstance(each, CodeType)]
        found.update(code.co_code + repr((code.co_names, plain)).encode())
        codes += [each for each in code.co_consts if isinstance(each, CodeType)]
    return found.digest()


def digest_of(module: nn.Module, bits: bool = True) -> str:
    """Return SHA-256 of the text of a module, and of the names, shapes and bits of all its tensors. Without `bits`, the
    values of trained tensors are left out, because they are sent, and their last bits may differ between machines."""
    text = re.sub(r" at 0x[0-9a-f]+", "", repr(module))  # memory address of a function
    found, learns = hashlib.sha256(text.encode()), {name for name, p in module.named_parameters() if p.requires_grad}
    for name, tensor in module.state_dict().items():
        found.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        if bits or name not in learns:
            found.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()
