"""Predictions are asked in parts of one size, and joined as if they were asked at once."""

from __future__ import annotations

import torch
from torch import Tensor

from caveat.core import Decision, Prediction, Reason
from caveat.runs.fixed_size_batches import FEW, ROWS, filled, in_parts


def asked(x: Tensor, sizes: list[int]) -> Prediction:
    """Probabilities from the first two numbers of an input; as a method's, not finite ones are not answered."""
    sizes.append(len(x))
    found = Prediction.from_logits(x.flatten(1)[:, :2][None])
    undefined = ~found.probs.isfinite().all(-1)
    return found.abstaining(undefined, Reason.UNDEFINED) if undefined.any() else found


def test_parts_have_one_size_and_no_filling_is_returned() -> None:
    for x, size in ((torch.randn(70, 3), ROWS), (torch.randn(70, 1, 2, 2), FEW), (torch.randn(1, 3), ROWS)):
        sizes: list[int] = []
        found = in_parts(lambda part, _, sizes=sizes: {Decision.GLOBAL: asked(part, sizes)}, x)[Decision.GLOBAL]
        assert set(sizes) == {size}
        expected = asked(x, [])
        assert torch.allclose(found.probs, expected.probs, rtol=0, atol=1e-12)
        assert torch.allclose(found.total, expected.total, rtol=0, atol=1e-12)
        assert torch.equal(found.decision, expected.decision)
    assert filled(x, 4).data_ptr() != x.data_ptr()
    assert torch.equal(filled(x, 4), x.expand(4, 3))


def test_a_part_with_an_undefined_input_joins_parts_without() -> None:
    x = torch.randn(3 * ROWS, 3)
    x[ROWS + 1, 0] = torch.nan
    found = in_parts(lambda part, _: asked(part, []), x)
    expected = asked(x, [])
    assert torch.equal(found.decision, expected.decision)
    assert torch.equal(found.reason, expected.reason)
    assert found.reason.nonzero().flatten().tolist() == [ROWS + 1]
    assert torch.equal(found.answered_by, expected.answered_by)


def test_subgroups_stay_beside_their_inputs() -> None:
    x, of = torch.randn(100, 3), torch.arange(100)
    found = in_parts(lambda part, group: {"inputs": part, "group": group}, x, of)
    assert torch.equal(found["inputs"], x)
    assert torch.equal(found["group"], of)
    assert len(in_parts(lambda part, group: {"inputs": part}, x[:0])["inputs"]) == 0
