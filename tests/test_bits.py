"""That no result changes a bit: what tests/bits_rows.py runs, compared with the hashes in tests/bits.json.

This is for changes that are to change no result: moved modules, new names, shorter code. Who changes bits on purpose
runs `python tests/test_bits.py`, which makes the file anew and says what is different, and gives the reason in the
commit. The test itself never writes the file. Bits depend on torch and on the CPU: where these are others than the
file's, nothing is compared.

A hash is of what a result says: of names, types, shapes and bytes of tensors, and of the values in JSON files, without
times, versions and the names of classes. Only what users have is imported, and nothing that can move.
"""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from bits_rows import AUDITED, COMPARED, METHODS, ROWS, settings, write_data
from commands import caveat, sets
from safetensors import safe_open
from torch import Tensor

import caveat as library

FILE = Path(__file__).with_name("bits.json")
AGAIN = "python tests/test_bits.py"
IGNORED = {"seconds", "schema", "version", "command", "recipe", "image"}
"""Keys of JSON files: times, what says which version wrote a file, paths, and pictures of what is hashed anyway."""
ROUNDED = {"low", "high", "p", "p_holm", "probability_by_chance"}
"""Keys of intervals and p-values, which another SciPy may give with another last digit."""
NO_RESULT = {"call", "settings", "data"}
"""Files that say what was asked for, and what was not looked at."""
SUMS = {"files", "sha256"}
"""Keys of a file itself that are of bytes, times among them."""
Hashes = dict[str, str]


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
    parts = {"probs": prediction.probs, "decision": prediction.decision, "answerer": prediction.answerer}
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
    out = carried_out("audit", folder, AUDITED, "--seeds", "0,1", "--shares", "1/2,1")
    return {"audit": of_document(out / "audit.json")}


def in_python(folder: Path) -> Hashes:
    """Arrays, and every argument that the command line has too."""
    x = np.sin(np.arange(3 * 120 * 4)).reshape(3, 120, 4)
    silos = library.data.from_arrays({f"ward-{k}": (x[k] + k, (x[k].sum(1) > 0).astype(int)) for k in range(3)})
    run = library.run(
        silos, library.FedProx(mu=0.1), rounds=3, seed=3, workers=2, out=folder, every=2, measured=1,
        model=library.ModelSettings(name="mlp", width=8, features=4, hidden=8), newcomers=["ward-2"],
        training=library.Training(batch_size=16, lr=0.01, local_steps=5), participation=0.5, min_silos=2,
        privacy=library.Privacy(clip=1.0, noise=0.1),
        uncertainty=library.Uncertainty(policy="switch", abstain=0.2),
    )  # fmt: skip
    return of_run(run)


CASES: dict[str, Callable[[Path], Hashes]] = {
    **{name: partial(row, name) for name in ROWS},
    "in Python": in_python,
    "comparison": comparison,
    "audit": audit,
}


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


def recorded() -> dict[str, Any]:
    record: dict[str, Any] = json.loads(FILE.read_text())
    return record


@pytest.mark.parametrize("name", CASES)
def test_no_bit_has_changed(name: str, nowhere: Path) -> None:
    record, here = recorded(), machine()
    if (there := record["machine"]) != here:
        pytest.skip(f"{FILE.name} was made with {told(there)}, but here is {told(here)}, where bits can be others")
    found = differences(record["hashes"][name], CASES[name](nowhere))
    if found:
        pytest.fail(
            f"{name}: other bits of {'; '.join(found)}\nIf on purpose, run `{AGAIN}` and say why", pytrace=False
        )


def test_every_method_is_compared_and_all_that_is_compared_has_hashes() -> None:
    methods = {line.split()[0] for line in caveat("list", "methods").stdout.splitlines()}
    assert methods == set(METHODS)
    assert list(recorded()["hashes"]) == list(CASES)


def main() -> None:
    """Make the file anew, and say what differs from the one before."""
    before = recorded()["hashes"] if FILE.exists() else {}
    hashes: dict[str, Hashes] = {}
    for name, case in CASES.items():
        with TemporaryDirectory(prefix="caveat-bits-") as folder:
            hashes[name] = dict(sorted(case(Path(folder)).items()))
        found = differences(before[name], hashes[name]) if name in before else ["everything, for it is new"]
        print(f"{name}: {'other bits of ' * bool(found)}{'; '.join(found) or 'same bits'}", file=sys.stderr)
    FILE.write_text(json.dumps({"machine": machine(), "hashes": hashes}, indent=1) + "\n")


if __name__ == "__main__":
    main()
