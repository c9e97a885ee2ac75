"""
Audit uncertainty estimates
===========================

Does epistemic uncertainty fall with more data? ``caveat.audit`` trains on fractions of the data to test such claims.
"""

import caveat

silos = caveat.data.rotated(caveat.data.digits(), angles=(0, 60), silos_per_angle=1, seed=0)
found = caveat.audit(
    silos,
    caveat.FedAvg(training=caveat.Training(batch_size=32, lr=0.003)),
    rounds=4,
    seeds=(0, 1),
    fractions=(0.25, 1.0),
    model=caveat.ModelSettings(name="mlp"),
)
print(found)
