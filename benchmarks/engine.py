"""Compare the time of the single-machine engine with bare loops, for one and two processes, and one worker with two.

python benchmarks/engine.py [JOB ...]      jobs: lenet5, residual; both by default. Rounds are in turns.
"""

from __future__ import annotations

import sys

from jobs import ENCODER, LENET, Job, bare_processes, fedavg, one_thread, ratio, rounds, side_by_side

JOBS = {"lenet5": ("LeNet-5", LENET, 9), "residual": ("residual encoder, width 16", ENCODER, 5)}


def compare(job: Job, pairs: int) -> tuple[float, float, float]:
    """One worker over the bare loop, one worker over two, and two workers over two processes with bare loops."""
    silos = job.data()
    with (
        one_thread(),
        rounds(job, fedavg(job), silos, 1) as one,
        rounds(job, fedavg(job), silos, 2) as two,
        # Last, so that they keep freed memory as workers do.
        bare_processes(job, silos, 2) as limit,
    ):
        bare, single, double, least = side_by_side(job.bare(silos), one, two, limit, pairs=pairs, warm=1)
    return ratio(single, bare), ratio(single, double), ratio(double, least)


def main() -> None:
    for name in sys.argv[1:] or JOBS:
        about, job, pairs = JOBS[name]
        overhead, gain, limit = compare(job, pairs)
        print(f"{about}, 9 silos x 2,000, batch 64: one worker over the bare loop {overhead:.3f};")
        print(f"  two workers {gain:.2f} x as fast as one, {limit:.3f} over two bare processes", flush=True)


if __name__ == "__main__":
    main()
