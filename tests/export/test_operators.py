"""What stands for operators that ONNX lacks, or has with fewer digits, is as exact as torch's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from caveat.export import decompositions
from caveat.export.export_model import ask_onnx, onnx_model
from caveat.export.recording import NotRecordable, program_of
from caveat.nn import posterior_network, stage_features
from caveat.nn.posterior_network import RadialFlows
from caveat.uncertainty import measures, typicality

NAMES = ("log1p", "expm1", "digamma", "lgamma", "entr", "softplus", "logsigmoid", "logaddexp", "logsumexp", "var")
SMALL = torch.logspace(-300, 2, 400, dtype=torch.float64)
WIDE = torch.cat([-SMALL.flip(0), torch.zeros(1, dtype=torch.float64), SMALL])


@pytest.mark.parametrize(("ours", "theirs", "x"), [
    (decompositions.log1p, torch.log1p, SMALL),
    (decompositions.expm1, torch.expm1, WIDE),
    (decompositions.digamma, torch.digamma, 1 + SMALL),
    (decompositions.lgamma, torch.lgamma, 1.1 + SMALL),
    (decompositions.entr, torch.special.entr, SMALL),
    (decompositions.softplus, F.softplus, WIDE),
    (lambda x: decompositions.log_sigmoid(x)[0], F.logsigmoid, WIDE),
    (lambda x: decompositions.logaddexp(x, -x), lambda x: torch.logaddexp(x, -x), WIDE),
    (lambda x: decompositions.logsumexp(x.view(-1, 1), [1]), lambda x: x, WIDE),
    (lambda x: decompositions.variance(x.view(3, -1), [1]), lambda x: x.view(3, -1).var(1), WIDE[:801]),
], ids=NAMES)  # fmt: skip
def test_functions_keep_their_digits(
    ours: Callable[[Tensor], Tensor], theirs: Callable[[Tensor], Tensor], x: Tensor
) -> None:
    # Where psi passes 0, and ln Gamma at 2, digits are lost by whoever computes them.
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-12, atol=1e-14 if "gamma" in str(theirs) else 0)


def test_logarithms_of_sums_know_infinity() -> None:
    none, one = torch.tensor([-torch.inf]), torch.tensor([1.0])
    assert decompositions.logaddexp(none, none).tolist() == [-torch.inf]
    assert decompositions.logaddexp(none, one).tolist() == [1]
    assert decompositions.logsumexp(none, [0]).item() == -torch.inf


@pytest.mark.parametrize(("size", "cells"), [(8, 4), (7, 4), (28, 4), (3, 3)])
def test_cells_are_those_of_adaptive_pooling(size: int, cells: int) -> None:
    x = torch.randn(3, 2, size, size + 1, dtype=torch.float64)
    for part in (x, x[..., :size]):
        torch.testing.assert_close(decompositions.cells(part, [cells, cells]), F.adaptive_avg_pool2d(part, cells))


@pytest.mark.parametrize(("count", "classes", "scale"), [(1, 3, 2.0), (2, 2, 5.0), (20, 10, 3.0), (20, 2, 400.0)])
def test_parts_of_logits_are_those_of_their_probabilities(count: int, classes: int, scale: float) -> None:
    generator = torch.Generator().manual_seed(count)
    logits = scale * torch.randn(1, 300, classes, generator=generator)
    logits = logits + torch.randn(count, 300, classes, generator=generator)
    logits[:, :10, 0] = -torch.inf  # a class that is impossible
    probs, parts = measures.decomposed_logits(logits)
    found, theirs = measures.decomposed_logits_directly(logits)
    torch.testing.assert_close(found, probs, rtol=1e-13, atol=1e-300)
    for ours, each in zip(theirs, parts, strict=True):
        torch.testing.assert_close(ours, each, rtol=1e-9, atol=1e-13)


def test_parts_of_what_is_no_distribution_are_no_numbers() -> None:
    logits = torch.zeros(3, 3, 2)
    logits[0, 0], logits[1, 1, 0], logits[2, 2] = torch.nan, torch.inf, -torch.inf
    probs, _ = measures.decomposed_logits_directly(logits)
    assert probs.isnan().all(1).tolist() == [True] * 3
    assert measures.decomposed_logits(logits)[0].isnan().all(1).tolist() == [True] * 3


@pytest.mark.parametrize("shape", [(6, 5), (1, 5), (6, 3, 4), (6, 1, 1)])
def test_moments_of_maps_as_they_are_laid_out(shape: tuple[int, ...]) -> None:
    h = torch.randn(7, *shape)
    torch.testing.assert_close(stage_features.moments_directly(h), stage_features.moments(h), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("function", [
    lambda x: x.softmax(1), lambda x: x.log_softmax(1), lambda x: x.log_softmax(1).exp(), lambda x: x.softmax(-1),
    lambda x: (x > 0).sum(1), lambda x: (x > 0).sum((1, 2)), lambda x: (x > 0).sum(0),
    lambda x: x[:, :1].mean(1), lambda x: x[:, :1].sum(1, keepdim=True), lambda x: (x[:, :1] > 0).sum(1),
    lambda x: x[:, :1, :1].amax((1, 2)), lambda x: x.view(-1, 3, 2, 2).mean((2, 3)),
    lambda x: x.view(-1, 3, 2, 2).mean((2, 3), keepdim=True),
], ids=[
    "softmax", "log softmax", "its exponential", "last axis", "count", "count of two axes", "count of inputs",
    "mean of one", "sum of one", "count of one", "largest of one", "mean of maps", "mean of maps that keeps axes",
])  # fmt: skip
def test_steps_of_onnx_say_what_torch_says(function: Callable[[Tensor], Tensor], tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")

    def maps(size: int) -> Tensor:
        return torch.randn(size, 3, 4, generator=torch.Generator().manual_seed(size))

    program = program_of(lambda x: {"y": function(x)}, maps)
    (tmp_path / "model.onnx").write_bytes(onnx_model(program, {}).SerializeToString())
    found = torch.from_numpy(ask_onnx(tmp_path / "model.onnx", maps(9).numpy())["y"])
    torch.testing.assert_close(found, function(maps(9)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("n", [0, 1, 5, 40])
def test_p_values_by_operators_alone_are_the_same_to_the_bit(n: int) -> None:
    generator = torch.Generator().manual_seed(n)
    calibration, new = (torch.randn(k, 3, generator=generator) for k in (n, 300))
    new[:20] = calibration[:20] if n >= 20 else new[:20]
    new[-1] = torch.nan
    expected = typicality.conformal(calibration, new)
    assert torch.equal(typicality.conformal_directly(calibration, new), expected)


@pytest.mark.parametrize("layers", [1, 6, 7, 20])
def test_densities_without_changes_in_place_are_the_same(layers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(layers)
    flows = RadialFlows(4, 8, layers).double()
    z = torch.randn(50, 8, dtype=torch.float64)
    with torch.no_grad():
        for parameter in flows.parameters():
            parameter.normal_()
    expected = flows.log_prob(z)
    monkeypatch.setattr(posterior_network, "density", posterior_network.density_directly)
    torch.testing.assert_close(flows.log_prob(z), expected, rtol=1e-9, atol=1e-9)


def batch(size: int) -> Tensor:
    return torch.randn(size, 3, generator=torch.Generator().manual_seed(size))


def test_one_program_is_for_batches_of_any_size() -> None:
    def function(x: Tensor) -> dict[str, Tensor]:
        table = torch.zeros(len(x), 3)
        table += x
        table.mul_(2)
        twice = torch.cat([table, torch.ones(len(x), 3)])
        return {"y": twice.view(2, len(x), 3).sum(0), "parts": torch.cat([p + 1 for p in torch.split(x, 500)])}

    module = program_of(function, batch).module()
    for size in (1, 2, 600):
        for name, expected in function(batch(size)).items():
            assert torch.equal(module(batch(size))[name], expected)


@pytest.mark.parametrize("function", [
    lambda x: x * 2 if x.sum() > 0 else x,
    lambda x: x * float(x.max()),
    lambda x: x * torch.tensor(x.tolist()),
    lambda x: F.dropout(x, 0.5),
    lambda x: torch.stack([row for row in x]),  # noqa: C416
    lambda x: x + torch.arange(len(x))[:, None],
    lambda x: x.unique()[:, None],
], ids=["branch", "number", "list", "random", "rows", "positions", "unique"])  # fmt: skip
def test_what_is_no_list_of_operators_is_refused(function: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(NotRecordable):
        program_of(lambda x: {"y": function(x)}, batch)


def test_a_whole_that_was_written_to_in_part_is_not_read() -> None:
    def function(x: Tensor) -> dict[str, Tensor]:
        y = x * 1
        y[:, 0] = 0
        return {"y": y}

    with pytest.raises(NotRecordable, match="after a part of it was written"):
        program_of(function, batch)
