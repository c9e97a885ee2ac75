"""
Images: a digit on its side
===========================

Three pairs of silos train on digits rotated by three angles. No silo has trained on a digit on its side.
"""

import torch

import caveat

silos = caveat.data.rotated(caveat.data.digits(), angles=(0, 15, 30), silos_per_angle=2, seed=0)
method = caveat.FedAvg(rounds=15, training=caveat.Training(batch_size=32, lr=0.003))
model, uncertainty = caveat.ModelSettings(name="mlp"), caveat.Uncertainty(policy="switch")
run = caveat.run(silos, method, model=model, uncertainty=uncertainty, every=15)
print(f"accuracy: {run.summary['mean']['accuracy']:.3f}")

# %%
# Predict one of the first silo's test digits, the same digit on its side, and noise.

digit = silos["silo-0"].test.x[0]
noise = torch.randn(digit.shape, generator=torch.Generator().manual_seed(0))
answer = run.predictor("silo-0")(torch.stack([digit, digit.rot90(1, (-2, -1)), noise]))
for name, p, sure, decision in zip(
    ("own", "on its side", "noise"), answer.familiarity, answer.probs.max(1).values, answer.decision, strict=True
):
    print(f"{name:12} {sure:.3f} sure, p = {p:.2f}, {caveat.Decision(decision.item()).name}")
