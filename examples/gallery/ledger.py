"""
A federation on one machine, and what leaves a silo
===================================================

A run on one machine exchanges the same messages as a federation across machines. The ledger lists them all.
"""

from collections import Counter

import caveat
from caveat.files import read_ledger

silos = caveat.data.rotated(caveat.data.digits(), angles=(0, 30, 60), silos_per_angle=1, seed=0)
run = caveat.run(
    silos,
    caveat.FedAvg(rounds=3, training=caveat.Training(batch_size=32, lr=0.003)),
    model=caveat.ModelSettings(name="mlp"),
    every=3,
)
messages = read_ledger(run.folder / "ledger.jsonl").messages

# %%
# Messages by phase: the model in training, and sums for temperature, familiarity and evaluation afterwards.

bytes_of: Counter[str] = Counter()
for message in messages:
    bytes_of[message.phase] += message.bytes
for phase, total in bytes_of.items():
    print(f"{phase:14} {sum(each.phase == phase for each in messages):3} messages, {total / 1000:8.1f} kB")

# %%
# Print one message in full.

print(messages[0])
