"""That no result changes a bit: what tests/bits_rows.py runs, compared with the hashes in tests/bits.json.

This protects changes that must not change a result: moved modules, new names, shorter code. Bits depend on the
processor and on the versions of torch, NumPy, SciPy and scikit-learn, so the file holds one record per machine. A
machine without a record compares nothing, and one line at the end of the tests says so. `python tests/test_bits.py`
adds or updates the record of the machine that it runs on and prints what differs; the tests never write the file. Add
a record from a clean checkout of `main`. After an intended change of results, give the reason in the commit: the script
then removes the outdated hashes of all other machines, which add theirs again in the same way.

A hash is of what a result says: of names, types, shapes and bytes of tensors, and of the values in JSON files, without
times, versions and the names of classes. Only what users have is imported, and nothing that can move.
"""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from bits_rows import AUDITED, COMPARED, METHODS, ROWS, VARIANTS, settings, write_data
from commands import caveat, sets
from safetensors import safe_open
from sampled import sampled
from torch import Tensor

import caveat as library

FILE = Path(__file__).with_name("bits.json")
AGAIN = "make bits"
IGNORED = {"seconds", "schema", "version", "command", "recipe", "image", "max_uncertainty",
           "source_row", "row_values", "against_baseline"}  # fmt: skip
"""Keys of JSON files: times, what says which version wrote a file, paths, and what follows from what is hashed."""
ROUNDED = {"low", "high", "p", "p_adjusted", "probability_by_chance"}
"""Keys of intervals and p-values, which another SciPy may give with another last digit."""
NO_RESULT = {"run"}
"""Files that say what was asked for, and what was not looked at."""
SUMS = {"files", "sha256"}
"""Keys of a file itself that are of bytes, times among them."""
Hashes = dict[str, str]
Record = dict[str, Any]
"""A machine, and the hashes of every case on it."""


# Hashes


def of_tensors(named: Mapping[str, Tensor], *about: object) -> str:
    digest = hashlib.sha256(repr(about).encode())
    for name, tensor in sorted(named.items()):
        digest.update(repr((name, str(tensor.dtype), tuple(tensor.shape))).encode())
        digest.update(tensor.detach().flatten().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def of_states(files: Iterable[Path]) -> str:
    """Of safetensors files and their names, whatever the order of tensors in them."""
    found = []
    for path in sorted(files):
        with safe_open(path, "pt") as file:
            found.append((path.name, of_tensors({key: file.get_tensor(key) for key in file.keys()}, file.metadata())))  # noqa: SIM118
    return of_json(found)


def of_json(value: Any) -> str:
    return hashlib.sha256(json.dumps(plain(value)).encode()).hexdigest()


def of_document(path: Path) -> str:
    return of_json(json.loads(path.read_text()))


def of_lines(path: Path) -> str:
    return of_json([json.loads(line) for line in path.read_text().splitlines()])


def plain(value: Any, key: str = "") -> Any:
    """JSON without what may differ from run to run, and without the names of classes."""
    if isinstance(value, dict):
        ignored = IGNORED | ({"name"} if key == "method" else set())
        return {name: plain(each, name) for name, each in value.items() if name not in ignored}
    if isinstance(value, list | tuple):
        return [plain(each, key) for each in value]
    return float(f"{value:.6g}") if key in ROUNDED and isinstance(value, float) else value


def of_prediction(prediction: library.Prediction) -> str:
    optional = {"log_evidence": prediction.log_evidence, "sets": prediction.sets, "source": prediction.source}
    parts = {"probs": prediction.probs, "decision": prediction.decision, "answered_by": prediction.answered_by}
    scores = {f"score {name}": values for name, values in prediction.scores.items()}
    return of_tensors(parts | scores | {name: values for name, values in optional.items() if values is not None})


def of_run(run: library.Run) -> Hashes:
    """Everything that a run leaves and answers, one hash each."""
    folder = run.folder
    written = {path.stem: of_json(said(path)) for path in folder.glob("*.json") if path.stem not in NO_RESULT}
    lines = {path.stem: of_lines(path) for path in folder.glob("*.jsonl")}
    states = {
        f"state of {each.name}": of_states(each.glob("*.safetensors")) for each in (folder / "state/silos").glob("*")
    }
    return {
        **written, **lines, **states, **of_answers(run),
        "model": of_states([folder / "model" / "model.safetensors"]),
        "description of the model": of_document(folder / "model" / "model.json"),
        "state of the server": of_states((folder / "state").glob("*.safetensors")),
    }  # fmt: skip


def said(path: Path) -> dict[str, Any]:
    """What a JSON file says, without hashes of files."""
    return {key: value for key, value in json.loads(path.read_text()).items() if key not in SUMS}


def of_answers(run: library.Run) -> Hashes:
    """Of a few inputs of every silo: what is decided in the end, and what each model at hand says."""
    found = {}
    for silo in run.silos:
        inputs = torch.cat([data.x[:6] for data in (silo.test, *silo.streams.values())])
        found[f"predictor of {silo.name}"] = of_prediction(run.predictor(silo.name)(inputs))
        answers = run.answers(silo.name)(inputs)
        found[f"answers of {silo.name}"] = of_json({whose.name: of_prediction(each) for whose, each in answers.items()})
    return found


# What is run


def carried_out(command: str, folder: Path, text: str, *options: str) -> Path:
    """What one command of the command line has left."""
    # Imports sympy, which FedPN's workers would otherwise all import for themselves, in a second of CPU time each.
    torch.broadcast_shapes((1,), (1,))
    given = (command, write_data(folder), *sets(*settings(text, folder)), *options)
    result = caveat(*given, "--out", folder / "out", "--quiet")
    assert result.exit_code == 0, result.output
    return folder / "out"


def row(name: str, folder: Path) -> Hashes:
    return of_run(library.load(carried_out("run", folder, ROWS[name])))


def comparison(folder: Path) -> Hashes:
    out = carried_out("compare", folder, COMPARED, "--methods", "fedavg,fedper", "--seeds", "0,1")
    return {"comparison": of_document(out / "comparison.json")}


def audit(folder: Path) -> Hashes:
    out = carried_out("audit", folder, AUDITED, "--seeds", "0,1", "--fractions", "1/2,1")
    return {"audit": of_document(out / "audit.json")}


def in_python(folder: Path) -> Hashes:
    """Arrays, and every argument that the command line has too."""
    x = np.sin(np.arange(3 * 120 * 4)).reshape(3, 120, 4)
    silos = library.data.from_arrays({f"ward-{k}": (x[k] + k, (x[k].sum(1) > 0).astype(int)) for k in range(3)})
    run = library.run(
        silos, library.FedProx(mu=0.1), rounds=3, seed=3, workers=2, out=folder, every=2, n_silos=1,
        model=library.ModelSettings(name="mlp", width=8, features=4, hidden=8), newcomers=["ward-2"],
        training=library.Training(batch_size=16, lr=0.01, local_steps=5), participation=0.5, min_silos=2,
        privacy=library.Privacy(clip_norm=1.0, noise_multiplier=0.1),
        uncertainty=library.Uncertainty(policy="switch", abstain_rate=0.2),
    )  # fmt: skip
    return of_run(run)


CASES: dict[str, Callable[[Path], Hashes]] = {
    **{name: partial(row, name) for name in ROWS},
    "in Python": in_python,
    "comparison": comparison,
    "audit": audit,
}
LONG = {*VARIANTS, *(each.values[0] for each in sampled(METHODS) if each.marks)}
"""Rows of `make test-long`: methods and variants of them that have no mechanism of their own."""


# The comparison with the file


def machine() -> dict[str, str]:
    """What decides bits beside the code: the libraries that compute, and what kernels they find for a processor."""
    libraries = {name: metadata.version(name) for name in ("numpy", "scipy", "scikit-learn")}
    return {"torch": torch.__version__, "cpu": torch.backends.cpu.get_cpu_capability(), "vendor": vendor(), **libraries}


def vendor() -> str:
    """Who made the processor, where the system says so: the same instructions have other kernels."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("vendor_id")), platform.machine())


def told(parts: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in parts.items())


def differences(expected: Hashes, found: Hashes) -> list[str]:
    """What is another, what is missing, and what is new."""
    return [
        f"{name}{' is missing' if name not in found else ' is new' if name not in expected else ''}"
        for name in sorted({*expected, *found})
        if expected.get(name) != found.get(name)
    ]


def recorded() -> list[Record]:
    """All records of the file."""
    records: list[Record] = json.loads(FILE.read_text())
    return records


def hashes_of(machine: Mapping[str, str], records: Sequence[Record]) -> dict[str, Hashes]:
    """The hashes by case that a machine has to reproduce; none where no record is of such a machine."""
    return next((record["hashes"] for record in records if record["machine"] == machine), {})


def updated(records: Sequence[Record], here: Mapping[str, str], new: Mapping[str, Hashes]) -> list[Record]:
    """The records with this machine's new hashes, without what these show to be outdated in the records of others."""
    before = hashes_of(here, records)
    outdated = {name for name in before if before[name] != new.get(name)}
    others = [
        {**record, "hashes": {name: each for name, each in record["hashes"].items() if name not in outdated}}
        for record in records
        if record["machine"] != here
    ]
    return sorted([*others, {"machine": dict(here), "hashes": dict(new)}], key=lambda record: told(record["machine"]))


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.long if name in LONG else ()) for name in CASES])
def test_no_bit_has_changed(name: str, nowhere: Path) -> None:
    here = machine()
    expected = hashes_of(here, recorded()).get(name)
    if expected is None:
        pytest.skip(f"{FILE.name} has no hashes for {told(here)}; `{AGAIN}` adds them, see CONTRIBUTING.md")
    found = differences(expected, CASES[name](nowhere))
    if found:
        pytest.fail(
            f"{name}: other bits of {'; '.join(found)}\nIf on purpose, run `{AGAIN}` and say why", pytrace=False
        )


def test_every_method_is_compared_and_a_machine_has_hashes_of_everything() -> None:
    methods = {line.split()[0] for line in caveat("list", "methods").stdout.splitlines()}
    assert methods == set(METHODS)
    assert any(list(record["hashes"]) == list(CASES) for record in recorded())


def test_a_changed_result_removes_the_hashes_of_other_machines_and_a_new_machine_removes_none() -> None:
    one, other, new = {"cpu": "AVX512"}, {"cpu": "AVX2"}, {"cpu": "NEON"}
    hashes = {"local": {"model": "a"}, "fedavg": {"model": "b"}}
    records = [{"machine": one, "hashes": hashes}, {"machine": other, "hashes": hashes}]
    changed = updated(records, one, {"local": {"model": "a"}, "fedavg": {"model": "c"}, "fedprox": {"model": "d"}})
    assert hashes_of(other, changed) == {"local": {"model": "a"}}
    assert hashes_of(one, changed)["fedavg"] == {"model": "c"}
    assert hashes_of(new, changed) == {}
    assert hashes_of(one, updated(records, new, {})) == hashes_of(other, updated(records, new, {})) == hashes


def main() -> None:
    """Update the record of this machine, and print what differs from the one before."""
    records, here = recorded() if FILE.exists() else [], machine()
    before, hashes = hashes_of(here, records), dict[str, Hashes]()
    for name, case in CASES.items():
        with TemporaryDirectory(prefix="caveat-bits-") as folder:
            hashes[name] = dict(sorted(case(Path(folder)).items()))
        found = differences(before[name], hashes[name]) if name in before else ["everything, for it is new"]
        print(f"{name}: {'other bits of ' * bool(found)}{'; '.join(found) or 'same bits'}", file=sys.stderr)
    FILE.write_text(json.dumps(updated(records, here, hashes), indent=1) + "\n")


if __name__ == "__main__":
    main()
