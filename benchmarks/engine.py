"""What the embedded engine costs beside a bare loop, and what two workers gain: rounds in turns.

python benchmarks/engine.py
"""

from __future__ import annotations

from jobs import ENCODER, LENET, Job, fedavg, one_thread, ratio, rounds, side_by_side

JOBS = {"LeNet-5": (LENET, 9), "residual encoder, width 16": (ENCODER, 5)}


def compare(job: Job, pairs: int) -> tuple[float, float]:
    """One worker over the bare loop, and one worker over two."""
    silos = job.data()
    with one_thread(), rounds(job, fedavg(job), silos, 1) as one, rounds(job, fedavg(job), silos, 2) as two:
        bare, single, double = side_by_side(job.bare(silos), one, two, pairs=pairs, warm=1)
    return ratio(single, bare), ratio(single, double)


def main() -> None:
    for name, (job, pairs) in JOBS.items():
        overhead, gain = compare(job, pairs)
        print(f"{name}, 9 silos x 2,000, batch 64: one worker over the bare loop {overhead:.3f}", end="")
        print(f"; two workers {gain:.2f} x as fast as one", flush=True)


if __name__ == "__main__":
    main()
