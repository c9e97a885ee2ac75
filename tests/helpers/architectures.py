"""Architectures that users bring: those that are accepted, and those that are refused with what mends them."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

FEATURES, IMAGES, TOKENS, SERIES = (8,), (3, 12, 12), (6,), (6, 4)
CLASSES = 3


class Accepted(NamedTuple):
    make: Callable[[], nn.Module]
    shape: tuple[int, ...] = FEATURES
    samples: bool = False
    """Whether MC dropout samples it."""

    @property
    def dtype(self) -> torch.dtype:
        return torch.int64 if self.shape == TOKENS else torch.float32


class Refused(NamedTuple):
    make: Any
    sentence: str
    mended: Callable[[], nn.Module]
    """What the sentence advises."""
    shape: tuple[int, ...] = FEATURES


def module(forward: Callable[..., Any], **parts: Any) -> Callable[[], nn.Module]:
    """A function that makes modules with a forward, and parts: types with their arguments, buffers, other values."""

    def make() -> nn.Module:
        made = type("Mine", (nn.Module,), {"forward": forward})()
        for name, part in parts.items():
            if isinstance(part, Tensor):
                made.register_buffer(name, part.clone())
            elif isinstance(part, tuple):
                kind, *arguments = part
                setattr(made, name, kind(*arguments))
            else:
                setattr(made, name, part() if isinstance(part, type(module)) else part)
        return made

    return make


def sequential(*stages: tuple[Any, ...]) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(*(kind(*arguments) for kind, *arguments in stages))


def keywords(kind: Any, *arguments: Any, **more: Any) -> Callable[[], nn.Module]:
    return lambda: kind(*arguments, **more)


IN, OUT, DROP = (nn.Linear, 8, 16), (nn.Linear, 16, CLASSES), (nn.Dropout, 0.3)
MASK = torch.full((6, 6), -torch.inf).triu(1)
LAYER = keywords(nn.TransformerEncoderLayer, 8, 2, 16, dropout=0.2, batch_first=True)
BATCH_NORM = keywords(nn.BatchNorm1d, 16, track_running_stats=False)


def attend(self: Any, x: Tensor) -> Tensor:
    h = self.a(x)
    p = self.p if self.training else 0.0
    return self.b(F.scaled_dot_product_attention(h, h, h, dropout_p=p).mean(1))


def causal(self: Any, x: Tensor) -> Tensor:
    h = self.a(x)
    return self.b((h @ h.transpose(1, 2) + self.mask).softmax(-1) @ h).mean(1)


def counting(self: Any, x: Tensor) -> Tensor:
    if self.training:
        self.steps += 1
    return self.b(self.drop(self.a(x)))


def noisy(self: Any, x: Tensor) -> Tensor:
    h = self.a(x)
    return self.b(self.drop(h + torch.randn_like(h) if self.training else h))


def noisy_functional(self: Any, x: Tensor) -> Tensor:
    h = self.a(x) * (1 + torch.rand(16)) if self.training else self.a(x)
    return self.b(F.dropout(h, 0.3, self.training))


def other_head(self: Any, x: Tensor) -> Tensor:
    h = self.drop(self.a(x))
    return self.c(h) if self.training else self.b(h)


def path(self: Any, x: Tensor) -> Tensor:
    """Stochastic depth (Huang et al., 2016), as timm writes it."""
    h = self.a(x)
    if self.training:
        h = h * h.new_empty(len(x), 1).bernoulli_(0.8).div_(0.8)
    return self.b(h)


def own_norm(self: Any, x: Tensor) -> Tensor:
    return self.b(F.batch_norm(self.a(x), self.mean, self.var, training=self.training))


def annealed(self: Any, x: Tensor) -> Tensor:
    if self.training:
        self.seen = 0.9 * self.seen + 0.1 * x.mean(0).detach()
    return self.b(self.a(x - self.seen).relu())


def cached(self: Any, x: Tensor) -> Tensor:
    if self.angles is None:
        self.angles = torch.arange(8.0).cos()
    return self.b(self.a(x + self.angles))


def remembers(self: Any, x: Tensor) -> Tensor:
    h = self.a(x)
    before = 0 if self.held is None else self.held.mean()
    self.held = h.detach()
    return self.b(h + before)


def counts_calls(self: Any, x: Tensor) -> Tensor:
    self.calls += 1
    return self.b(self.a(x)) * self.calls


def auxiliary(self: Any, x: Tensor) -> Any:
    z = self.b(self.drop(self.a(x)))
    return (z, z) if self.training else z


def last_of(self: Any, x: Tensor) -> Tensor:
    return self.b(self.a(x)[0][:, -1])


def embedded(self: Any, x: Tensor) -> Tensor:
    return self.b(self.t(self.e(x)).mean(1))


def lstm(kind: Any, **more: Any) -> Callable[[], nn.Module]:
    return module(last_of, a=keywords(kind, 4, 16, batch_first=True, **more), b=OUT)


ACCEPTED: dict[str, Accepted] = {
    "linear": Accepted(sequential((nn.Linear, 8, CLASSES))),
    "mlp": Accepted(sequential(IN, (nn.ReLU,), OUT)),
    "mlp, dropout": Accepted(sequential(IN, (nn.ReLU,), DROP, OUT), samples=True),
    "dropout at the input": Accepted(sequential(DROP, IN, (nn.ReLU,), OUT), samples=True),
    "two dropouts": Accepted(sequential(IN, DROP, (nn.Linear, 16, 16), (nn.Tanh,), DROP, OUT), samples=True),
    "alpha dropout": Accepted(sequential(IN, (nn.SELU,), (nn.AlphaDropout, 0.2), OUT), samples=True),
    "batch norm": Accepted(sequential(IN, (nn.BatchNorm1d, 16), (nn.ReLU,), DROP, OUT), samples=True),
    "layer norm": Accepted(sequential(IN, (nn.LayerNorm, 16), (nn.GELU,), OUT)),
    "group norm": Accepted(sequential(IN, (nn.GroupNorm, 4, 16), (nn.SiLU,), OUT)),
    "random slopes": Accepted(sequential(IN, (nn.RReLU,), OUT)),
    "spectral norm": Accepted(
        lambda: nn.Sequential(
            nn.utils.parametrizations.spectral_norm(nn.Linear(8, 16)), nn.ReLU(), nn.Linear(16, CLASSES)
        )
    ),
    "weight norm": Accepted(
        lambda: nn.Sequential(
            nn.utils.parametrizations.weight_norm(nn.Linear(8, 16)), nn.ReLU(), nn.Linear(16, CLASSES)
        )
    ),
    "lazy": Accepted(sequential((nn.LazyLinear, 16), (nn.ReLU,), (nn.LazyLinear, CLASSES))),
    "lazy batch norm": Accepted(
        sequential((nn.LazyLinear, 16), (nn.LazyBatchNorm1d,), (nn.ReLU,), (nn.LazyLinear, CLASSES))
    ),
    "head of zeros": Accepted(
        module(
            lambda self, x: self.b(self.a(x)).relu() @ self.c,
            a=IN,
            b=(nn.Linear, 16, 16),
            c=lambda: nn.Parameter(torch.zeros(16, CLASSES)),
        )
    ),
    "dropout in a block": Accepted(
        module(lambda self, x: self.b(self.drop(self.a(x).relu())), a=IN, b=OUT, drop=DROP), samples=True
    ),
    "functional dropout": Accepted(
        module(lambda self, x: self.b(F.dropout(self.a(x), 0.3, self.training)), a=IN, b=OUT), samples=True
    ),
    "dropout in training alone": Accepted(
        module(lambda self, x: self.b(F.dropout(self.a(x), 0.3) if self.training else self.a(x)), a=IN, b=OUT),
        samples=True,
    ),
    "stochastic depth": Accepted(module(path, a=IN, b=OUT), samples=True),
    "a counter": Accepted(module(counting, a=IN, b=OUT, drop=DROP, steps=torch.tensor(0)), samples=True),
    "a counter of float16": Accepted(
        module(counting, a=IN, b=OUT, drop=DROP, steps=torch.tensor(0.0).half()), samples=True
    ),
    "a counter in an attribute": Accepted(module(counting, a=IN, b=OUT, drop=DROP, steps=0), samples=True),
    "noise": Accepted(module(noisy, a=IN, b=OUT, drop=DROP), samples=True),
    "noise and functional dropout": Accepted(module(noisy_functional, a=IN, b=OUT), samples=True),
    "another head": Accepted(module(other_head, a=IN, b=OUT, c=OUT, drop=DROP), samples=True),
    "normalisation by a function": Accepted(module(own_norm, a=IN, b=OUT, mean=torch.zeros(16), var=torch.ones(16))),
    "a mean in a buffer": Accepted(module(annealed, a=IN, b=OUT, seen=torch.zeros(8))),
    "a cache": Accepted(module(cached, a=IN, b=OUT, angles=None)),
    "float32 within": Accepted(
        module(lambda self, x: self.b(F.layer_norm(self.a(x).float(), (16,)).to(x.dtype)), a=IN, b=OUT)
    ),
    "its own tensors": Accepted(module(lambda self, x: self.b(self.a(x) + torch.linspace(0, 1, 16)), a=IN, b=OUT)),
    "masked with infinity": Accepted(module(causal, a=(nn.Linear, 4, 8), b=(nn.Linear, 8, CLASSES), mask=MASK), SERIES),
    "convolutions": Accepted(
        sequential((nn.Conv2d, 3, 8, 3), (nn.ReLU,), (nn.MaxPool2d, 2), (nn.Flatten,), (nn.Linear, 200, CLASSES)),
        IMAGES,
    ),
    "convolutions, batch norm": Accepted(
        sequential(
            (nn.Conv2d, 3, 8, 3),
            (nn.BatchNorm2d, 8),
            (nn.ReLU,),
            (nn.AdaptiveAvgPool2d, 1),
            (nn.Flatten,),
            DROP,
            (nn.Linear, 8, CLASSES),
        ),
        IMAGES,
        samples=True,
    ),
    "instance norm": Accepted(
        sequential(
            (nn.Conv2d, 3, 8, 3),
            (nn.InstanceNorm2d, 8),
            (nn.ReLU,),
            (nn.AdaptiveAvgPool2d, 1),
            (nn.Flatten,),
            (nn.Linear, 8, CLASSES),
        ),
        IMAGES,
    ),
    "dropout of maps": Accepted(
        sequential(
            (nn.Conv2d, 3, 8, 3),
            (nn.Dropout2d, 0.3),
            (nn.ReLU,),
            (nn.AdaptiveAvgPool2d, 2),
            (nn.Flatten,),
            (nn.Linear, 32, CLASSES),
        ),
        IMAGES,
        samples=True,
    ),
    "depthwise": Accepted(
        lambda: nn.Sequential(
            nn.Conv2d(3, 12, 3, groups=3), nn.Hardswish(), nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(12, CLASSES)
        ),
        IMAGES,
    ),
    "lstm": Accepted(lstm(nn.LSTM), SERIES),
    "lstm, dropout": Accepted(lstm(nn.LSTM, num_layers=2, dropout=0.3), SERIES, samples=True),
    "gru, both ways": Accepted(
        module(last_of, a=keywords(nn.GRU, 4, 8, 2, batch_first=True, dropout=0.2, bidirectional=True), b=OUT),
        SERIES,
        samples=True,
    ),
    "attention": Accepted(
        module(
            lambda self, x: self.b(self.m(x, x, x)[0].mean(1)),
            m=keywords(nn.MultiheadAttention, 4, 2, batch_first=True),
            b=(nn.Linear, 4, CLASSES),
        ),
        SERIES,
    ),
    "attention, dropout": Accepted(
        module(attend, a=(nn.Linear, 4, 8), b=(nn.Linear, 8, CLASSES), p=0.3), SERIES, samples=True
    ),
    "transformer": Accepted(
        module(embedded, e=(nn.Linear, 4, 8), t=LAYER, b=(nn.Linear, 8, CLASSES)), SERIES, samples=True
    ),
    "transformer of tokens": Accepted(
        module(embedded, e=(nn.Embedding, 20, 8), t=LAYER, b=(nn.Linear, 8, CLASSES)), TOKENS, samples=True
    ),
    "bag of tokens": Accepted(sequential((nn.EmbeddingBag, 20, 16), (nn.ReLU,), DROP, OUT), TOKENS, samples=True),
    "time first": Accepted(
        module(
            lambda self, x: self.b(self.drop(self.a(x.transpose(0, 1))).mean(0)), a=(nn.Linear, 4, 16), b=OUT, drop=DROP
        ),
        SERIES,
        samples=True,
    ),
    "one dimension": Accepted(
        module(lambda self, x: self.b(self.a(x.transpose(1, 2)).amax(2)), a=(nn.Conv1d, 4, 16, 3), b=OUT), SERIES
    ),
}
EXPECTED_TO_SAMPLE = [name for name, case in ACCEPTED.items() if case.samples]

MLP = sequential(IN, (nn.ReLU,), OUT)
ALONE = "other outputs for an input if the batch has other inputs: in evaluation, compute each input independently"
KEEPS = "store nothing between calls except buffers"
PROBABLE = "draws random numbers in evaluation, so predictions are not reproducible: draw them in training only"


def scripted() -> Any:
    with warnings.catch_warnings(action="ignore"):  # it is deprecated
        return torch.jit.script(MLP())


def traced_within() -> nn.Module:
    with warnings.catch_warnings(action="ignore"):
        return nn.Sequential(torch.jit.trace(nn.Linear(8, 16), torch.ones(2, 8)), nn.Linear(16, CLASSES))


def on_meta() -> nn.Module:
    with torch.device("meta"):
        return MLP()


def frozen_mask() -> nn.Module:
    made = MLP()
    made.mask = nn.Parameter(MASK.clone(), requires_grad=False)
    return made


def drawing(draw: Callable[[], float]) -> Callable[[], nn.Module]:
    return module(lambda self, x: self.b(self.a(x) * draw()), a=IN, b=OUT)


def own_generator() -> nn.Module:
    made = module(lambda self, x: self.b(self.a(x) + torch.randn(16, generator=self.g)), a=IN, b=OUT)()
    made.g = torch.Generator()
    return made


def best(self: Any, x: Tensor) -> Tensor:
    if self.training:
        self.top = torch.maximum(self.top, x.detach().amax())
    return self.b(self.a(x).relu())


def inference(self: Any, x: Tensor) -> Tensor:
    with torch.inference_mode():
        return self.b(self.a(x))


def of_attributes(self: Any, x: Tensor) -> Tensor:
    if self.training:
        self.seen = 0.9 * self.seen + 0.1 * x.mean(0).detach()
    return self.b(self.a(x - self.seen).relu())


def held_in_training(self: Any, x: Tensor) -> Tensor:
    h = self.a(x)
    if self.training:
        h, self.held = h + self.held, h.detach().mean(0)
    return self.b(h)


def with_aux(aux: bool) -> Callable[[], nn.Module]:
    return module(lambda self, x: (self.b(self.a(x)), x) if self.training and aux else self.b(self.a(x)), a=IN, b=OUT)


REFUSED: dict[str, Refused] = {
    "batch statistics": Refused(
        sequential(IN, (BATCH_NORM,), (nn.ReLU,), OUT),
        "set track_running_stats=True in BatchNorm1d, or use GroupNorm or LayerNorm",
        sequential(IN, (nn.BatchNorm1d, 16), (nn.ReLU,), OUT),
    ),
    "batch statistics of images": Refused(
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8, track_running_stats=False), nn.Flatten(), nn.Linear(800, CLASSES)
        ),
        "set track_running_stats=True in BatchNorm2d",
        sequential((nn.Conv2d, 3, 8, 3), (nn.GroupNorm, 2, 8), (nn.Flatten,), (nn.Linear, 800, CLASSES)),
        IMAGES,
    ),
    "mean of the batch": Refused(
        module(lambda self, x: self.b(self.a(x) - self.a(x).mean(0)), a=IN, b=OUT), ALONE, MLP
    ),
    "largest of the batch": Refused(
        module(lambda self, x: self.b(x / x.abs().amax()), b=(nn.Linear, 8, CLASSES)),
        ALONE,
        sequential((nn.LayerNorm, 8), (nn.Linear, 8, CLASSES)),
    ),
    "softmax over the batch": Refused(
        module(lambda self, x: self.b(self.a(x).softmax(0)), a=IN, b=OUT), ALONE, sequential(IN, (nn.Softmax, 1), OUT)
    ),
    "attention over the batch": Refused(
        module(lambda self, x: self.b(self.a(x)[0][:, -1]), a=(nn.LSTM, 4, 16), b=OUT), ALONE, lstm(nn.LSTM), SERIES
    ),
    "neighbours in the batch": Refused(
        module(lambda self, x: self.b(x + x.roll(1, 0)), b=(nn.Linear, 8, CLASSES)), ALONE, MLP
    ),
    "behind a head of zeros": Refused(
        module(
            lambda self, x: (self.a(x) - self.a(x).mean(0)) @ self.c,
            a=IN,
            c=lambda: nn.Parameter(torch.zeros(16, CLASSES)),
        ),
        ALONE,
        MLP,
    ),
    "tokens of the batch": Refused(
        module(lambda self, x: self.b(self.e(x).mean(1) - self.e(x).mean((0, 1))), e=(nn.Embedding, 9, 16), b=OUT),
        ALONE,
        sequential((nn.EmbeddingBag, 9, 16), OUT),
        TOKENS,
    ),
    "squeezed": Refused(
        module(lambda self, x: self.b(self.a(x).squeeze()), a=IN, b=OUT),
        "for an input if the batch has other inputs",
        MLP,
    ),
    "no batch of one": Refused(
        module(lambda self, x: self.b(self.a(x) / self.a(x).std(0)), a=IN, b=OUT), "the batch has other inputs", MLP
    ),
    "a batch of one fails": Refused(
        module(lambda self, x: self.b(self.a(x) + x[1].sum()), a=IN, b=OUT),
        "does not take a batch of one input: IndexError",
        MLP,
    ),
    "noise in evaluation": Refused(
        module(lambda self, x: self.b(self.a(x) + torch.randn(16)), a=IN, b=OUT),
        PROBABLE,
        module(noisy, a=IN, b=OUT, drop=DROP),
    ),
    "dropout in evaluation": Refused(
        module(lambda self, x: self.b(F.dropout(self.a(x), 0.3)), a=IN, b=OUT),
        "call torch.nn.functional.dropout with training=self.training",
        module(lambda self, x: self.b(F.dropout(self.a(x), 0.3, training=self.training)), a=IN, b=OUT),
    ),
    "numpy in evaluation": Refused(drawing(np.random.rand), PROBABLE, MLP),
    "random in evaluation": Refused(drawing(random.random), PROBABLE, MLP),
    "a generator of its own": Refused(own_generator, "and no generator", MLP),
    "a hidden state": Refused(module(remembers, a=IN, b=OUT, held=None), KEEPS, MLP),
    "calls that count": Refused(module(counts_calls, a=IN, b=OUT, calls=0), KEEPS, MLP),
    "a mean in an attribute": Refused(
        module(of_attributes, a=IN, b=OUT, seen=0.0), KEEPS, module(of_attributes, a=IN, b=OUT, seen=torch.zeros(8))
    ),
    "a state of training": Refused(
        module(held_in_training, a=IN, b=OUT, held=0.0),
        KEEPS,
        module(held_in_training, a=IN, b=OUT, held=torch.zeros(16)),
    ),
    "an infinite record": Refused(
        module(best, a=IN, b=OUT, top=torch.tensor(-torch.inf)),
        "'top' in training, which initially has NaN or infinity: start with a large number",
        module(best, a=IN, b=OUT, top=torch.tensor(-1e30)),
    ),
    "a tuple in training": Refused(
        module(auxiliary, a=IN, b=OUT, drop=DROP), "returns a tuple in training, expected a tensor", with_aux(False)
    ),
    "auxiliary logits": Refused(
        with_aux(True), "disable auxiliary outputs (in torchvision's models: aux_logits=False)", with_aux(False)
    ),
    "other shape in training": Refused(
        module(lambda self, x: self.b(self.a(x))[:, :2] if self.training else self.b(self.a(x)), a=IN, b=OUT),
        "returns (4, 2) in training, expected a tensor (4, 3)",
        MLP,
    ),
    "fails in training": Refused(
        module(lambda self, x: self.c(x) if self.training else self.b(self.a(x)), a=IN, b=OUT),
        "fails in training: AttributeError",
        MLP,
    ),
    "detached": Refused(
        module(lambda self, x: self.b(self.a(x)).detach(), a=IN, b=OUT),
        "without gradients in training, so nothing can be trained: remove detach()",
        MLP,
    ),
    "without gradients": Refused(
        module(torch.no_grad()(lambda self, x: self.b(self.a(x))), a=IN, b=OUT),
        "remove detach(), torch.no_grad()",
        MLP,
    ),
    "inference mode": Refused(module(inference, a=IN, b=OUT), "torch.inference_mode()", MLP),
    "complex logits": Refused(
        module(lambda self, x: self.b(self.a(x)) * 1j, a=IN, b=OUT),
        "returns (2, 3) complex64 for 2 inputs, expected (2, 3) float32",
        MLP,
    ),
    "a complex buffer": Refused(
        module(lambda self, x: self.b(self.a(x) * self.w.abs()), a=IN, b=OUT, w=torch.ones(16, dtype=torch.complex64)),
        "has 'w' in complex64, expected float32: store real and imaginary part separately",
        module(lambda self, x: self.b(self.a(x) * self.w.norm(dim=1)), a=IN, b=OUT, w=torch.ones(16, 2)),
    ),
    "complex weights": Refused(
        lambda: nn.Linear(8, CLASSES, dtype=torch.complex64), "has 'weight' in complex64, expected float32", MLP
    ),
    "half": Refused(
        lambda: MLP().half(),
        "'0.weight' in float16, expected float32: call .float() on it",
        lambda: MLP().half().float(),
    ),
    "on meta": Refused(
        on_meta,
        "'0.weight' on meta, expected the CPU: call .to_empty(device=\"cpu\") on it and load its weights",
        lambda: (made := on_meta().to_empty(device="cpu"), made.load_state_dict(MLP().state_dict()))[0],
    ),
    "a module on meta": Refused(on_meta(), "on meta, expected the CPU", MLP),
    "a frozen mask": Refused(
        frozen_mask,
        "has NaN or infinity in 'mask': make a constant a buffer",
        module(lambda self, x: self.b(self.a(x)), a=IN, b=OUT, mask=MASK),
    ),
    "scripted": Refused(scripted, "is compiled (torch.jit), expected the original module", MLP),
    "a traced part": Refused(traced_within, "is compiled (torch.jit), expected the original module", MLP),
    "compiled": Refused(lambda: torch.compile(MLP()), "is compiled (torch.compile), expected the original module", MLP),
    "a dictionary": Refused(
        module(lambda self, x: {"logits": self.b(self.a(x))}, a=IN, b=OUT), "returns a dict, not a tensor", MLP
    ),
    "a list": Refused(module(lambda self, x: [self.b(self.a(x))], a=IN, b=OUT), "returns a list, not a tensor", MLP),
    "too few logits": Refused(
        sequential((nn.Linear, 8, 2)), "returns (2, 2) float32 for 2 inputs, expected (2, 3) float32", MLP
    ),
    "logits of tokens": Refused(
        sequential((nn.Linear, 4, CLASSES)), "returns (2, 6, 3) float32 for 2 inputs", lstm(nn.LSTM), SERIES
    ),
}
