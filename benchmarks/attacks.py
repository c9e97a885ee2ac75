"""Measure the effect of one malicious silo on the others with each `federation.robust`: nine silos of digits.

The seed determines splits, weights and the malicious silo. The result is the mean test accuracy of the eight honest
silos after the last round, minus that of a federation of only these eight with `robust = "off"`: means of paired
differences over seeds, in percentage points, with 95 % intervals (Student's t). "none" has nine honest silos, compared
with nine honest silos and "off". A federation that ends with an error, or whose model is not finite, has an accuracy
of 0.

The malicious silo trains like the others, and sends its weights x 1e5 or x -10, standard normal numbers, its update
x -1, or its weights with a reported number of 10^9 rows. Variances stay positive, because others would be left out.
With "bound", the silo of "rows" is not admitted. With "off" it has the weight that it reports, and so has the silo of
"rows x 10", which reports ten times the median number of rows of the others and is admitted. Robust aggregation rules
give all silos equal weight.

python benchmarks/attacks.py [--seeds 10] [--method fedavg,fedbn] [--rule bound,median] [--attack x1e5] --out FILE.csv
python benchmarks/attacks.py --out FILE.csv --table
python benchmarks/attacks.py --honest    # how often updates exceed the bound without a malicious silo, for every method
python benchmarks/attacks.py --cost      # CPU time of checking an update, next to that of summing it
"""

from __future__ import annotations

import argparse
import csv
import math
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median, stdev
from tempfile import TemporaryDirectory
from typing import Any

import torch
from scipy.stats import t as student
from torch import Tensor

from caveat import FedAvg, FedBN, ModelSettings, Training, config, data
from caveat.core import CaveatError, Data, Payload, Silo, SiloContext, State, Update, Weights
from caveat.core.aggregation import RunningSums
from caveat.core.silo import FederationInfo
from caveat.engines.executor import Executor
from caveat.engines.norm_bounding import NormBound
from caveat.engines.rounds import FinishedRound, Participation, run
from caveat.engines.single_machine import SingleMachineEngine
from caveat.federation.server.agreement import TIMES_ROWS, incredible
from caveat.files import SiloStore
from caveat.methods import METHODS as EVERY
from caveat.runs.spec import RunSpec
from caveat.training.modules import in_batches
from caveat.wrappers.aggregation import Robust

RULES = ("off", "bound", "median", "trimmed_mean", "geometric_median", "krum")
BOTH = "change x-1.4 and rows x 10"
"""The worst that is known of a malicious silo within the bound whose rows are believed."""
ATTACKS = ("none", "x1e5", "x-10", "random", "change x-1", "rows", "rows x 10", BOTH)
MODEL = ModelSettings(name="mlp", width=64, features=32, hidden=32, norm=True)
TRAINING = Training(local_epochs=3, batch_size=16, lr=0.003)
ROUNDS = 15
ALONE = "without"
"""The federation of the honest silos."""


def corrupted(update: Update, sent: Payload, attack: str, rows: int) -> Update:
    """What a malicious silo sends in place of its update."""
    if attack.startswith("rows"):
        return Update(update.payload, rows)

    def attacked(name: str, tensor: Tensor, before: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            return tensor
        if attack == "random":
            tensor = torch.randn_like(tensor)
        elif attack == "change x-1":
            tensor = 2 * before - tensor
        elif attack == BOTH:
            tensor = before - 1.4 * (tensor - before)
        else:
            tensor = tensor * float(attack.removeprefix("x"))
        return tensor.abs() if name.endswith("running_var") else tensor

    model = {name: attacked(name, tensor, sent["model"][name]) for name, tensor in update.payload["model"].items()}
    return Update(update.payload | {"model": model}, rows if attack == BOTH else update.examples)


class Lying:
    """Make a silo of a method malicious."""

    malicious: str
    attack: str
    rows: int

    def train(self, down: Payload, state: State, context: SiloContext) -> tuple[Update, State]:
        update, after = super().train(down, state, context)  # type: ignore[misc]
        return (corrupted(update, down, self.attack, self.rows) if context.id == self.malicious else update), after

    @property
    def linear(self) -> Weights | None:
        # What is added up as it comes is checked against the rows that a silo has on this machine.
        return None if "rows" in self.attack else super().linear  # type: ignore[misc, no-any-return]


@dataclass(frozen=True)
class LyingFedAvg(Lying, FedAvg):
    malicious: str = ""
    attack: str = "none"
    rows: int = 0


@dataclass(frozen=True)
class LyingFedBN(Lying, FedBN):
    malicious: str = ""
    attack: str = "none"
    rows: int = 0


METHODS = {"fedavg": LyingFedAvg, "fedbn": LyingFedBN}


def accuracy(method: str, rule: str, attack: str, seed: int) -> dict[str, Any]:
    """The mean test accuracy of honest silos, and how many updates of theirs there were and exceeded the bound."""
    silos = data.load(config.load("digits").data, seed)
    malicious = silos.names[seed % len(silos.names)]
    honest = {name: silo for name, silo in silos.by_name.items() if name != malicious}
    counts = {name: len(silo.train) for name, silo in silos.by_name.items()}
    usual = median(counts[name] for name in honest)
    rows = {"rows": 10**9, "rows x 10": int(TIMES_ROWS * usual), BOTH: int(TIMES_ROWS * usual)}.get(
        attack, counts[malicious]
    )
    refused = rule == "bound" and malicious in incredible(counts | {malicious: rows}, {})
    asked = honest if attack == ALONE or refused else silos.by_name
    row: dict[str, Any] = {"method": method, "rule": rule, "attack": attack, "seed": seed, "updates": 0, "exceeded": 0}

    def count(done: FinishedRound, server: State) -> None:
        row["updates"] += sum(name in honest for name in done.replies.updates)
        row["exceeded"] += sum(n.times_bound is not None for name, n in done.noted.items() if name in honest)

    corruption = {} if attack in ("none", ALONE) else {"malicious": malicious, "attack": attack, "rows": rows}
    made = METHODS[method](rounds=ROUNDS, training=TRAINING, **corruption)
    with TemporaryDirectory() as folder:
        try:
            right = trained(made, Robust(rule), silos, asked, honest, seed, Path(folder), count)
        except CaveatError:
            right = 0.0
    return row | {"accuracy": right}


def trained(
    method: Any, robust: Robust, silos: Any, asked: Any, honest: dict[str, Silo], seed: int, folder: Path, after: Any
) -> float:
    """Train with those that are asked; the mean test accuracy of the honest."""
    info = FederationInfo.of(silos.by_name, silos.names, silos.shape, silos.classes, silos.dtype)
    spec = RunSpec(method=method, model=MODEL, seed=seed)
    around, context = robust.around(method, len(asked)), spec.server_context(info)
    place = Executor(around, spec.build(info), asked, SiloStore(folder), seed)
    norms = NormBound(robust.bounds) if robust.watches else None
    with SingleMachineEngine(place) as engine:
        server = run(around, engine, context, spec.init_server(info, context, around),
                     participation=Participation(seed), after=after, norms=norms)  # fmt: skip
        down = around.broadcast(server)
        found = []
        for name, silo in honest.items():
            state = place.state(name, engine.states.get(name))
            (_, module), *_ = around.loaded(down, state, place.context(name))
            logits = in_batches(module.eval(), silo.test.x)
            if not logits.isfinite().all():
                return 0.0
            found.append(float((logits.argmax(1) == silo.test.y).double().mean()))
    return mean(found)


SGD = Training(local_epochs=3, batch_size=16, lr=0.05, optimizer="sgd")
OPTIONS: dict[str, dict[str, Any]] = {
    "scaffold": {"training": SGD}, "feddc": {"training": SGD},
    "uefl": {"iterations": 2, "extra_rounds": 5, "codewords": 16, "segments": 4}, "fedpn": {"layers": 3},
}  # fmt: skip
"""What methods need beside what all have."""


def honest(name: str, seed: int) -> tuple[int, int, float]:
    """The updates of a method's nine honest silos, how many exceeded the bound, and the largest norm over its bound."""
    silos = data.load(config.load("digits").data, seed)
    method = EVERY[name](**{"rounds": ROUNDS, "training": TRAINING, **OPTIONS.get(name, {})})
    info = FederationInfo.of(silos.by_name, silos.names, silos.shape, silos.classes, silos.dtype)
    spec = RunSpec(method=method, model=MODEL, seed=seed)
    context, updates, over = spec.server_context(info), list[int](), list[float]()

    def count(done: FinishedRound, server: State) -> None:
        updates.append(len(done.replies) if done.step.trains or done.step.origin else 0)
        over.extend(noted.times_bound for noted in done.noted.values() if noted.times_bound is not None)

    with TemporaryDirectory() as folder:
        own = spec.build_personal_models(info)
        place = Executor(method, spec.build(info), silos.by_name, SiloStore(Path(folder)), seed, own)
        with SingleMachineEngine(place) as engine:
            run(method, engine, context, spec.init_server(info, context, method), participation=Participation(seed),
                after=count, norms=NormBound())  # fmt: skip
    return sum(updates), len(over), max(over, default=0.0)


def all_honest(seeds: int) -> str:
    lines = ["| method | updates | longer than the bound | the longest over its bound |", "| --- | --- | --- | --- |"]
    for name in EVERY:
        if name not in ("local", "fedproto"):  # of which nothing is bounded
            found = [honest(name, seed) for seed in range(seeds)]
            updates, over = (sum(each[i] for each in found) for i in (0, 1))
            lines.append(f"| {name} | {updates} | {over} | {max(each[2] for each in found):.2f} |")
            print(lines[-1], flush=True)
    return "\n".join(lines)


def cost() -> str:
    """Milliseconds of CPU time per update, the least of five rounds of nine silos."""
    step = next(iter(FedAvg().schedule()))
    none = Data(torch.zeros(0, 2), torch.zeros(0, dtype=torch.long))
    context, lines = SiloContext("server", none, none, none, torch.nn.Linear(1, 1)), list[str]()
    for shapes in ([(64, 64)] * 4 + [(64,)] * 4, [(512, 512, 3, 3)] * 4 + [(512,)] * 8):
        sent = {"model": {str(k): torch.randn(*shape) for k, shape in enumerate(shapes)}}
        moved = ({n: t + 0.01 * torch.randn_like(t) for n, t in sent["model"].items()} for _ in range(9))
        updates = {f"silo-{k}": Update({"model": model}, 1) for k, model in enumerate(moved)}
        looked, added = math.inf, math.inf
        for _ in range(5):
            start = time.process_time()
            if (admission := NormBound().admission(step, sent, context)) is not None:
                admission.admit(updates)
                admission.noted()
            middle = time.process_time()
            RunningSums(9).add(list(updates.values()))
            looked, added = min(looked, middle - start), min(added, time.process_time() - middle)
        count = sum(t.numel() for t in sent["model"].values())
        lines.append(f"{count:,} parameters: {looked / 9e-3:.2f} ms to look at, {added / 9e-3:.2f} ms to add up")
    return "\n".join(lines)


def measure(out: Path, methods: Iterable[str], rules: Iterable[str], attacks: Iterable[str], seeds: int) -> None:
    known = {tuple(row[key] for key in KEYS): row for row in read(out)} if out.exists() else {}
    with out.open("a", newline="") as file:
        writer = csv.DictWriter(file, [*KEYS, "updates", "exceeded", "accuracy"])
        if not known:
            writer.writeheader()
        rules = list(rules)
        for seed in range(seeds):
            for method in methods:
                cases = [("off", ALONE), *((rule, attack) for attack in attacks for rule in rules)]
                for rule, attack in cases:
                    if (method, rule, attack, str(seed)) not in known:
                        writer.writerow(accuracy(method, rule, attack, seed))
                        file.flush()


KEYS = ("method", "rule", "attack", "seed")


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def table(rows: list[dict[str, str]]) -> str:
    """Mean paired differences in points, with half the width of their intervals."""
    found = {tuple(row[key] for key in KEYS): float(row["accuracy"]) for row in rows}
    lines = [f"| method | attack | {' | '.join(RULES)} |", f"| --- | --- | {' | '.join('---' for _ in RULES)} |"]
    for method in METHODS:
        for attack in ATTACKS:
            cells = [difference(found, method, rule, attack) for rule in RULES]
            if any(cells):
                lines.append(f"| {method} | {attack} | {' | '.join(cells)} |")
        alone = [v for (m, r, a, _), v in found.items() if (m, r, a) == (method, "off", ALONE)]
        if alone:
            lines.append(f"\n{method}: {100 * mean(alone):.1f} % without the malicious silo, {len(alone)} seeds\n")
    for rule in ("bound",):
        of = [row for row in rows if row["rule"] == rule]
        none = [row for row in of if row["attack"] == "none"]
        for about, some in (
            ("without a malicious silo", none),
            ("with a malicious silo", [row for row in of if row not in none]),
        ):
            updates, exceeded = (sum(int(row[key]) for row in some) for key in ("updates", "exceeded"))
            lines.append(f"{rule}: {exceeded} of {updates} updates of honest silos exceeded it {about}")
    return "\n".join(lines)


def difference(found: dict[tuple[str, ...], float], method: str, rule: str, attack: str) -> str:
    usual = ("off", "none") if attack == "none" else ("off", ALONE)
    pairs = [
        100 * (value - found[method, *usual, seed])
        for (m, r, a, seed), value in found.items()
        if (m, r, a) == (method, rule, attack) and (method, *usual, seed) in found
    ]
    if len(pairs) < 2:
        return ""
    half = float(student.ppf(0.975, len(pairs) - 1)) * stdev(pairs) / math.sqrt(len(pairs))
    return f"{mean(pairs):+.1f} ± {half:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("attacks.csv"))
    parser.add_argument("--seeds", type=int, default=10)
    for key, known in (("method", tuple(METHODS)), ("rule", RULES), ("attack", ATTACKS)):
        parser.add_argument(f"--{key}", default=",".join(known))
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--honest", action="store_true")
    parser.add_argument("--cost", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.cost:
        print(cost())
        return
    if given.honest:
        print(all_honest(given.seeds))
        return
    if not given.table:
        measure(given.out, *(getattr(given, key).split(",") for key in ("method", "rule", "attack")), given.seeds)
    print(table(read(given.out)))


if __name__ == "__main__":
    main()
