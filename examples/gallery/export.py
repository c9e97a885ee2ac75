"""
Export to ONNX
==============

Export one file that predicts and abstains without caveat. It contains the preprocessing, the model, the
temperature, the familiarity test and the decision rule.
"""

import tempfile
from pathlib import Path

import numpy as np
import onnxruntime

import caveat

silos = caveat.data.rotated(caveat.data.digits(), angles=(0, 15), silos_per_angle=1, seed=0)
uncertainty = caveat.Uncertainty(policy="switch")
run = caveat.run(
    silos,
    caveat.FedAvg(rounds=8, training=caveat.Training(batch_size=32, lr=0.003)),
    model=caveat.ModelSettings(name="mlp"),
    uncertainty=uncertainty,
    every=8,
)
file = Path(tempfile.mkdtemp()) / "digits.onnx"
caveat.export_model(run, "silo-0", "onnx", file)

# %%
# The file takes raw images, and gives the same answers as caveat.

session = onnxruntime.InferenceSession(file)
images = silos.to_image(silos["silo-0"].test.x[:20])[..., 0]
names = [output.name for output in session.get_outputs()]
found = dict(zip(names, session.run(names, {"inputs": images}), strict=True))
own = run.predictor("silo-0")(images)
print(f"{file.stat().st_size / 1000:.0f} kB, outputs: {', '.join(names)}")
print("labels agree:", bool((found["label"] == own.label.numpy()).all()))
print("decisions agree:", bool((found["decision"] == own.decision.numpy()).all()))
print(f"largest difference of probabilities: {np.abs(found['probs'] - own.probs.numpy()).max():.0e}")
