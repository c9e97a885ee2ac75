"""
Times to an event
=================

Predict the time until an event that has not happened yet for some patients. For each made-up patient, the prediction
contains the median time, the risk of the event within a year, and a lower bound with a guaranteed probability.
"""

import numpy as np
import pandas as pd

import caveat

rng = np.random.default_rng(0)


def patients(count: int) -> pd.DataFrame:
    """Days until death, or until the last visit of patients who were alive then (died = 0)."""
    age, smokes = rng.normal(65, 10, count).round(), rng.integers(0, 2, count)
    death = rng.exponential(1500 * np.exp(-0.06 * (age - 65) - 0.8 * smokes))
    visit = rng.uniform(200, 3000, count)
    days = np.minimum(death, visit).round() + 1
    return pd.DataFrame({"age": age, "smokes": smokes, "days": days, "died": (death <= visit).astype(int)})


hospitals = {"north": patients(400), "south": patients(400)}
silos = caveat.data.from_frames(hospitals, target="days", predict="time", event="died", horizons=[365])
run = caveat.run(silos, caveat.FedAvg(rounds=15, training=caveat.Training(lr=0.003, batch_size=32)), every=15)
mean = run.summary["mean"]
print({name: round(mean[name], 3) for name in ("c_index", "integrated_brier", "reference_integrated_brier")})

# %%
# Two new patients. A survival time is at least ``low`` with a probability of 90 %.

new = pd.DataFrame({"age": [50, 80], "smokes": [0, 1]})
answer = run.predictor("north")(new)
low, risk = answer.interval[:, 0].numpy().round(), answer.risk(365).numpy().round(2)
print(new.assign(median=answer.value.numpy().round(), low=low, risk_365=risk))
