"""Radial flows and posterior networks: densities that are densities, and gradients that go where they should."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import normflows
import numpy as np
import pytest
import torch
from federations import ADAM, Federation
from torch import Tensor, nn

import caveat
from caveat.core import Data, Decision, Prediction, Replies, SiloContext, Update
from caveat.data.user_data import from_arrays
from caveat.methods import FedPN
from caveat.nn.encoders import Model, Tokens
from caveat.nn.models import ModelSettings, build_model
from caveat.nn.posterior_network import (
    BLOCK,
    LEAST,
    MOST,
    NEAREST,
    Posterior,
    RadialFlows,
    clamped,
    log_alpha,
    log_evidence,
    uncertain_cross_entropy,
)
from caveat.training.fit import Training, watched_by
from caveat.training.optimizers import Moments


def flows(classes: int = 3, features: int = 4, layers: int = 5, scale: float = 1.0) -> RadialFlows:
    made = RadialFlows(classes, features, layers).double()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(scale * torch.randn_like(parameter))
    return made


@pytest.mark.parametrize("classes", [1, 3])
@pytest.mark.parametrize("examples", [1, 7])
def test_log_density_has_the_determinant_of_the_jacobian(classes: int, examples: int) -> None:
    """Against autograd: the map is rebuilt here layer by layer from its definition."""
    torch.manual_seed(0)
    stack, z = flows(classes), torch.randn(examples, 4, dtype=torch.float64)

    def through(z: Tensor, c: int) -> Tensor:
        for layer in range(5):
            alpha = nn.functional.softplus(stack.radius[c, layer]) + NEAREST
            beta = nn.functional.softplus(stack.stretch[c, layer]) + NEAREST - alpha
            away = z - stack.center[c, layer]
            z = z + beta / (alpha + away.norm()) * away
        return z

    found = stack.log_prob(z)
    assert found.shape == (examples, classes)
    for n in range(examples):
        for c in range(classes):
            jacobian = torch.autograd.functional.jacobian(lambda x, c=c: through(x, c), z[n])
            normal = torch.distributions.Normal(0, 1).log_prob(through(z[n], c)).sum()
            torch.testing.assert_close(found[n, c], normal + jacobian.slogdet().logabsdet)


def test_densities_that_are_not_wanted_are_left_out_and_change_no_other() -> None:
    stack, z = flows(5), torch.randn(7, 4, dtype=torch.float64)
    wanted = torch.tensor([False, True, True, False, True])
    found = stack.log_prob(z, wanted)
    torch.testing.assert_close(found[:, wanted], stack.log_prob(z)[:, wanted], rtol=1e-12, atol=1e-12)
    assert found[:, ~wanted].isneginf().all()
    assert torch.equal(stack.log_prob(z, torch.ones(5, dtype=torch.bool)), stack.log_prob(z))


def test_log_density_is_that_of_normflows() -> None:
    torch.manual_seed(1)
    stack, z = flows(1, layers=4), torch.randn(20, 4, dtype=torch.float64)
    layers = []
    for layer in range(4):
        radial = normflows.flows.Radial((4,), stack.center[0, layer].detach()[None].clone()).double()
        radial.alpha.data = nn.functional.softplus(stack.radius[0, layer].detach())[None] + NEAREST
        s = nn.functional.softplus(stack.stretch[0, layer].detach()) + NEAREST
        radial.beta.data = s.expm1().log()[None]  # of which normflows takes the softplus
        layers.append(normflows.flows.Reverse(radial))
    base = normflows.distributions.DiagGaussian(4, trainable=False).double()
    oracle = normflows.NormalizingFlow(base, layers[::-1])  # from the base outwards
    torch.testing.assert_close(stack.log_prob(z)[:, 0], oracle.log_prob(z))


def test_density_integrates_to_one() -> None:
    torch.manual_seed(2)
    stack = flows(2, features=2, layers=6, scale=0.7)
    axis = torch.linspace(-12, 12, 1001, dtype=torch.float64)
    grid = torch.cartesian_prod(axis, axis)
    mass = stack.log_prob(grid).exp().sum(0) * (axis[1] - axis[0]) ** 2
    torch.testing.assert_close(mass, torch.ones(2, dtype=torch.float64), atol=2e-3, rtol=0)


@pytest.mark.parametrize(("radius", "stretch"), [(50.0, -200.0), (-200.0, 50.0), (-200.0, -200.0), (60.0, 60.0)])
def test_extreme_layers_and_an_embedding_on_a_centre_stay_finite(radius: float, stretch: float) -> None:
    """beta close to -alpha: 1 + beta / (alpha + r) cancels in float32, to NaN where it is formed."""
    stack = RadialFlows(2, 16, 9)
    with torch.no_grad():
        stack.radius.fill_(radius)
        stack.stretch.fill_(stretch)
    z = torch.cat([stack.center[0, :1], torch.randn(3, 16), torch.full((1, 16), 1e4)]).detach().requires_grad_()
    assert not stack.log_prob(z).isnan().any()
    density = torch.stack([stack.log_prob_of(z, torch.full((5,), flow)) for flow in range(2)], 1)
    assert not density.isnan().any()
    density[1:4].sum().backward()
    assert all(p.grad.isfinite().all() for p in (z, *stack.parameters()))  # type: ignore[union-attr]


@pytest.mark.parametrize(("scale", "offset"), [(0.3, 0.0), (3.0, 0.0), (1.0, 1e3)])
def test_each_embedding_under_its_own_flow_and_under_all(scale: float, offset: float) -> None:
    """By distances, in blocks of layers and inputs, and by embeddings; also on a centre and far from the origin."""
    stack, which = flows(layers=14, scale=scale), torch.arange(BLOCK // 32 + 1) % 3
    stack.center.data += offset
    z = torch.cat([offset + torch.randn(BLOCK // 32, 4, dtype=torch.float64), stack.center[1, :1].detach()])
    everyone = stack.log_prob(z)[torch.arange(len(z)), which]
    for density in (stack.log_prob_of(z, which), *stack.log_prob_twice(z, z, which)):
        torch.testing.assert_close(density, everyone, rtol=1e-9, atol=1e-6)


def test_second_density_moves_its_embedding_and_no_flow() -> None:
    stack, which = flows(), torch.tensor([0, 2])
    z, fixed = (torch.randn(2, 4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    stack.log_prob_twice(z, fixed, which)[1].sum().backward()
    assert fixed.grad is not None
    assert fixed.grad.abs().min() > 0
    assert z.grad is None or not z.grad.any()
    assert not any(p.grad is not None and p.grad.any() for p in stack.parameters())


def test_flows_of_all_classes_start_as_the_same() -> None:
    stack = RadialFlows(4, 3, 2)
    assert all(torch.equal(p, p[:1].expand_as(p)) for p in stack.parameters())


def test_expected_cross_entropy_is_the_mean_over_the_dirichlet() -> None:
    torch.manual_seed(0)
    probs = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]], dtype=torch.float64)
    y = torch.tensor([0, 1])
    alpha = log_alpha(probs.log(), torch.tensor([2.0, 1.0], dtype=torch.float64))
    torch.testing.assert_close(alpha.exp(), 1 + torch.tensor([[math.e**2], [math.e]], dtype=torch.float64) * probs)
    drawn = torch.distributions.Dirichlet(alpha.exp()).sample((200_000,))
    monte_carlo = -drawn[:, torch.arange(2), y].log().mean(0)
    torch.testing.assert_close(uncertain_cross_entropy(alpha, y), monte_carlo, atol=0.02, rtol=0)


def test_much_evidence_leaves_the_cross_entropy_and_none_leaves_chance() -> None:
    probs, y = torch.tensor([[0.5, 0.3, 0.2]]), torch.tensor([1])
    much, none = (uncertain_cross_entropy(log_alpha(probs.log(), torch.tensor([e])), y) for e in (1e4, -1e4))
    torch.testing.assert_close(much, -torch.tensor([0.3]).log(), atol=1e-4, rtol=0)
    torch.testing.assert_close(none, torch.digamma(torch.tensor([3.0])) - torch.digamma(torch.tensor([1.0])))


def test_a_clamped_log_evidence_keeps_its_gradient() -> None:
    evidence = torch.tensor([-1e3, 0.0, 1e3], requires_grad=True)
    limited = clamped(evidence)
    assert limited.tolist() == [LEAST, 0, MOST]
    limited.sum().backward()
    assert evidence.grad is not None
    assert evidence.grad.tolist() == [1, 1, 1]


def test_the_least_evidence_leaves_a_label() -> None:
    probs = torch.tensor([[0.2, 0.5, 0.3]], dtype=torch.float64)
    prediction = Prediction.from_dirichlet(log_alpha(probs.log(), torch.tensor([-1e6], dtype=torch.float64)))
    assert prediction.label.tolist() == [1]
    torch.testing.assert_close(prediction.probs, torch.full((1, 3), 1 / 3, dtype=torch.float64))


def posterior(classes: int = 3) -> Posterior:
    torch.manual_seed(0)
    head = nn.Sequential(nn.Flatten(), nn.Linear(4, classes))
    return Posterior(head, flows(classes)).double()


def test_an_absent_class_gives_no_evidence() -> None:
    made, tokens = posterior(), torch.randn(5, 1, 4, dtype=torch.float64)
    shares = torch.tensor([0.25, 0, 0.75], dtype=torch.float64)
    density = made.flows.log_prob(tokens[:, 0])
    mixture = (0.25 * density[:, 0].exp() + 0.75 * density[:, 2].exp()).log()
    torch.testing.assert_close(made(tokens, shares.log())[1], log_evidence(mixture, 4))


def owner(k: float, counts: list[int]) -> Update:
    """A silo's update in which every tensor is filled with k."""
    flows_ = {f"posterior.flows.{name}": torch.full(shape, k) for name, shape in
              {"centre": (3, 2, 4), "radius": (3, 2), "stretch": (3, 2)}.items()}  # fmt: skip
    return Update({"model": {"posterior.head.1.bias": torch.full((3,), k), **flows_},
                   "classes": {"examples": torch.tensor(counts)}}, sum(counts))  # fmt: skip


def test_densities_are_averaged_over_their_owners_and_all_else_over_everyone() -> None:
    replies = Replies({"a": owner(1.0, [10, 0, 0]), "b": owner(4.0, [20, 10, 0])}, population=2)
    server = {"moments": {}, "model": {name: t * 0 - 7 for name, t in replies.updates["a"].payload["model"].items()}}
    none = Data(torch.zeros(0, 2), torch.zeros(0, dtype=torch.long))
    model = FedPN().aggregate(server, replies, SiloContext("server", none, none, none, nn.Identity()))["model"]
    torch.testing.assert_close(model["posterior.head.1.bias"], torch.full((3,), (10 * 1 + 30 * 4) / 40))
    for name, tensor in model.items():
        if "flows" in name:
            # By n_kc for the first class, one owner for the second; nobody has the third, which stays.
            assert [row.unique().tolist() for row in tensor] == [[3.0], [4.0], [-7.0]], name


def test_adam_goes_on_from_the_moments_it_is_given() -> None:
    """Two times ten steps with the moments carried over are twenty steps; without them they are not."""
    torch.manual_seed(0)
    x, y = torch.randn(10, 4), torch.randint(3, (10,))
    data = Data(x, y)

    def trained(parts: list[int], carry: bool) -> Tensor:
        torch.manual_seed(1)
        module, moments = nn.Linear(4, 3), Moments({})
        for steps in parts:
            training = Training(local_steps=steps, batch_size=10, lr=0.01)
            fit = SiloContext("silo", data, data, data, module)
            training.fit(
                fit, lambda x, y: nn.functional.cross_entropy(module(x), y), moments=moments if carry else None
            )
        return module.weight.detach()

    torch.testing.assert_close(trained([10, 10], carry=True), trained([20], carry=False))
    assert not torch.allclose(trained([10, 10], carry=False), trained([20], carry=False))


def test_both_answers_take_one_pass_of_the_encoder(tmp_path: Path) -> None:
    federation = Federation(FedPN(rounds=1, training=ADAM, layers=2, personal_epochs=1, personal_steps=0), tmp_path)
    federation.run()
    place, state = federation.place, federation.states()["silo-0"]
    passes = []
    hook = place.module.encoder.register_forward_hook(lambda *_: passes.append(1))  # type: ignore[union-attr, operator]
    context = place.silos["silo-0"].context(place.module)
    answers = federation.method.answer(
        federation.method.broadcast(federation.server), state, context, context.validation.x
    )
    hook.remove()
    assert len(answers) == 2
    assert len(passes) == 1


def test_a_silo_trains_a_head_and_densities_of_its_own_and_leaves_the_encoder(tmp_path: Path) -> None:
    federation = Federation(
        FedPN(rounds=1, training=ADAM, layers=2, personal_epochs=2, personal_steps=0, density_rounds=1), tmp_path
    )
    federation.run()
    before, after = federation.done[0].replies.mean("model"), federation.server["model"]
    assert all(torch.equal(before[name], after[name]) for name in before if "flows" not in name)
    assert any(not torch.equal(before[name], after[name]) for name in before if "flows" in name)
    for state in federation.states().values():
        assert {name.split(".")[0] for name in state["own"]} == {"head", "flows"}
        assert not torch.equal(state["own"]["head.1.weight"], after["posterior.head.1.weight"])
        assert float(state["classes"]["shares"].sum()) == pytest.approx(1)


@pytest.mark.parametrize("least", [0, 50])
def test_a_small_silo_trains_its_own_parts_for_a_minimum_of_steps(least: int, tmp_path: Path) -> None:
    steps: list[int] = []

    def count(training: Training, examples: int, batches: Iterator[Tensor]) -> Iterator[Tensor]:
        found = list(batches)
        if training.lr == FedPN().personal_lr:
            steps.append(len(found))
            assert training.local_epochs == max(3, math.ceil(least * ADAM.batch_size / examples))
        return iter(found)

    method = FedPN(rounds=1, training=ADAM, layers=2, personal_epochs=3, personal_steps=least)
    with watched_by(count):
        Federation(method, tmp_path).run()
    assert least <= min(steps)
    assert max(steps) < 100


@pytest.mark.long
def test_own_parts_of_a_small_silo_have_more_evidence_than_the_floor_of_training() -> None:
    """With 10 epochs alone, densities of normalized embeddings stay below it, and answers close to uniform."""
    silos = caveat.data.rotated(caveat.data.digits(), angles=(0, 120), silos_per_angle=1, samples_per_silo=160, seed=0)
    found = []
    for method in (FedPN(layers=10, personal_steps=0, personal_lr=0.001), FedPN(layers=10)):
        run = caveat.run(
            silos, method, rounds=2, training=Training(batch_size=32, lr=0.01), model=ModelSettings(width=4),
            uncertainty=caveat.Uncertainty(familiarity=False),
        )  # fmt: skip
        answer = run.answers(silos[0].name)(silos[0].test.x)[Decision.LOCAL]
        assert answer.log_evidence is not None
        found.append(float(answer.log_evidence.median()))
    assert found[0] < method.floor < found[1]


@pytest.mark.parametrize("moments", [True, False])
def test_momentum_of_sgd_is_shared_as_adams_moments_are(moments: bool, tmp_path: Path) -> None:
    training = Training(local_steps=2, batch_size=16, optimizer="sgd", momentum=0.9, lr=0.01)
    method = FedPN(rounds=2, training=training, layers=2, personal_epochs=1, personal_steps=0, moments=moments)
    federation = Federation(method, tmp_path)
    federation.run()
    assert bool(federation.server["moments"]) == moments
    assert all(name.startswith("momentum_buffer.") for name in federation.server["moments"])


def gradients(made: Posterior, **options: object) -> tuple[bool, bool]:
    """Whether the expected cross-entropy moves the flows and, by way of the evidence, the embedding."""
    tokens = torch.randn(6, 1, 4, dtype=torch.float64, requires_grad=True)
    for parameter in made.head.parameters():
        nn.init.constant_(parameter, 0.1)  # so that the head sends no gradient back to the embedding
    nn.init.zeros_(made.head[1].weight)  # type: ignore[index, arg-type]
    nn.init.normal_(made.head[1].bias)  # type: ignore[index, arg-type]
    made.zero_grad()
    FedPN(**options).objective(made, nn.Identity())(tokens, torch.tensor([0, 1, 2, 0, 1, 2])).backward()  # type: ignore[arg-type]
    moved = [p.grad is not None and bool(p.grad.any()) for p in made.flows.parameters()]
    assert len(set(moved)) == 1
    return moved[0], tokens.grad is not None and bool(tokens.grad.any())


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"stop_gradient": "densities", "gamma": 0}, (False, True)),
        ({"stop_gradient": "embedding", "gamma": 0}, (False, False)),
        ({"stop_gradient": "none", "gamma": 0}, (True, True)),
        ({"stop_gradient": "embedding", "gamma": 0.1}, (True, False)),
        ({"stop_gradient": "embedding", "gamma": 0.1, "density_trains_encoder": True}, (True, True)),
    ],
)
def test_gradients_stop_where_the_options_say(options: dict[str, object], expected: tuple[bool, bool]) -> None:
    assert gradients(posterior(), **options) == expected


def middle(classes: int, method: FedPN) -> float:
    """The log-density in the middle one of three Gaussians, whose labels are random over all classes."""
    torch.manual_seed(0)
    centers = torch.tensor([[-1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    x = torch.cat([center + 0.1 * torch.randn(200, 2) for center in centers])
    y = torch.cat([torch.zeros(200), torch.ones(200), torch.arange(200) % classes]).long()
    head = nn.Sequential(nn.Flatten(), nn.Linear(2, 48), nn.ReLU(), nn.Linear(48, classes))
    network = method.build(Model(Tokens(), head, tokens=1, features=2))
    data = Data(x, y)
    context = SiloContext("silo", data, data, data, network)
    training = Training(local_epochs=40, batch_size=32, lr=0.01)
    training.fit(context, method.objective(network.posterior, network.encoder))  # type: ignore[arg-type]
    shares = torch.bincount(y, minlength=classes) / len(y)
    with torch.no_grad():
        return float(network.posterior(centers[2].view(1, 1, 2), shares.log())[1] - log_evidence(torch.tensor(0.0), 2))  # type: ignore[operator]


@pytest.mark.long
def test_random_labels_lower_the_density_under_the_original_loss_and_not_under_equation_8() -> None:
    """Figure 2 of the paper: the true log-density in the middle is ln(1 / 3) - ln(2 pi 0.01) = 1.67 for any K."""
    corrected = [middle(k, FedPN(normalize=False, layers=8, floor=-50)) for k in (3, 200)]
    original = [middle(k, FedPN(normalize=False, layers=8, floor=-50, stop_gradient="none", gamma=0)) for k in (3, 200)]
    assert corrected[1] > corrected[0] - 0.5
    assert original[1] < original[0] - 1.5
    assert corrected[1] == pytest.approx(1.67, abs=1)


@pytest.mark.parametrize(("normalize", "noticed"), [(None, True), (False, True), (True, False)])
def test_normalising_each_embedding_hides_how_far_out_a_row_of_a_table_is(
    normalize: bool | None, noticed: bool
) -> None:
    draw = np.random.default_rng(0)
    y = np.arange(300) % 2
    silos = from_arrays({f"silo-{k}": (draw.normal(size=(300, 4)) + 3 * y[:, None], y) for k in range(2)})
    model = ModelSettings(name="mlp", width=16, features=8, hidden=16)
    method = FedPN(normalize=normalize, layers=4, personal_epochs=5)
    run = caveat.run(silos, method, rounds=5, training=Training(batch_size=32, lr=0.01), model=model)
    answers, x = run.answers("silo-0"), silos[0].test.x
    for answer in answers(x):
        own, far = (answers(inputs)[answer].log_evidence for inputs in (x, 30 * x))
        assert own is not None
        assert far is not None
        assert (far.median() < own.min() - 3).item() == noticed


def test_embeddings_are_normalised_behind_convolutions_by_default() -> None:
    def parts(name: str, normalize: bool | None) -> list[type[nn.Module]]:
        model = build_model(ModelSettings(name=name, width=8), (1, 8, 8), 3, seed=0)  # type: ignore[arg-type]
        return [type(part) for part in FedPN(normalize=normalize).build(model).modules()]

    for name, usual in (("residual", True), ("mlp", False)):
        assert (nn.LayerNorm in parts(name, None)) == usual
        assert nn.LayerNorm in parts(name, True)
        assert nn.LayerNorm not in parts(name, False)


@pytest.mark.parametrize("scale", [0.3, 3.0])
def test_gradients_of_the_flows_are_those_of_finite_differences(scale: float) -> None:
    torch.manual_seed(0)
    stack = flows(2, features=3, layers=3, scale=scale)
    z, which = torch.randn(4, 3, dtype=torch.float64, requires_grad=True), torch.tensor([0, 1, 1, 0])

    def density(z: Tensor, *parameters: Tensor) -> Tensor:
        tensors = dict(zip(("centre", "radius", "stretch"), parameters, strict=True))
        return torch.func.functional_call(stack, tensors, (z,))

    stack.forward = lambda z: stack.log_prob_of(z, which)  # type: ignore[method-assign]
    assert torch.autograd.gradcheck(density, (z, *stack.parameters()))
