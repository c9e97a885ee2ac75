"""What is done to every large tensor of a round: sums in float64, whatever the blocks."""

from __future__ import annotations

import math
import os
import sys

import pytest
import torch
from federations import assert_same

from caveat.core import Replies, Update, aggregation
from caveat.core.aggregation import RunningSums, size, weighted_sum
from caveat.engines.allocator import keep_freed_memory


@pytest.mark.parametrize("shape", [(), (0,), (3,), (7, 5), (4, 2, 3)])
@pytest.mark.parametrize("block", [1, 4, 35, 1000])
def test_weighted_sum_rounds_the_exact_sum_once(
    shape: tuple[int, ...], block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aggregation, "BLOCK", block)
    # Large numbers that cancel: in float32 nothing would be left of the small ones.
    tensors = [scale * torch.rand(shape) for scale in (1e6, 1.0, 1e-3)]
    tensors.append(-tensors[0])
    shares = [0.25, 0.5, 0.125, 0.25]
    entries = zip(*(tensor.flatten().tolist() for tensor in tensors), strict=True)
    exact = [math.fsum(share * number for share, number in zip(shares, numbers, strict=True)) for numbers in entries]
    found = weighted_sum(tensors, shares)
    assert found.dtype == torch.float32
    assert found.shape == shape
    torch.testing.assert_close(found.flatten(), torch.tensor(exact), rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_blocks_do_not_change_a_bit(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = [torch.randn(70, 30).to(dtype) for _ in range(9)]
    shares = torch.rand(9).tolist()
    whole = weighted_sum(tensors, shares)
    monkeypatch.setattr(aggregation, "BLOCK", 64)
    assert torch.equal(weighted_sum(tensors, shares), whole)
    # The order is the cohort's: starting from zero, one after the other.
    monkeypatch.setattr(aggregation, "BLOCK", 1)
    assert torch.equal(weighted_sum([t[:2, :2] for t in tensors], shares), whole[:2, :2])


@pytest.mark.parametrize("processors", [1, 2, 7])
def test_threads_do_not_change_a_bit(processors: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors, shares = [torch.randn(101, 30) for _ in range(9)], torch.rand(9).tolist()
    whole, threads = weighted_sum(tensors, shares), torch.get_num_threads()
    monkeypatch.setattr(aggregation, "BLOCK", 64)
    monkeypatch.setattr(aggregation, "LARGE", 1000)
    monkeypatch.setattr(aggregation, "_processors", lambda: processors)
    assert torch.equal(weighted_sum(tensors, shares), whole)
    assert torch.get_num_threads() == threads
    with pytest.raises(ValueError, match="zip"):
        weighted_sum(tensors, shares[1:])


def test_no_more_threads_than_a_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {3, 5, 8}, raising=False)
    assert aggregation._processors() == 3
    monkeypatch.delattr(os, "sched_getaffinity")  # where a process cannot be bound to processors
    assert aggregation._processors() == 64


def test_weighted_sum_does_not_mind_how_tensors_lie_in_memory() -> None:
    tensors = [torch.randn(2, 3, 4, 5) for _ in range(3)]
    last = [tensor.contiguous(memory_format=torch.channels_last) for tensor in tensors]
    found = weighted_sum(last, [0.2, 0.3, 0.5])
    assert torch.equal(found, weighted_sum(tensors, [0.2, 0.3, 0.5]))
    assert found.is_contiguous()


@pytest.mark.parametrize("shares", [[1.0], [0.2, 0.3, 0.5]])
def test_as_many_shares_as_tensors(shares: list[float]) -> None:
    with pytest.raises(ValueError, match="zip"):
        weighted_sum([torch.ones(2), torch.ones(2)], shares)


def updates() -> dict[str, Update]:
    return {
        f"silo-{k}": Update(
            {
                "model": {"w": torch.randn(5, 3), "half": torch.randn(4).bfloat16(), "count": torch.tensor(k)},
                "control": {"c": torch.randn(2, 2)},
                "empty": {},
            },
            10 + k,
        )
        for k in range(7)
    }


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_sums_of_updates_that_were_let_go_give_the_same_bits(size: int) -> None:
    """Whatever is added up at a time: all of it is what `Replies.mean` has when all updates are kept."""
    kept, sums = updates(), RunningSums(91)
    names = list(kept)
    for i in range(0, len(names), size):
        sums.add([kept[name] for name in names[i : i + size]])
    replies, means = Replies(kept, 7), sums.means()
    assert list(means) == ["model", "control", "empty"]
    for group in means:
        assert_same({group: means[group]}, {group: replies.mean(group)})
    assert means["model"]["half"].dtype == torch.bfloat16
    assert means["model"]["count"] == 0  # the first silo's


def test_replies_that_were_added_up_have_no_more_than_means() -> None:
    kept, sums = updates(), RunningSums(91)
    sums.add(list(kept.values()))
    forms = {silo: update.form() for silo, update in kept.items()}
    assert size(forms["silo-3"].payload) == size(kept["silo-3"].payload)
    assert forms["silo-3"].examples == 13
    added = Replies(forms, 7, means=sums.means())
    assert len(added) == 7
    assert torch.equal(added.mean("model")["w"], Replies(kept, 7).mean("model")["w"])
    with pytest.raises(LookupError, match="model/w: the updates of a linear round were summed"):
        added.stack("model", "w")
    with pytest.raises(LookupError, match="'model': the updates of a linear round were summed"):
        added.mean("model", [1.0] * 7)


@pytest.mark.parametrize("shape", [(), (0,), (0, 3)])
def test_sums_of_tensors_of_one_number_or_none(shape: tuple[int, ...]) -> None:
    kept = {name: Update({"model": {"w": torch.randn(shape)}}, 1 + k) for k, name in enumerate("abc")}
    sums = RunningSums(6)
    sums.add(list(kept.values()))
    found = sums.means()["model"]["w"]
    assert found.shape == shape
    assert torch.equal(found, Replies(kept, 3).mean("model")["w"])


def test_a_first_update_without_tensors_is_the_form_of_all() -> None:
    sums = RunningSums(2)
    sums.add([Update({}, 1)])
    sums.add([Update({"model": {"w": torch.ones(2)}}, 1)])
    assert sums.means() == {}


def test_an_update_that_lacks_a_tensor_is_not_added_up() -> None:
    with pytest.raises(KeyError, match="w"):
        RunningSums(2).add([Update({"model": {"w": torch.ones(2)}}, 1), Update({"model": {}}, 1)])


@pytest.mark.skipif(sys.platform != "linux", reason="mallopt is glibc's, and pages are counted as Linux does")
def test_memory_that_was_freed_is_not_asked_for_again() -> None:
    import resource

    def faults() -> int:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(10):
            torch.empty(11_000_000).fill_(1.0)  # more than glibc would keep by itself
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    keep_freed_memory()
    faults()
    assert faults() < 10  # one per tensor at the very least, if they were mapped anew
