"""What a module of one's own has to be: the parts it may have, what is made of it, and what is said of others."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from own_models import Headless, Plain, Within
from safetensors.torch import save_file
from torch import Tensor, nn

from caveat.core import ConfigurationError
from caveat.nn.encoders import Model, Tokens, head, parts
from caveat.nn.frozen import taken_off
from caveat.nn.models import ModelSettings, build_model
from caveat.training.modules import reset, tensors_of


def built(code: Any, shape: tuple[int, ...] = (2,), classes: int = 3, **more: Any) -> nn.Module:
    dtype = more.pop("dtype", torch.float32)
    return build_model(ModelSettings(factory=code, **more), shape, classes, 7, dtype).eval()


class Joined(nn.Module):
    """Any encoder and any head."""

    def __init__(self, encoder: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.encoder, self.head = encoder, head

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.encoder(x))
        return out


class Mean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


class Flattened(Joined):
    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(torch.flatten(self.encoder(x), 1))
        return out


FORMS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], tuple[int, int]]] = {
    "features": (lambda: Joined(nn.Linear(2, 5), nn.Linear(5, 3)), (2,), (1, 5)),
    "hidden": (
        lambda: Joined(nn.Linear(2, 5), nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))),
        (2,),
        (1, 5),
    ),
    "maps": (
        lambda: Joined(nn.Conv2d(1, 4, 3), nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))),
        (1, 6, 6),
        (16, 4),
    ),
    "maps flattened": (
        lambda: Joined(nn.Conv2d(1, 4, 3), nn.Sequential(nn.Flatten(), nn.Linear(64, 3))),
        (1, 6, 6),
        (16, 4),
    ),
    "flattened between": (lambda: Flattened(nn.Conv2d(1, 4, 3), nn.Linear(64, 3)), (1, 6, 6), (16, 4)),
    "tokens": (lambda: Joined(nn.Linear(4, 6), nn.Sequential(Mean(), nn.Linear(6, 3))), (5, 4), (5, 6)),
    "logits of tokens": (
        lambda: Joined(nn.Linear(4, 6), nn.Sequential(nn.ReLU(), nn.Linear(6, 3), Mean())),
        (5, 4),
        (5, 6),
    ),
    "sequential": (lambda: nn.Sequential(nn.Linear(2, 5), nn.ReLU(), nn.Linear(5, 3)), (2,), (1, 5)),
    "nested": (
        lambda: nn.Sequential(nn.Sequential(nn.Linear(2, 5), nn.ReLU()), nn.Sequential(nn.Dropout(), nn.Linear(5, 3))),
        (2,),
        (1, 5),
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_module_with_parts_becomes_a_model_that_says_the_same(form: str) -> None:
    make, shape, tokens = FORMS[form]
    with torch.random.fork_rng():
        module = make().eval()
    model = built(module, shape)
    assert isinstance(model, Model)
    assert (model.tokens, model.features) == tokens
    x = torch.randn(7, *shape)
    assert torch.equal(model(x), module(x))
    encoded = model.encoder(x)
    assert encoded.shape == (7, *tokens)
    assert model.head.hidden(encoded).ndim == 2
    assert torch.equal(model.head.output(model.head.hidden(encoded)), module(x))


def test_any_other_module_stays_what_it_is() -> None:
    assert type(built(Headless)) is Headless
    assert type(built(nn.Linear(2, 3))) is nn.Linear


def test_a_hidden_layer_is_found_for_methods_that_look_at_it() -> None:
    model = built(Plain)
    assert isinstance(model, Model)
    assert model.head.hidden(model.encoder(torch.randn(4, 2))).shape == (4, 8)


@pytest.mark.parametrize(
    "make", [lambda: Plain(), lambda shape: Plain(shape), lambda shape, classes: Plain(shape, classes), Plain]
)
def test_a_function_is_given_what_it_asks_for_and_draws_by_the_seed(make: Callable[..., nn.Module]) -> None:
    torch.manual_seed(int(torch.seed() % 1000))
    one, other = built(make).state_dict(), built(make).state_dict()
    assert all(torch.equal(one[name], other[name]) for name in one)
    third = build_model(ModelSettings(factory=make), (2,), 3, 8).state_dict()
    assert any(not torch.equal(one[name], third[name]) for name in one)


def test_a_module_that_is_given_is_copied_and_not_changed() -> None:
    module = Plain()
    before = deepcopy(module.state_dict())
    model = built(module)
    with torch.no_grad():
        for tensor in tensors_of(model).values():
            tensor.zero_()
    assert module.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())


def test_lazy_modules_see_the_shape_and_draw_by_the_seed() -> None:
    one, other = (built(lambda: nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyLinear(3))) for _ in range(2))
    assert [tuple(p.shape) for p in one.parameters()] == [(4, 2), (4,), (3, 4), (3,)]
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_token_ids_reach_the_module_as_they_are() -> None:
    model = built(lambda: nn.Sequential(nn.Embedding(9, 6), Mean(), nn.Linear(6, 3)), (5,), dtype=torch.int64)
    assert model(torch.full((2, 5), 8)).shape == (2, 3)


# What parts begin with anew


def test_what_a_function_draws_is_drawn_anew_and_what_it_is_given_comes_back() -> None:
    table = torch.randn(6, 6)

    def make() -> nn.Module:
        module = nn.Sequential(nn.Linear(2, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3))
        nn.init.zeros_(module[4].bias)
        with torch.no_grad():
            module[2].weight.copy_(table), module[2].bias.zero_()  # pretrained
        return module

    model = built(make)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.fill_(9.0)
    reset(model)
    after = model.state_dict()
    (given,) = (name for name in before if torch.equal(before[name], table))
    assert torch.equal(after[given], table)
    others = [name for name in before if name.endswith("weight") and name != given]
    assert all(not torch.equal(after[name], before[name]) and (after[name].abs() < 1).all() for name in others)


def test_what_nothing_can_draw_begins_as_it_was_made() -> None:
    model = built(Headless)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.zero_()
    reset(model)
    for name in ("body.token", "body.mask", "body.order"):
        assert torch.equal(model.state_dict()[name], before[name])
    assert not torch.equal(model.state_dict()["body.one.weight"], before["body.one.weight"])
    assert model.state_dict()["body.one.weight"].abs().max() > 0


# What is said of others


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = nn.Linear(2, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.encoder(x)) * 2
        return out


class Pooled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = nn.Conv2d(1, 4, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.encoder(x).mean((2, 3)))
        return out


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.layer(x), x


def broken() -> nn.Module:
    raise RuntimeError("there are\nno weights")


def lost() -> nn.Module:
    module = nn.Linear(2, 3)
    nn.init.constant_(module.weight, float("nan"))
    return module


MISTAKES: dict[str, tuple[Any, str]] = {
    "shape": (lambda: nn.Linear(5, 3), "Linear cannot take inputs (N, 2) of float32: RuntimeError: mat1 and mat2"),
    "classes": (
        lambda: nn.Linear(2, 4),
        "Linear returns (2, 4) float32 for 2 inputs, expected (2, 3) float32: a logit",
    ),
    "pair": (Pair, "Pair returns a tuple, not a tensor"),
    "double": (lambda: nn.Linear(2, 3).double(), "has 'weight' in float64, expected float32: call .float() on it"),
    "nan": (lost, "Linear has NaN or infinity in 'weight'"),
    "frozen": (lambda: nn.Linear(2, 3).requires_grad_(False), "no parameter that requires a gradient, so nothing can"),
    "nothing": (lambda: nn.Identity(), "expected (2, 3) float32"),
    "no module": (lambda: 7, "returned 7, expected a torch.nn.Module"),
    "fails": (broken, "fails: RuntimeError: there are no weights"),
    "arguments": (
        lambda a, b, c: Plain(),
        "takes 3 arguments (a, b, c), expected no arguments, or an",
    ),
    "keyword": (lambda *, width: Plain(), "fails: TypeError"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line_that_says_what_is_expected(mistake: str) -> None:
    code, text = MISTAKES[mistake]
    with pytest.raises(ConfigurationError) as error:
        built(code)
    assert text in str(error.value)
    assert len(str(error.value).splitlines()) == 1
    assert error.value.key == "model.factory"


@pytest.mark.parametrize(("code", "shape"), [(Twice, (2,)), (Pooled, (1, 6, 6)), (Pooled, (1, 7, 7))])
def test_parts_between_which_something_happens_are_for_methods_that_need_none(
    code: type[nn.Module], shape: tuple[int, ...]
) -> None:
    model = built(code, shape)
    assert type(model) is code
    with pytest.raises(ConfigurationError, match=f"fedpn needs .*, but {code.__name__}, which has both, computes some"):
        parts(model, "fedpn")


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"name": "own"}, "model 'own' needs model.factory, the name of its code"),
        ({"name": "encoder"}, "model 'encoder' needs model.encoder"),
        ({"factory": Plain, "hidden": 8}, "hidden = 8 has no effect for model 'own'"),
        ({"factory": Plain, "frozen": True}, "frozen = True has no effect for model 'own'"),
        ({"encoder": Plain, "width": 8}, "width = 8 has no effect for model 'encoder'"),
        ({"name": "mlp", "weights": "x"}, "weights = 'x' has no effect for model 'mlp'"),
    ],
)
def test_keys_that_a_model_does_not_read_are_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        ModelSettings(**settings)
    assert text in str(error.value)


# Weights from files


def encoder() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 6), nn.BatchNorm1d(6), nn.ReLU())


@pytest.fixture
def weights(tmp_path: Path) -> dict[str, Tensor]:
    torch.manual_seed(3)
    return {
        name: tensor + 0.5 if tensor.is_floating_point() else tensor for name, tensor in encoder().state_dict().items()
    }


@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
def test_an_encoder_begins_with_a_file_s_weights_and_begins_with_them_anew(
    weights: dict[str, Tensor], suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / f"weights.{suffix}"
    save_file(weights, file) if suffix == "safetensors" else torch.save(weights, file)
    monkeypatch.setenv("CAVEAT_DATA", str(tmp_path))
    for given in (str(file), file.name):
        model = build_model(ModelSettings(encoder=encoder, weights=given), (2,), 3, 0)
        assert torch.equal(model.encoder[0][0].weight, weights["0.weight"])
        nn.init.zeros_(model.encoder[0][0].weight)
        reset(model)
        assert torch.equal(model.encoder[0][0].weight, weights["0.weight"])


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("executed"),)


def test_files_that_are_not_these_weights_are_refused_and_nothing_in_them_runs(
    weights: dict[str, Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shapes = weights | {"0.weight": torch.zeros(5, 2)}
    wrong: dict[str, tuple[Any, str]] = {
        "lacks.pt": (
            {k: v for k, v in weights.items() if k != "0.bias"},
            "lacks '0.bias': these are weights of another",
        ),
        "more.pt": (weights | {"fc.weight": torch.zeros(2)}, "has 'fc.weight', which the module does not have"),
        "shape.pt": (shapes, "'0.weight' has shape (5, 2), expected (6, 2)"),
        "nan.pt": (weights | {"0.bias": torch.full((6,), float("nan"))}, "has NaN or infinity in '0.bias'"),
        "nested.pt": ({"model": weights}, "does not contain a state_dict"),
        "evil.pt": ({"0.weight": Evil()}, "contains more than tensors, or is damaged"),
        "whole.pt": (encoder(), "contains more than tensors, or is damaged"),
    }
    for name, (value, text) in wrong.items():
        torch.save(value, name)
        with pytest.raises(ConfigurationError) as error:
            build_model(ModelSettings(encoder=encoder, weights=name), (2,), 3, 0)
        assert text in str(error.value), name
        assert len(str(error.value).splitlines()) == 1
        assert error.value.key == "model.weights"
    assert not Path("executed").exists()
    Path("torn.safetensors").write_bytes(b"\x05")
    Path("torn.pt").write_bytes(b"no file of torch's")
    for name in ("torn.safetensors", "torn.pt", "missing.pt", "."):
        with pytest.raises(ConfigurationError, match=r"cannot be read|no such file|contains more than tensors"):
            build_model(ModelSettings(encoder=encoder, weights=name), (2,), 3, 0)


def test_tensors_of_a_part_of_its_own_are_all_that_it_notes() -> None:
    assert {"token", "mask", "order", "share"} == set(built(Headless).body.given_tensors)
    assert not hasattr(built(Headless).body.one, "given_tensors")
    assert type(built(Headless).body) is Within


def test_a_frozen_encoder_of_other_code_is_another_one_even_where_a_sample_shows_no_difference() -> None:
    """Rows are kept by its digest: an edited `forward` has none yet."""

    def encoder(masked: bool) -> nn.Module:
        class Words(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.words = nn.Embedding(9, 4)
                nn.init.ones_(self.words.weight)

            if masked:

                def forward(self, x: Tensor) -> Tensor:
                    seen: Tensor = (self.words(x) * (x != 0)[..., None]).mean(1)
                    return seen
            else:

                def forward(self, x: Tensor) -> Tensor:
                    seen: Tensor = self.words(x).mean(1)
                    return seen

        return Words().requires_grad_(False)

    digests = []
    for masked in (False, True, True):
        model = Model(nn.Sequential(encoder(masked), Tokens()), head(1, 4, 0, 2, 0.1, False), 1, 4)
        frozen, _ = taken_off(model, (3,), torch.int64)
        assert frozen is not None
        digests.append(frozen.digest)
    assert digests[0] != digests[1]
    assert digests[1] == digests[2]
