"""Codebooks, dropout, models."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from caveat.core import ConfigurationError, Prediction, seeded
from caveat.nn.codebook import Codebook, kmeans, nearest
from caveat.nn.dropout import flat, mc_dropout
from caveat.nn.models import ModelSettings, build_model


def test_nearest_is_right_where_expanded_distances_cancel() -> None:
    """At |z|^2 ~ 1e8 the expansion |z|^2 + |c|^2 - 2zc has no digits left in float32."""
    words = torch.tensor([[1e4, 0.0], [1e4 + 1, 0.0], [1e4 + 2, 0.0]])
    z = torch.tensor([[1e4 + 0.1, 0.0], [1e4 + 0.9, 0.0], [1e4 + 1.9, 0.0]])
    assert nearest(z, words).tolist() == [0, 1, 2]


def test_nearest_agrees_with_float64_distances() -> None:
    z, words = torch.randn(500, 16), torch.randn(40, 16)
    assert torch.equal(nearest(z, words), torch.cdist(z.double(), words.double()).argmin(1))


@pytest.mark.parametrize("segments", [1, 2, 4])
def test_quantised_tokens_are_codewords_segment_by_segment(segments: int) -> None:
    codebook = Codebook(5, 0, 8, segments)
    z = torch.randn(3, 7, 8)
    q = codebook.quantise(z)
    pieces = q.tokens.reshape(-1, 8 // segments)
    torch.testing.assert_close(pieces, codebook.shared[q.words.flatten()])
    torch.testing.assert_close(codebook(z), q.tokens)
    assert q.words.shape == (3, 7, segments)


def test_codebook_loss_and_its_gradients() -> None:
    """mean (c - sg z)^2 + beta mean (sg c - z)^2, and the straight-through gradient of what follows."""
    codebook = Codebook(1, 0, 2, commitment=0.25)
    codebook.shared.data = torch.tensor([[1.0, 0.0]])
    z = torch.tensor([[[3.0, 4.0]]], requires_grad=True)
    q = codebook.quantise(z)
    assert q.loss.item() == pytest.approx(1.25 * (4 + 16) / 2)
    (q.loss + (q.tokens * torch.tensor([10.0, 20.0])).sum()).backward()
    torch.testing.assert_close(codebook.shared.grad, torch.tensor([[-2.0, -4.0]]))
    torch.testing.assert_close(z.grad, torch.tensor([[[0.25 * 2 + 10, 0.25 * 4 + 20]]]))


def test_words_in_reach_are_the_shared_ones_then_those_that_exist() -> None:
    codebook = Codebook(3, 4, 2)
    assert len(codebook.words()) == 3
    codebook.extend(torch.tensor([[7.0, 7.0], [8.0, 8.0]]))
    torch.testing.assert_close(codebook.words()[3:], torch.tensor([[7.0, 7.0], [8.0, 8.0]]))
    with pytest.raises(ValueError, match="5 private codewords in a codebook with room for 4"):
        codebook.extend(torch.zeros(3, 2))


def test_features_that_cannot_be_cut_are_refused() -> None:
    with pytest.raises(ValueError, match="6 features cannot be cut into 4"):
        Codebook(3, 0, 6, segments=4)


def test_kmeans_with_fewer_distinct_points_than_centres_gives_each_once() -> None:
    points = torch.tensor([[0.0], [1.0], [1.0], [0.0], [2.0]])
    assert kmeans(points, 8, seed=0).flatten().tolist() == [0, 1, 2]
    assert torch.equal(kmeans(points, 2, seed=1), kmeans(points, 2, seed=1))


def test_kmeans_finds_separate_clusters() -> None:
    centers = torch.tensor([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]])
    points = (centers[:, None] + 0.1 * torch.randn(3, 50, 2)).flatten(0, 1)
    found = kmeans(points, 3, seed=0)
    torch.testing.assert_close(found[nearest(centers, found)], centers, atol=0.1, rtol=0)


# MC dropout


def net() -> nn.Sequential:
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))
    return nn.Sequential(encoder, nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.5), nn.Linear(16, 3)))


def test_passes_differ_and_batchnorm_stays_as_it_is() -> None:
    module, x = net(), torch.randn(6, 4)
    module.train()
    before = {name: t.clone() for name, t in module.state_dict().items()}
    samples = mc_dropout(module, x, 7)
    assert samples.shape == (7, 6, 3)
    assert not torch.equal(samples[0], samples[1])
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, before[name]), name


def test_each_pass_is_the_network_with_one_mask() -> None:
    """Against an independent loop: a mask per pass on the hidden layer, shown to every input."""
    module, x = net().eval(), torch.randn(6, 4)
    samples = mc_dropout(module, x, 5)
    hidden = module[1][1](module[1][0](module[0](x)))
    for sample in samples:
        keep = torch.zeros(16)
        # The mask is what, applied to all six inputs, explains the output: found by trying each unit is costly, so
        # check instead that the sample is linear in the hidden units with weights 0 or 2.
        w = module[1][3].weight
        solution = torch.linalg.lstsq(
            (hidden[:, None] * w).flatten(0, 1), (sample - module[1][3].bias).flatten()[:, None]
        ).solution.flatten()
        keep = solution.round()
        assert set(keep.tolist()) <= {0.0, 2.0}
        torch.testing.assert_close((hidden * keep) @ w.T + module[1][3].bias, sample, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
@pytest.mark.parametrize(("norm", "second", "bias"), [(False, None, True), (True, None, False), (False, 7, True)])
def test_passes_are_a_loop_over_networks_with_the_masks_of_the_seed(
    p: float, norm: bool, second: int | None, bias: bool
) -> None:
    """Though only what is missing is computed for each: against all masks, in the order in which they are drawn."""
    built = build_model(ModelSettings(name="mlp", dropout=p, norm=norm, second=second, hidden=40), (5,), 3, 0).eval()
    if not bias:
        built.head[-1].bias = None
    x = torch.randn(11, 5)
    stages, drops = list(flat(built)), [stage for stage in flat(built) if isinstance(stage, nn.Dropout)]
    with seeded("mc-dropout", 4):
        masks = [F.dropout(torch.ones(6, width), p) for width in (40, second)[: len(drops)]]
    expected = []
    for sample in range(6):
        hidden, mask = x, iter(masks)
        for stage in stages:
            hidden = hidden * next(mask)[sample] if stage in drops else stage(hidden)
        expected.append(hidden)
    for _ in range(2):
        torch.testing.assert_close(mc_dropout(built, x, 6, seed=4), torch.stack(expected))
    assert not torch.allclose(mc_dropout(built, x, 6, seed=5), torch.stack(expected))


def test_a_unit_that_is_always_dropped_says_nothing() -> None:
    module = nn.Sequential(nn.Linear(4, 8), nn.Dropout(1.0), nn.Linear(8, 3))
    samples = mc_dropout(module, torch.randn(2, 4), 5)
    torch.testing.assert_close(samples, module[2].bias.detach().expand(5, 2, 3))


@pytest.mark.parametrize("second", [None, 5])
def test_sampling_leaves_the_global_generator_alone(second: int | None) -> None:
    module = build_model(ModelSettings(name="mlp", second=second), (4,), 3, 0)
    before = torch.get_rng_state()
    mc_dropout(module, torch.ones(2, 4), 3, seed=8)
    assert torch.equal(torch.get_rng_state(), before)


def test_inputs_with_masks_of_their_own_differ_where_equal_ones_under_shared_masks_do_not() -> None:
    module, x = net(), torch.randn(1, 4).expand(6, 4)
    shared, own = mc_dropout(module, x, 2000), mc_dropout(module, x, 2000, shared=False)
    assert own.shape == shared.shape
    torch.testing.assert_close(shared, shared[:, :1].expand_as(shared))
    assert not torch.allclose(own[:, 0], own[:, 1])
    torch.testing.assert_close(mc_dropout(module, x, 2000, shared=False), own)
    assert not torch.allclose(mc_dropout(module, x, 2000, seed=1, shared=False), own)
    # Of each input by itself the outputs are distributed alike.
    torch.testing.assert_close(own.mean((0, 1)), shared.mean((0, 1)), atol=0.05, rtol=0)
    torch.testing.assert_close(own.std((0, 1)), shared.std((0, 1)), atol=0.05, rtol=0)
    plain = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.0))
    torch.testing.assert_close(mc_dropout(plain, x, 5, shared=False), plain(x)[None])


def test_prefix_is_computed_once() -> None:
    module, calls = net(), []
    module[0][0].register_forward_hook(lambda *_: calls.append(1))
    mc_dropout(module, torch.randn(6, 4), 20)
    assert len(calls) == 1


def test_without_dropout_there_is_one_sample() -> None:
    module, x = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.0)), torch.randn(2, 4)
    samples = mc_dropout(module, x, 20)
    torch.testing.assert_close(samples, module(x)[None])
    assert Prediction.from_samples(samples.softmax(-1)).epistemic.tolist() == [0, 0]


class Hidden(nn.Module):
    """A stage whose dropout is inside its own forward."""

    def __init__(self) -> None:
        super().__init__()
        self.drop, self.norm = nn.Dropout(0.5), nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(self.norm(x) + 1)


def test_dropout_inside_a_stage_samples_too_and_only_it() -> None:
    module, x = nn.Sequential(Hidden(), nn.Linear(4, 3)), torch.randn(6, 4)
    statistics = module[0].norm.running_mean.clone()
    samples = mc_dropout(module, x, 5)
    assert not torch.equal(samples[0], samples[1])
    assert torch.equal(module[0].norm.running_mean, statistics)
    assert not module[0].drop.training


def test_stages_of_nested_sequentials_come_in_order() -> None:
    assert [type(stage).__name__ for stage in flat(net())] == [
        "Linear", "BatchNorm1d", "Linear", "GELU", "Dropout", "Linear",
    ]  # fmt: skip


def test_uncertainty_of_samples_against_a_hand_made_case() -> None:
    """Two opposite certain samples: all uncertainty is epistemic, ln 2. Two equal even ones: all is aleatoric."""
    opposite = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])
    even = torch.tensor([[[0.5, 0.5]], [[0.5, 0.5]]])
    ln2 = torch.tensor([2.0], dtype=torch.float64).log()
    p, q = Prediction.from_samples(opposite), Prediction.from_samples(even)
    torch.testing.assert_close(p.total, ln2)
    torch.testing.assert_close(p.epistemic, ln2)
    torch.testing.assert_close(q.total, ln2)
    torch.testing.assert_close(q.aleatoric, ln2)
    assert p.aleatoric.item() == q.epistemic.item() == 0


# Models


@pytest.mark.parametrize(("name", "shape"), [
    ("lenet5", (1, 28, 28)), ("lenet5", (3, 32, 32)), ("lenet5", (1, 16, 16)), ("residual", (1, 8, 8)),
    ("residual", (3, 32, 32)), ("cnn", (3, 28, 28)), ("normed", (1, 28, 28)), ("mlp", (13,)), ("mlp", (1, 8, 8)),
])  # fmt: skip
def test_models_are_encoders_to_tokens_and_heads(name: str, shape: tuple[int, ...]) -> None:
    model = build_model(ModelSettings(name=name), shape, 7, seed=0)  # type: ignore[arg-type]
    tokens = model.encoder(torch.randn(2, *shape))
    assert tokens.shape == (2, model.tokens, model.features)
    assert model(torch.randn(2, *shape)).shape == (2, 7)


@pytest.mark.parametrize(("name", "shape"), [("residual", (1, 8, 8)), ("mlp", (13,)), ("mlp", (20, 3))])
@pytest.mark.parametrize("more", [{}, {"width": 8, "hidden": 4}])
def test_the_model_follows_the_inputs(name: str, shape: tuple[int, ...], more: dict[str, int]) -> None:
    auto, named = (build_model(ModelSettings(name=each, **more), shape, 3, seed=0) for each in ("auto", name))  # type: ignore[arg-type]
    assert str(auto) == str(named)
    assert all(torch.equal(a, b) for a, b in zip(auto.parameters(), named.parameters(), strict=True))


def test_residual_has_the_papers_size_and_tokens() -> None:
    """10.04 million parameters and 9 tokens of 512 features for MNIST, as the authors' network."""
    model = build_model(ModelSettings(name="residual", width=128, hidden=512), (1, 28, 28), 10, seed=0)
    assert (model.tokens, model.features) == (9, 512)
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(10.04, abs=0.01)


def test_same_seed_same_weights_and_the_global_generator_is_left_alone() -> None:
    before = torch.get_rng_state()
    one, same, other = (build_model(ModelSettings(), (1, 8, 8), 3, seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(one.head[1].weight, same.head[1].weight)  # type: ignore[index,union-attr]
    assert not torch.equal(one.head[1].weight, other.head[1].weight)  # type: ignore[index,union-attr]


@pytest.mark.parametrize(("settings", "shape", "message"), [
    ({"name": "residual"}, (13,), "takes images"), ({"name": "lenet5"}, (1, 4, 4), "at least 8x8"),
])  # fmt: skip
def test_model_for_the_wrong_inputs_is_refused(settings: dict[str, str], shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        build_model(ModelSettings(**settings), shape, 3, seed=0)  # type: ignore[arg-type]


def test_model_key_that_means_nothing_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"^width = 8 has no effect for model 'lenet5'"):
        ModelSettings(name="lenet5", width=8)


def test_logits_are_dropped_only_on_request() -> None:
    plain = build_model(ModelSettings(name="mlp"), (4,), 3, 0)
    released = build_model(ModelSettings(name="mlp", dropout_logits=True), (4,), 3, 0)
    assert isinstance(list(plain.head)[-1], nn.Linear)  # type: ignore[call-overload]
    assert isinstance(list(released.head)[-1], nn.Dropout)  # type: ignore[call-overload]
    x = F.dropout(torch.ones(1, 4), 0.0)
    assert (mc_dropout(released, x, 200) == 0).any()


def test_weights_are_drawn_from_the_first_layer_to_the_last() -> None:
    """Or a run's configuration would give other bits than it gave before."""
    built = build_model(ModelSettings(name="mlp", width=5, features=4, hidden=6, second=3), (2,), 3, seed=7)
    with seeded(7, "init"):
        drawn = [nn.Linear(2, 5), nn.Linear(5, 4), nn.Linear(4, 6), nn.Linear(6, 3), nn.Linear(3, 3)]
    found = [part for part in built.modules() if isinstance(part, nn.Linear)]
    assert len(found) == len(drawn)
    for one, other in zip(found, drawn, strict=True):
        assert torch.equal(one.weight, other.weight)


@pytest.mark.parametrize("second", [None, 3])
@pytest.mark.parametrize("norm", [False, True])
def test_a_head_may_be_run_in_two_halves(norm: bool, second: int | None) -> None:
    built = build_model(ModelSettings(name="cnn", hidden=6, norm=norm, second=second), (1, 8, 8), 3, seed=0)
    x = torch.randn(9, 1, 8, 8)
    built.eval()
    hidden = built.head.hidden(built.encoder(x))
    assert hidden.shape == (9, 6)
    assert torch.equal(built.head.output(hidden), built(x))
    norms = sum(isinstance(part, nn.BatchNorm1d) for part in built.head)
    assert norms == norm * (1 + (second is not None))


@pytest.mark.parametrize(("name", "shape"), [("lenet5", (1, 28, 28)), ("cnn", (3, 28, 28)), ("mlp", (13,))])
def test_layer_norm_is_between_encoder_and_head_and_draws_nothing(name: str, shape: tuple[int, ...]) -> None:
    """The same initial weights with and without, so that rows of a table differ by nothing else."""
    plain = build_model(ModelSettings(name=name), shape, 3, 0).eval()
    normed = build_model(ModelSettings(name=name, layer_norm=True), shape, 3, 0).eval()
    assert all(
        torch.equal(a, b) for a, b in zip(plain.state_dict().values(), normed.state_dict().values(), strict=True)
    )
    x = torch.randn(4, *shape)
    said = plain.encoder(x)
    torch.testing.assert_close(normed.encoder(x), F.layer_norm(said, said.shape[-1:]))


def test_a_model_of_ones_own_has_no_layer_norm() -> None:
    with pytest.raises(ConfigurationError, match="layer_norm = True has no effect for model 'own'"):
        ModelSettings(factory="package:make", layer_norm=True)
