"""
Compare methods
===============

Compare three methods with two seeds on the same silos. The report, ``report.html``, adds tests and intervals.
"""

import tempfile

import caveat


def silos(seed: int) -> caveat.data.Silos:
    """Return the silos, whose splits depend on the seed."""
    return caveat.data.rotated(caveat.data.digits(), angles=(0, 90), silos_per_angle=1, seed=seed)


methods = {
    name: caveat.METHODS[name](rounds=3, training=caveat.Training(batch_size=32, lr=0.003))
    for name in ("local", "fedavg", "ditto")
}
folder = tempfile.mkdtemp()
found = caveat.compare(silos, methods, seeds=(0, 1), out=folder, model=caveat.ModelSettings(name="mlp"), every=3)
print(found)
