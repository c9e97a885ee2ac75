"""Coverage of intervals, and promises of tolerance, over many draws of calibration inputs.

Run: python benchmarks/intervals.py noise [--draws 3]
     python benchmarks/intervals.py zeros [--draws 200]
     CAVEAT_DATA=DIR python benchmarks/intervals.py resplits [--draws 200]

`noise`: coverage and width of intervals, overall and by thirds of `spread`, in a simulation whose noise differs between
inputs; `--draws` is the number of seeds.

`zeros`: coverage of intervals if two fifths, or nine tenths, of the targets are 0, without a model: all predictions are
the distribution of 600 training targets. Mean over draws of 100 calibration and 200 test targets; also the interval of
the first draw, and the predicted median.

`resplits`: trains FedAvg on abalone (three silos) once, with 36 % of the rows. Each draw splits the inputs of a silo
that training did not see into 20, 60 or 300 calibration inputs and test inputs. Printed per silo: the mean coverage of
test inputs by the silo's intervals (0.9), and the band that contains this mean with a probability of 0.99 if the
coverage of each draw has the distribution of the theory (beta, and binomial test inputs). Then, for a guarantee that at
most 10 % of answered inputs are off by more than 3.5 (rings), with a confidence level of 0.9: the share of draws in
which it is broken (guaranteed: at most 0.1), the share without a guarantee, and the mean share of answered inputs. For
guarantees, draws are with replacement, so the true error rate is that of all inputs. `base`: the error rate of all.
"""

import argparse
import math
import os
import warnings
from pathlib import Path
from statistics import fmean

import numpy as np
import torch

import caveat
from caveat import FederatedRegressor, data
from caveat.core.quantity import Quantity
from caveat.nn.models import ModelSettings
from caveat.uncertainty import sets
from caveat.uncertainty.selective_risk import fixed_sequence, policy_counts, ranks

SIZES = 20, 60, 300
COVERAGE, RISK, CONFIDENCE, TOLERANCE = 0.9, 0.1, 0.9, 3.5
SPLIT = data.Split(train=0.4, validation=0.1, test=0.1)


def noise(seeds: int) -> None:
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


def zeros(draws: int) -> None:
    for share in (0.4, 0.9):
        generator = np.random.default_rng(0)

        def drawn(size: int, share: float = share, generator: np.random.Generator = generator) -> torch.Tensor:
            days = np.exp(generator.normal(2, 0.6, size)).round().clip(1)
            return torch.from_numpy(np.where(generator.random(size) < share, 0.0, days))

        target, held, ends = Quantity.of([drawn(600)]), [], []
        for _ in range(draws):
            calibration, test = drawn(100), drawn(200)
            score = target.nonconformity(target.reference.expand(100, -1), calibration)
            limit = torch.tensor(sets.threshold(score, COVERAGE))
            (low, high) = target.interval(target.reference, limit)[0]
            held.append(float(((low <= test) & (test <= high)).double().mean()))
            ends.append((float(low), float(high)))
        median = float(target.quantile(target.reference, 0.5))
        print(f"{share:.0%} zeros: coverage {fmean(held):.3f}, interval {ends[0][0]:.2f} to {ends[0][1]:.2f}, ", end="")
        print(f"median {median:.2f}, bar of zero {target.edges[0]:.2f} to {target.edges[1]:.2f}")


def covered(found: caveat.Prediction, y: torch.Tensor, size: int, draws: int) -> tuple[float, float, float]:
    """Return the mean coverage over draws, and the band of this mean."""
    assert found.target is not None
    score = found.target.nonconformity(found.probs, y)
    generator, held = np.random.default_rng(1), []
    for _ in range(draws):
        order = generator.permutation(len(y))
        calibration, test = order[:size], torch.from_numpy(order[size:])
        limit = sets.threshold(score[torch.from_numpy(calibration)], COVERAGE)
        low, high = found.target.interval(found.probs[test], torch.tensor(limit)).T
        held.append(float(((low <= y[test]) & (y[test] <= high)).double().mean()))
    rank = math.ceil(COVERAGE * (size + 1))
    drawn = generator.beta(rank, size + 1 - rank, (2000, draws))
    means = (generator.binomial(len(y) - size, drawn) / (len(y) - size)).mean(1)
    low, high = np.quantile(means, [0.005, 0.995])
    return fmean(held), float(low), float(high)


def broken(found: caveat.Prediction, y: torch.Tensor, size: int, draws: int) -> tuple[float, float, float]:
    """Return the shares of draws whose promise is broken, and without a promise, and the mean share of answered
    inputs."""
    wrong, spread = (found.value - y).abs() > TOLERANCE, found.score("spread")
    generator, violated, granted, answered = np.random.default_rng(2), 0, 0, []
    for _ in range(draws):
        validation, calibration = (torch.from_numpy(generator.integers(len(y), size=size)) for _ in range(2))
        edges = spread[validation].double().quantile(torch.linspace(0.01, 1, 100, dtype=torch.float64))
        edges[-1] = math.inf
        rank = ranks(edges, spread)
        given = fixed_sequence(policy_counts(rank[calibration], None, wrong[calibration], None), RISK, CONFIDENCE)
        if given.limit is None:
            answered.append(0.0)
            continue
        inside = rank <= given.limit
        granted += 1
        violated += bool(wrong[inside].double().mean() > RISK)
        answered.append(float(inside.double().mean()))
    return violated / draws, 1 - granted / draws, fmean(answered)


def resplits(draws: int) -> None:
    paths = sorted(Path(os.environ["CAVEAT_DATA"]).glob("abalone_*.csv"))
    silos = data.from_files(*paths, target="rings", predict="quantity", split=SPLIT)
    training = caveat.Training(lr=0.001, batch_size=16, local_epochs=2)
    run = caveat.run(silos, caveat.FedAvg(30, training), model=ModelSettings(name="mlp"), every=10**6, n_silos=3)
    print("| silo | calibration inputs | coverage | band | broken | no promise | answered | base |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for silo in silos:
        x = torch.cat([silo.calibration.x, silo.test.x])
        y = torch.cat([silo.values["calibration"], silo.values["test"]]).double()
        found = run.predictor(silo.name)(x)
        base = float(((found.value - y).abs() > TOLERANCE).double().mean())
        for size in SIZES:
            mean, low, high = covered(found, y, size, draws)
            violated, none, answered = broken(found, y, size, draws)
            numbers = f"{mean:.3f}", f"{low:.3f} to {high:.3f}", *(f"{n:.3f}" for n in (violated, none, answered, base))
            print(f"| {silo.name} | {size} | {' | '.join(numbers)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=("noise", "zeros", "resplits"))
    parser.add_argument("--draws", type=int)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    if given.task == "noise":
        noise(given.draws or 3)
    elif given.task == "zeros":
        zeros(given.draws or 200)
    else:
        resplits(given.draws or 200)


if __name__ == "__main__":
    main()
