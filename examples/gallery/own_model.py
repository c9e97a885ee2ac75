"""
Your own model
==============

A plain ``torch.nn.Sequential`` is enough: caveat finds the encoder and the head, and checks the model before training.
"""

import torch

import caveat

torch.manual_seed(0)  # the weights that the network begins with
net = torch.nn.Sequential(
    torch.nn.Flatten(), torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(128, 10)
)
silos = caveat.data.rotated(caveat.data.digits(), angles=(0, 15, 30), silos_per_angle=1, seed=0)
training = caveat.Training(batch_size=32, lr=0.003)
run = caveat.run(silos, caveat.FedAvg(rounds=10, training=training), model=net, every=10)
print(f"accuracy: {run.summary['mean']['accuracy']:.3f}")
print(run.module("silo-0"))
