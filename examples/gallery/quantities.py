"""
Quantities with intervals
=========================

Predict a number, and an interval that contains the true value with a guaranteed probability. Here, the number is the
progression of diabetes in 442 patients.
"""

import numpy as np
from sklearn.datasets import load_diabetes

import caveat

X, y = load_diabetes(return_X_y=True)
hospital = np.array(["north", "south", "west"])[np.arange(len(y)) % 3]
new = np.arange(len(y)) % 5 == 0
model = caveat.FederatedRegressor("fedavg", rounds=15).fit(X[~new], y[~new], groups=hospital[~new])

# %%
# 90 % intervals, and the fraction of new patients whose value is inside their interval.

interval = model.predict_interval(X[new], groups=hospital[new])
inside = (interval[:, 0] <= y[new]) & (y[new] <= interval[:, 1])
print(f"mean absolute error of medians: {np.abs(model.predict(X[new], groups=hospital[new]) - y[new]).mean():.1f}")
print(f"always the median of the training patients: {np.abs(np.median(y[~new]) - y[new]).mean():.1f}")
print(f"inside the interval: {inside.mean():.0%} of {new.sum()}, mean width {np.ptp(interval, axis=1).mean():.0f}")
