"""Run the job of flower_job.py on caveat's single-machine engine with two workers; takes the same arguments."""

import json
import os
import sys
import time

import torch
from jobs import LENET, Job, fedavg, rounds
from torch import nn

from caveat.core import Payload, SiloContext, State, Update
from caveat.core.devices import find_device
from caveat.engines.allocator import use_huge_pages
from caveat.engines.executor import channels_last
from caveat.engines.silos_on_device import one_thread
from caveat.methods import FedAvg
from caveat.nn.models import ModelSettings
from caveat.training.modules import load, snapshot

SILOS, EXAMPLES, ROUNDS, OUT = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[4]), sys.argv[5]
MODEL = sys.argv[3]


class Idle(FedAvg):
    """FedAvg whose silos send back what they were sent, through their module."""

    def train(self, down: Payload, state: State, context: SiloContext) -> tuple[Update, State]:
        load(context.module, down["model"])
        return Update({"model": snapshot(context.module)}, 1), state


class Plain(Job):
    def module(self) -> nn.Module:
        if MODEL == "lenet5":
            return super().module()
        torch.manual_seed(0)
        return channels_last(nn.Linear(1000, int(MODEL) // 1001))


if __name__ == "__main__":
    use_huge_pages()
    job = Plain(SILOS, max(EXAMPLES, 1), LENET.shape, ModelSettings(name="lenet5"))
    method = fedavg(job) if EXAMPLES else Idle(rounds=10**6, training=job.training)
    ends = []
    device = find_device(os.environ.get("CAVEAT_BENCH_DEVICE", "cpu"), start=False)
    with one_thread(), rounds(job, method, job.data(), 2, device=device) as round:
        for _ in range(ROUNDS):
            round()
            ends.append(time.time())
    with open(OUT, "w") as file:
        json.dump(ends, file)
