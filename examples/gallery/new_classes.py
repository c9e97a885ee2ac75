"""
New classes
===========

Three silos train on the digits 0 to 7. The digits 8 and 9 are new classes: how many of them raise an alarm?
"""

import numpy as np
from sklearn.datasets import load_digits

import caveat

images, y = load_digits(return_X_y=True)
images = (15 * images).astype(np.uint8).reshape(-1, 8, 8)
known, new = y < 8, y >= 8
parts = {f"silo-{k}": (images[known][k::3], y[known][k::3]) for k in range(3)}
silos = caveat.data.from_arrays(parts)
run = caveat.run(
    silos,
    caveat.FedAvg(rounds=15, training=caveat.Training(batch_size=32, lr=0.003)),
    model=caveat.ModelSettings(name="mlp"),
    every=15,
)

# %%
# Most inputs of new classes raise no alarm, because they resemble inputs of known classes. About 5 % of the silo's own
# inputs raise a false alarm.

predict = run.predictor("silo-0")
for name, x in [("own test digits", silos["silo-0"].test.x), ("8 and 9", images[new])]:
    answer = predict(x)
    print(f"{name:16} {len(answer.label):4} inputs, alarms: {(answer.typicality <= 0.05).double().mean():.0%}")
