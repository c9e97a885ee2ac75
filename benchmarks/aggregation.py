"""The mean of 50 updates of 11 million parameters, beside reading them once: time in turns, and memory.

And how much memory all processes take together as more silos answer in a round.

python benchmarks/aggregation.py
"""

from __future__ import annotations

import resource

import torch
from against_flower import run
from jobs import one_thread, ratio, side_by_side

from caveat.core import Replies, Update

UPDATES, PARAMETERS = 50, 11_000_000


def main() -> None:
    tensors = [torch.full((PARAMETERS,), float(k)) for k in range(UPDATES)]
    replies = Replies({f"{k:02d}": Update({"model": {"w": t}}, 1 + k) for k, t in enumerate(tensors)}, UPDATES)
    with one_thread():
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        replies.mean("model")
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        read, summed = side_by_side(lambda: [t.sum() for t in tensors], lambda: replies.mean("model"), pairs=5, warm=1)
    times = ratio(summed, read)
    print(f"mean of {UPDATES} updates of {PARAMETERS:,} parameters: {times:.1f} x the time of reading them once")
    print(f"memory beside the updates: {grown:.0f} MB, of which the result is {4 * PARAMETERS / 2**20:.0f} MB")
    print(f"peak memory of a server with two workers, silos that send {PARAMETERS:,} parameters and train nothing:")
    for silos in (10, UPDATES, 200):
        print(f"  {silos:3} silos: {run('own_job.py', (str(silos), '0', str(PARAMETERS)), 2)['memory']:.0f} MB")


if __name__ == "__main__":
    main()
