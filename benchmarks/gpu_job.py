"""Run one side of a comparison on a device: seconds of every round of a job, as JSON.

python benchmarks/gpu_job.py JOB.json OUT.json      (run by gpu.py, a process for each side)

Each side needs a separate process, because a process that has used a GPU cannot fork workers.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import torch
from jobs import Job, one_thread, rounds, seconds

from caveat.core.devices import find_device
from caveat.engines.vectorization import Vectorization
from caveat.methods import FedAvg
from caveat.nn.models import ModelSettings


def main() -> None:
    asked, out = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    job = Job(asked["silos"], asked["examples"], (1, 28, 28), ModelSettings(**asked["model"]), asked["batch"])
    silos, workers = job.data(), asked["workers"]
    device = find_device(asked["device"], start=workers == 1)
    made = {"decided": {}}
    if asked["side"] == "bare":
        round = job.bare(silos, device)

        def timed() -> None:
            round()
            if device.type != "cpu":
                torch.get_device_module(device).synchronize()

        times = [seconds(timed) for _ in range(asked["rounds"])]
    else:
        method = FedAvg(rounds=10**6, training=replace(job.training, precision=asked["precision"]))
        vectorization = Vectorization(asked["vectorized"])
        with one_thread(), rounds(job, method, silos, workers, vectorization, device=device) as next_round:
            times = [seconds(next_round) for _ in range(asked["rounds"])]
        made["decided"] = {name: record.model_dump() for name, record in vectorization.works.items()}
    out.write_text(json.dumps(made | {"seconds": times}))


if __name__ == "__main__":
    main()
