"""Whether `make test` finds faults: plants one at a time in a copy of the sources, and runs the tests of that area.

    python tests/planted_faults.py                     all faults, in this checkout
    python tests/planted_faults.py --tree DIR          in another checkout
    python tests/planted_faults.py --only NAME,NAME    some of them

Prints one line per fault: whether it was found, after how many seconds, and by which test. Long tests do not count, nor
does `test_bits.py`, which compares nothing on a machine without hashes. Each fault is an edit of text that has to be
in the sources exactly once, in whatever file; where it is not, adapt the fault to the sources.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

HERE = Path(__file__).resolve().parents[1]
LEFT_OUT = shutil.ignore_patterns(".*", "*.egg-info", "__pycache__", "build", "runs.tmp")


@dataclass(frozen=True)
class Fault:
    """An edit of the sources, and the tests that should notice it: files, which run first, and whole folders."""

    name: str
    old: str
    new: str
    tests: str


KEEPING = """
        self.training.fit(context, self.objective(context.module, down))
        shared, own = split(snapshot(context.module), self.private(context.module))
        return Update({"model": shared}, context.examples), state | {"model": own}
"""
FAULTS = (
    Fault(
        "proximal term with the wrong sign",
        "loss(x, y) + self.mu / 2 * drift.sum()",
        "loss(x, y) - self.mu / 2 * drift.sum()",
        "test_drift methods",
    ),
    Fault(
        "control variates of SCAFFOLD swapped",
        "grad - c_k[name] + c[name]",
        "grad + c_k[name] - c[name]",
        "test_drift methods",
    ),
    Fault(
        "weight of APFL's mixture on the other model",
        "self.alpha * v + (1 - self.alpha) * w[name].detach()",
        "(1 - self.alpha) * v + self.alpha * w[name].detach()",
        "test_personal methods",
    ),
    Fault(
        "silos weigh the same in the mean",
        "[weight / sum(weights) for weight in weights]",
        "[1 / len(weights) for _ in weights]",
        "test_aggregation core methods",
    ),
    Fault(
        "private state is not kept",
        KEEPING,
        KEEPING.replace('state | {"model": own}', "state"),
        "test_personal_layers methods",
    ),
    Fault(
        "private tensors leave the silo",
        KEEPING,
        KEEPING.replace('{"model": shared}', '{"model": shared | own}'),
        "test_personal_layers methods",
    ),
    Fault(
        "IFCA chooses the cluster with dropout switched on",
        "load(context.module, model_of(down, cluster)).eval()",
        "load(context.module, model_of(down, cluster)).train()",
        "test_clusters methods",
    ),
    Fault(
        "same random numbers in every round",
        "seeded(self.seed, name, t, silo)",
        "seeded(self.seed, name, silo)",
        "test_random core engines methods runs",
    ),
    Fault(
        "training on calibration rows",
        "            self.name, *splits, module, round=round, own=own,",
        "            self.name, self.calibration, *splits[1:], module, round=round, own=own,",
        "test_data core data methods",
    ),
    Fault(
        "splits share a row",
        "order[end - size : end]",
        "order[max(end - size - 1, 0) : end]",
        "test_data data",
    ),
    Fault(
        "prediction sets calibrated on validation rows",
        (
            '        y, subgroup = context.truth("calibration"), context.subgroups.get("calibration")\n'
            "        subgroup = None if subgroup is None else brought(subgroup, y.device)\n"
            '        probs = mean_probs(asked(self.base, down, state, context, "calibration"))\n'
        ),
        (
            '        y, subgroup = context.validation.y, context.subgroups.get("validation")\n'
            "        subgroup = None if subgroup is None else brought(subgroup, y.device)\n"
            '        probs = mean_probs(asked(self.base, down, state, context, "validation"))\n'
        ),
        "test_prediction_sets wrappers uncertainty",
    ),
    Fault(
        "conformal quantile is one score too low",
        "float(ordered[index - 1])",
        "float(ordered[index - 2])",
        "test_measures uncertainty wrappers",
    ),
    Fault(
        "temperature inverted",
        "logits = inverse_temperature * self.probs.double().log()",
        "logits = self.probs.double().log() / inverse_temperature",
        "test_measures test_temperature_scaling uncertainty core wrappers",
    ),
    Fault(
        "log-evidence ranks inputs the wrong way round",
        '{"log_evidence": -self.log_evidence}',
        '{"log_evidence": self.log_evidence}',
        "test_measures uncertainty core methods wrappers",
    ),
    Fault(
        "score at the threshold is abstained from",
        "answer.score(self.score) <= limit",
        "answer.score(self.score) < limit",
        "test_switched wrappers",
    ),
    Fault(
        "histograms of silos merged without their counts",
        "return self.stack(group, name).sum(0)",
        "return self.stack(group, name).amax(0)",
        "test_switched wrappers",
    ),
    Fault(
        "Dirichlet parameters without the prior's 1",
        "return _log1p_exp(log_evidence)\n",
        "return log_evidence\n",
        "test_opinions uncertainty methods",
    ),
    Fault(
        "Dempster's rule without its normalisation",
        "a + b - math.log(a.shape[-1])",
        "a + b",
        "test_opinions uncertainty methods",
    ),
    Fault(
        "training stops at the highest validation loss",
        "best is None or loss < best",
        "best is None or loss > best",
        "test_stopping runs",
    ),
    Fault(
        "momentum kept between rounds is lost",
        "return update, after | {MOMENTS: moments}",
        "return update, after",
        "test_training_options wrappers training",
    ),
    Fault(
        "hash of a silo's state is not checked",
        "if sum_of_bytes(data).sha256 != kept.sha256:",
        "if not data:",
        "test_checkpoints files runs",
    ),
    Fault(
        "momentum accepted where SCAFFOLD refuses it",
        'training.optimizer != "sgd" or training.momentum or',
        'training.optimizer != "sgd" or',
        "test_methods methods config runs",
    ),
    Fault(
        "bound on the norm of updates not applied",
        "1 / max(1.0, each) for part, each in over.items()",
        "1.0 for part, each in over.items()",
        "test_norm_bounding engines",
    ),
    Fault(
        "noise divided among too many silos",
        "self.noise_multiplier * self.clip_norm / math.sqrt(self.silos)",
        "self.noise_multiplier * self.clip_norm / self.silos",
        "test_privacy_noise wrappers",
    ),
)


def copied(tree: Path, folder: Path) -> Path:
    """A copy of a checkout without what git ignores."""
    return Path(shutil.copytree(tree, folder / "tree", ignore=LEFT_OUT))


def plant(fault: Fault, tree: Path) -> tuple[Path, str]:
    """Edit the sources; return the file and its text before.

    Raises LookupError unless the fault's old text is in the sources exactly once.
    """
    found = [(path, text) for path in (tree / "src").rglob("*.py") if fault.old in (text := path.read_text())]
    if len(found) != 1 or found[0][1].count(fault.old) != 1:
        raise LookupError(f"{fault.name}: {fault.old!r} is in {[str(path) for path, _ in found]}, expected once")
    ((path, text),) = found
    path.write_text(text.replace(fault.old, fault.new))
    return path, text


def places(fault: Fault, tree: Path) -> list[list[str]]:
    """The files of a fault's tests, and then their folders. A missing file is left out, as its folder has its tests."""
    tests, names = tree / "tests", fault.tests.split()
    files = [path for name in names if name.startswith("test_") for path in tests.rglob(f"{name}.py")]
    folders = [tests / name for name in names if not name.startswith("test_")]
    return [[str(path.relative_to(tree)) for path in paths] for paths in (files, folders) if paths]


def tested(tree: Path, tests: list[str]) -> tuple[int, str]:
    """The status of pytest on the short tests of a tree, and the first test that fails."""
    command = [sys.executable, "-m", "pytest", "-qx", "-m", "not long", "-p", "no:cacheprovider", "-rfE", *tests]
    environment = os.environ | {"PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    done = subprocess.run(command, cwd=tree, env=environment, text=True, capture_output=True)
    failed = re.search(r"^(?:FAILED|ERROR) (\S+::\S+(?:\[.*?\])?)(?: - |$)", done.stdout, re.MULTILINE)
    return done.returncode, failed[1] if failed else done.stdout[-2000:]


def tried(fault: Fault, tree: Path) -> str:
    """What comes of one fault: "found", "NOT FOUND", or why neither can be said."""
    began = time.monotonic()
    with TemporaryDirectory(prefix="caveat-planted-") as folder:
        copy = copied(tree, Path(folder))
        path, before = plant(fault, copy)
        for tests in places(fault, copy):
            status, test = tested(copy, tests)
            if status != 0:
                break
        seconds = time.monotonic() - began
        if status == 0:
            return f"NOT FOUND  {seconds:5.0f} s"
        path.write_text(before)
        if status != 1 or tested(copy, [test])[0] != 0:
            return f"UNDECIDED: status {status}, or this fails without the fault too: {test}"
        return f"found      {seconds:5.0f} s  {test}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", type=Path, default=HERE, help="the checkout to plant faults in, which stays as it is")
    parser.add_argument("--only", default="", help="names of faults, separated by commas")
    given = parser.parse_args()
    chosen = [fault for fault in FAULTS if not given.only or fault.name in given.only.split(",")]
    results = []
    for fault in chosen:
        results.append(tried(fault, given.tree.resolve()))
        print(f"{fault.name:<50} {results[-1]}", flush=True)
    found = sum(result.startswith("found") for result in results)
    print(f"{found} of {len(results)} found")
    return int(found != len(results))


if __name__ == "__main__":
    sys.exit(main())
