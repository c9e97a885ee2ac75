"""
A scikit-learn estimator
========================

``FederatedClassifier`` follows scikit-learn's conventions, and adds ``decide``.
"""

import numpy as np
from sklearn.datasets import load_breast_cancer

import caveat

X, y = load_breast_cancer(return_X_y=True)
hospital = np.array(["north", "south", "west"])[np.arange(len(y)) % 3]
policy = caveat.Uncertainty(policy="switch")
model = caveat.FederatedClassifier("fedavg", rounds=15, uncertainty=policy).fit(X[50:], y[50:], groups=hospital[50:])

# %%
# Decide about 50 new patients. The last patient's first value is a typing error.

new = X[:50].copy()
new[-1, 0] *= 100
table = model.decide(new, groups=hospital[:50])
print(f"answered: {(table['decision'] != 'abstain').sum()} of 50")
print(f"right, of those answered: {(table['label'] == y[:50])[table['decision'] != 'abstain'].mean():.1%}")
print(table[["label", "decision", "reason", "familiarity"]][-3:])
