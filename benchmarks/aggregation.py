"""Measure time and memory of aggregation: the mean of 50 updates of 11 million parameters.

Times, measured in turns, are relative to reading the updates once: for stored updates (a thread per processor), for
updates summed in groups as they arrive (one thread), and for two parts of the work, conversion to float64 and summation
in float32. The script also measures the memory of all processes as more silos reply in a round.

python benchmarks/aggregation.py
"""

from __future__ import annotations

import resource
from collections.abc import Callable

import torch
from against_flower import run
from jobs import one_thread, ratio, side_by_side
from torch import Tensor

from caveat.core import Replies, Update
from caveat.core.aggregation import BLOCK, RunningSums
from caveat.engines.allocator import keep_freed_memory, use_huge_pages
from caveat.engines.sums_on_arrival import FEWEST

UPDATES, PARAMETERS = 50, 11_000_000


def main() -> None:
    use_huge_pages()  # as the command line does
    keep_freed_memory()  # as every engine does
    tensors = [torch.full((PARAMETERS,), float(k)) for k in range(UPDATES)]
    updates = [Update({"model": {"w": tensor}}, 1 + k) for k, tensor in enumerate(tensors)]
    replies = Replies({f"{k:02d}": update for k, update in enumerate(updates)}, UPDATES)

    def as_they_come() -> None:
        sums = RunningSums(sum(update.examples for update in updates))
        for start in range(0, UPDATES, FEWEST):
            sums.add(updates[start : start + FEWEST])
        sums.means()

    def blocks(dtype: torch.dtype, do: Callable[[Tensor, Tensor], object]) -> None:
        into = torch.zeros(BLOCK, dtype=dtype)
        for parts in zip(*(torch.split(tensor, BLOCK) for tensor in tensors), strict=True):
            for part in parts:
                do(into[: len(part)], part)

    ways = {
        "stored": lambda: replies.mean("model"),
        "summed on arrival": as_they_come,
        "converted to float64": lambda: blocks(torch.float64, lambda into, part: into.copy_(part)),
        "summed in float32": lambda: blocks(torch.float32, lambda into, part: into.add_(part, alpha=0.1)),
    }
    with one_thread():
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        replies.mean("model")
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        read, *times = side_by_side(lambda: [t.sum() for t in tensors], *ways.values(), pairs=5, warm=1)
    print(f"mean of {UPDATES} updates of {PARAMETERS:,} parameters over reading them once:")
    for name, found in zip(ways, times, strict=True):
        print(f"  {name:22} {ratio(found, read):.1f}")
    print(
        f"memory in addition to stored updates: {grown:.0f} MB, of which the result is {4 * PARAMETERS / 2**20:.0f} MB"
    )
    print(f"peak memory of a server with two workers, silos that send {PARAMETERS:,} parameters and train nothing:")
    for silos in (10, UPDATES, 200):
        print(f"  {silos:3} silos: {run('own_job.py', (str(silos), '0', str(PARAMETERS)), 2)['memory']:.0f} MB")


if __name__ == "__main__":
    main()
