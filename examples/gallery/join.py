"""
A silo that joins late
======================

A silo that did not take part in training gets the global model, and trains its local model on its own data.
"""

import caveat

silos = caveat.data.rotated(caveat.data.digits(), angles=(0, 15, 30, 45), silos_per_angle=1, seed=0)
model = caveat.ModelSettings(name="mlp")
run = caveat.run(
    silos,
    caveat.Ditto(rounds=8, training=caveat.Training(batch_size=32, lr=0.003)),
    model=model,
    newcomers=("silo-3",),
    every=8,
)
joined = caveat.join(run, rounds=5)

# %%
# The run does not change, and the late-joining silo sends nothing.

for silo in joined.summary["silos"]:
    print(silo["name"], round(silo["test"]["accuracy"], 3))
