"""
Tables of three hospitals
=========================

Train on data frames with numbers and text, and read the answers: caveat can abstain even if the model is certain.
"""

import numpy as np
import pandas as pd

import caveat

# %%
# Create three tables. In practice, these are files: ``caveat.data.from_files("north.csv", "south.csv", ...)``.

rng = np.random.default_rng(0)
hospitals = {}
for name, age in [("north", 70), ("south", 62), ("west", 66)]:
    table = pd.DataFrame({
        "age": rng.normal(age, 10, 160).clip(18, 99).round(),
        "sex": rng.choice(["female", "male"], 160),
        "creatinine": np.exp(rng.normal(0.1, 0.4, 160)).round(2),  # mg/dl
    })  # fmt: skip
    risk = 0.16 * (table.age - 66) + 3 * np.log(table.creatinine) + 0.5 * (table.sex == "male") - 0.3
    table["outcome"] = np.where(rng.random(160) < 1 / (1 + np.exp(-risk)), "died", "alive")
    hospitals[name] = table
silos = caveat.data.from_frames(hospitals, target="outcome")

# %%
# Train a model. With the policy ``switch``, caveat abstains on unusual inputs.

run = caveat.run(silos, caveat.FedAvg(rounds=20), uncertainty=caveat.Uncertainty(policy="switch"), every=20)
print(f"accuracy on test patients, mean over hospitals: {run.summary['mean']['accuracy']:.3f}")

# %%
# Predict for new patients. The third creatinine value is a typing error, and the last sex does not occur in any table.

patients = pd.DataFrame({
    "age": [71, 83, 66, 58], "sex": ["female", "male", "female", "diverse"], "creatinine": [0.7, 2.4, 999, 1.1],
})  # fmt: skip
answer = run.predictor("north")(patients)
reasons = [caveat.Reason(each).name for each in answer.reason.tolist()]
pd.DataFrame({
    "creatinine": patients.creatinine,
    "label": [silos.classes[each] for each in answer.label.tolist()],
    "probability": answer.probs.max(1).values,
    "familiarity": answer.familiarity,
    "decision": [caveat.Decision(each).name for each in answer.decision.tolist()],
    "reason": reasons,
})  # fmt: skip
