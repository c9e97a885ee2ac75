"""Training in bfloat16: what computes in it, what does not, and that every method trains with it or says why not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from federations import METHODS, Federation, assert_same, assert_same_states, flat, model, silo
from sampled import different
from torch import Tensor, nn

import caveat
from caveat import config
from caveat.core import ConfigurationError, Data, Method, SiloContext
from caveat.data.settings import DataSettings
from caveat.engines.executor import channels_last
from caveat.engines.silos_on_device import one_thread
from caveat.methods import FedAvg, PerFedAvg
from caveat.nn.encoders import Model
from caveat.nn.models import ModelSettings, build_model
from caveat.training.fit import Training
from caveat.training.modules import in_bfloat16, snapshot

BFLOAT16 = Training(local_steps=3, batch_size=16, precision="bfloat16")


def mixed(method: Method) -> Method:
    """The method, training in bfloat16."""
    changed = {"training": replace(method.training, precision="bfloat16")}  # type: ignore[attr-defined]
    if isinstance(method, PerFedAvg):
        changed["order"] = "first"
    return replace(method, **changed)  # type: ignore[type-var]


def images(width: int = 8) -> tuple[Model, Tensor, Tensor]:
    """A residual model without dropout, and a batch of noise."""
    built = channels_last(build_model(ModelSettings(width=width, dropout=0), (3, 16, 16), 10, seed=0))
    assert isinstance(built, Model)
    generator = torch.Generator().manual_seed(0)
    return built, torch.randn(32, 3, 16, 16, generator=generator), torch.randint(10, (32,), generator=generator)


def site_of(module: nn.Module) -> SiloContext:
    return silo(0, torch.Generator().manual_seed(0)).context(module)


def of_bfloat16(x: Tensor) -> bool:
    """Whether every number is one that bfloat16 has."""
    return torch.equal(x, x.bfloat16().float())


each = pytest.mark.parametrize(
    "method", METHODS, ids=[f"{type(method).__name__}-{i}" for i, method in enumerate(METHODS)]
)


@pytest.mark.parametrize("method", different(METHODS), ids=lambda method: type(method).__name__)
@pytest.mark.long
def test_a_method_trains_to_the_same_bits_with_any_number_of_workers(method: Method, tmp_path: Path) -> None:
    """That nothing is NaN or infinite, engines check after every work."""
    one, two = (Federation(mixed(method), tmp_path / str(n), workers=n) for n in (1, 2))
    assert_same(one.run(), two.run())
    assert_same_states(one.states(), two.states())


@each
def test_what_is_sent_and_kept_is_float32_and_not_that_of_float32(method: Method, tmp_path: Path) -> None:
    ours, usual = Federation(mixed(method), tmp_path / "bfloat16"), Federation(method, tmp_path / "float32")
    first = next(t for t, step in enumerate(method.schedule()) if step.trains)
    found = [ours.run(stop=first + 1), *ours.states(first).values()]
    expected = [usual.run(stop=first + 1), *usual.states(first).values()]
    equal = []
    for one, other in zip(map(flat, found), map(flat, expected), strict=True):
        assert {name: tensor.dtype for name, tensor in one.items()} == {name: t.dtype for name, t in other.items()}
        equal += [torch.equal(tensor, other[name]) for name, tensor in one.items()]
    assert not all(equal)


def test_convolutions_too_give_the_same_bits_with_any_number_of_workers() -> None:
    silos = caveat.data.load(DataSettings(source="digits", n_silos=2, samples_per_silo=80), seed=0)
    x = next(iter(silos)).test.x
    one, two = (
        caveat.run(silos, FedAvg(rounds=2, training=BFLOAT16, mc_samples=2), workers=n).predictor("silo-0")(x).probs
        for n in (1, 2)
    )
    assert torch.equal(one, two)


def test_only_the_encoder_computes_in_bfloat16() -> None:
    seen: dict[str, Tensor] = {}
    module = model()

    def loss(x: Tensor, y: Tensor) -> Tensor:
        seen["tokens"], seen["logits"] = module.encoder(x), module(x)
        seen["loss"] = F.cross_entropy(seen["logits"], y)
        return seen["loss"]

    BFLOAT16.fit(site_of(module), loss)
    assert {tensor.dtype for tensor in seen.values()} == {torch.float32}
    assert of_bfloat16(seen["tokens"])
    assert not of_bfloat16(seen["logits"])
    assert not of_bfloat16(seen["loss"])


def test_a_linear_encoder_multiplies_rounded_numbers_and_adds_them_up_exactly() -> None:
    """Against float64: what is left of the rounding of inputs and weights is that of the result, 8 bits."""
    torch.manual_seed(0)
    module, x = nn.Module(), torch.randn(50, 300)
    module.encoder = nn.Linear(300, 20)
    with in_bfloat16(module):
        found = module.encoder(x)
    rounded = [t.detach().bfloat16().double() for t in (x, module.encoder.weight, module.encoder.bias)]
    torch.testing.assert_close(found.double(), F.linear(*rounded), rtol=2**-8, atol=1e-4)
    assert (found - F.linear(x, module.encoder.weight, module.encoder.bias)).abs().max() > 1e-3


def test_gradients_are_float32_and_nearly_those_of_float32() -> None:
    module, x, y = images()

    def gradient() -> Tensor:
        found = torch.autograd.grad(F.cross_entropy(module(x), y), list(module.parameters()))
        assert {g.dtype for g in found} == {torch.float32}
        return torch.cat([g.flatten() for g in found])

    with one_thread():
        exact = gradient()
        with in_bfloat16(module):
            rounded = gradient()
    assert 0 < (rounded - exact).norm() / exact.norm() < 0.1


def test_training_with_it_learns_what_training_without_it_learns() -> None:
    losses = {}
    for precision in ("float32", "bfloat16"):
        module, x, y = images()
        none = Data(x[:0], y[:0])
        context = SiloContext("silo", Data(x, y), none, none, module)
        torch.manual_seed(0)
        with one_thread():
            training = Training(local_steps=30, batch_size=16, precision=precision)  # type: ignore[arg-type]
            training.fit(context, FedAvg().objective(module, {}))
            with torch.no_grad():
                losses[precision] = F.cross_entropy(module(x), y).item()
    assert all(loss < 0.1 for loss in losses.values()), losses


@pytest.mark.parametrize("fails", [False, True])
def test_after_training_a_model_computes_in_float32_again(fails: bool) -> None:
    module, x, _ = images()
    module.eval()
    with torch.no_grad():
        before = module(x)

    def through() -> None:
        with in_bfloat16(module), torch.no_grad():
            assert not torch.equal(module(x), before)
            if fails:
                raise ArithmeticError

    if fails:
        with pytest.raises(ArithmeticError):
            through()
    else:
        through()
    with torch.no_grad():
        assert torch.equal(module(x), before)
    assert "forward" not in vars(module.encoder)


def test_a_module_without_an_encoder_is_refused() -> None:
    module = nn.Sequential(nn.Linear(2, 3))
    before = snapshot(module)
    with pytest.raises(ConfigurationError, match=r"bfloat16.*Sequential has none"):
        BFLOAT16.fit(site_of(module), lambda x, y: F.cross_entropy(module(x), y))
    assert_same({"model": before}, {"model": snapshot(module)})


def test_differences_of_gradients_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"'hessian-free' needs training\.precision = 'float32'"):
        PerFedAvg(order="hessian-free", training=BFLOAT16)
    assert PerFedAvg(training=BFLOAT16).order == "first"


def test_a_configuration_chooses_it() -> None:
    assert config.load(None, ["training.precision=bfloat16"]).build_method().training.precision == "bfloat16"
    with pytest.raises(ConfigurationError, match=r"training\.precision.*float16"):
        config.load(None, ["training.precision=float16"])
