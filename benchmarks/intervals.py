"""Coverage and width of intervals, overall and by thirds of `spread`: a simulation whose noise differs between inputs.

Run: python benchmarks/intervals.py [SEEDS]
"""

import sys
import warnings

import numpy as np

from caveat import FederatedRegressor


def main(seeds: int) -> None:
    warnings.simplefilter("ignore")
    for seed in range(seeds):
        generator = np.random.default_rng(seed)
        x = generator.normal(size=(3000, 5))
        y = 3 * x[:, 0] + generator.normal(size=3000) * np.where(x[:, 1] > 1, 8, 1)
        groups = generator.integers(0, 3, 3000).astype(str)
        train, test = np.split(generator.permutation(3000), [2400])
        model = FederatedRegressor(random_state=seed).fit(x[train], y[train], groups=groups[train])
        low, high = model.predict_interval(x[test], groups=groups[test]).T
        held, order = (low <= y[test]) & (y[test] <= high), np.argsort(model.decide(x[test], groups[test])["spread"])
        parts = [f"{held[part].mean():.3f} ({(high - low)[part].mean():.1f})" for part in np.array_split(order, 3)]
        print(
            f"seed {seed}: coverage {held.mean():.3f} (width {(high - low).mean():.1f}); by spread: {', '.join(parts)}"
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
