"""npz files that are wrong: damaged, of other types and shapes, claiming what is not there, or holding a program."""

from __future__ import annotations

import io
import json
import os
import pickle
import random
import warnings
import zipfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import numpy as np

from . import actions
from .children import Ended, in_child
from .fuzz import Trial, good_run, run
from .fuzz_tables import SETS as OF_TABLES
from .material import scratch

SETS = [item for item in OF_TABLES if item not in ("data.target=ill", "data.silo_column=ward")]
SETS += ["data.n_silos=2", "data.samples_per_silo=20"]
Arrays = dict[str, np.ndarray]
ODD_LABELS: list[object] = [-1, 2**63 - 1, 10**9, 255]


def arrays() -> Arrays:
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (60, 6, 6), dtype=np.uint8), np.arange(60) % 3
    return {"x_train": x[:40], "y_train": y[:40], "x_test": x[40:], "y_test": y[40:]}


class Touching:
    """What makes a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


def other_type(found: Arrays, choose: random.Random, place: Path) -> None:
    name = choose.choice(list(found))
    kind = choose.choice(["float64", "float32", "int64", "uint16", "complex64", "U8", "S8", "bool", "M8[s]", "V4", "?"])
    found[name] = found[name].astype("V4" if kind == "V4" else kind)


def other_shape(found: Arrays, choose: random.Random, place: Path) -> None:
    name = choose.choice(list(found))
    x = found[name]
    found[name] = choose.choice([x[:-1], x[:0], x[..., None], x[None], x.reshape(-1), x[0], x.T, x[:, None], x[:1]])


def not_finite(found: Arrays, choose: random.Random, place: Path) -> None:
    for name in ("x_train", "x_test"):
        found[name] = found[name].reshape(len(found[name]), -1).astype(np.float32)
    found["x_train"][choose.randrange(40), choose.randrange(36)] = choose.choice([np.nan, np.inf, -np.inf])


def odd_labels(found: Arrays, choose: random.Random, place: Path) -> None:
    found["y_train"] = found["y_train"].copy()
    found["y_train"][choose.randrange(40)] = choose.choice(ODD_LABELS)
    if choose.random() < 0.3:
        found["y_train"] = found["y_train"].astype(choose.choice(["float64", "uint64"]))


def without(found: Arrays, choose: random.Random, place: Path) -> None:
    del found[choose.choice(list(found))]


def renamed(found: Arrays, choose: random.Random, place: Path) -> None:
    name = choose.choice(list(found))
    found[choose.choice(["x", "X_train", "../x", "y", "classes", "é"])] = found.pop(name)


def a_program(found: Arrays, choose: random.Random, place: Path) -> None:
    value = np.empty(1, dtype=object)
    value[0] = Touching(place / "outside" / "ran")
    found[choose.choice(list(found))] = value


MUTATIONS: dict[str, Callable[[Arrays, random.Random, Path], None]] = {
    each.__name__: each for each in (other_type, other_shape, not_finite, odd_labels, without, renamed, a_program)
}


def flip(data: bytes, choose: random.Random, place: Path) -> bytes:
    bit = choose.randrange(8 * len(data))
    return data[: bit // 8] + bytes([data[bit // 8] ^ 1 << bit % 8]) + data[bit // 8 + 1 :]


def cut(data: bytes, choose: random.Random, place: Path) -> bytes:
    return data[: choose.choice([0, 1, len(data) // 2, len(data) - 1])]


def other_file(data: bytes, choose: random.Random, place: Path) -> bytes:
    return choose.choice(
        [b"x,y\n1,2\n", b"\x00" * 4000, pickle.dumps(Touching(place / "outside" / "ran")), b"PK\x03\x04"]
    )


def bad_header(data: bytes, choose: random.Random, place: Path) -> bytes:
    """An array's header says what is not so: more than there is, a type that is none, or code."""
    shape = choose.choice(["(40, 1000000, 1000000)", "(-1, 6, 6)", "(2147483647,)", "()", "(40, 6, 6", "(40.5, 6)"])
    kind = choose.choice(["'|u1'", "'<f8'", "'O'", "'<x9'", f"__import__('os').mkdir('{place}/outside/ran')"])
    header = f"{{'descr': {kind}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    array = b"\x93NUMPY\x01\x00" + (len(header) + 1).to_bytes(2, "little") + header + b"\n" + bytes(1440)
    return _with_member(data, choose, array)


def bomb(data: bytes, choose: random.Random, place: Path) -> bytes:
    """A member that is small in the file and large in memory."""
    header = b"{'descr': '|u1', 'fortran_order': False, 'shape': (3000000000,), }\n"
    array = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(50_000_000)
    return _with_member(data, choose, array)


def doubled(data: bytes, choose: random.Random, place: Path) -> bytes:
    """Two arrays of one name."""
    buffer = io.BytesIO(data)
    with zipfile.ZipFile(buffer, "a") as found, warnings.catch_warnings(action="ignore"):
        one, other = choose.sample(found.namelist(), 2)
        found.writestr(one, found.read(other))
    return buffer.getvalue()


def _with_member(data: bytes, choose: random.Random, array: bytes) -> bytes:
    found, buffer = zipfile.ZipFile(io.BytesIO(data)), io.BytesIO()
    replaced = choose.choice(found.namelist())
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as target:
        for name in found.namelist():
            target.writestr(name, array if name == replaced else found.read(name))
    return buffer.getvalue()


OF_BYTES = {each.__name__: each for each in (flip, cut, other_file, bad_header, bomb, doubled)}


def damaged(found: Arrays, choose: random.Random, place: Path, file: Path) -> str:
    """Write arrays to a file, after something was done to either; returns what."""
    kind = choose.choice([*MUTATIONS, *OF_BYTES, "flip", "flip"])
    if kind in MUTATIONS:
        MUTATIONS[kind](found, choose, place)
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=True, **found)  # type: ignore[arg-type]
    data = buffer.getvalue()
    file.write_bytes(OF_BYTES[kind](data, choose, place) if kind in OF_BYTES else data)
    return kind


def _write_good(folder: Path) -> str:
    np.savez(folder / "good.npz", **arrays())  # type: ignore[arg-type]
    return f"npz:{folder / 'good.npz'}"


@cache
def _good_splits(process: int) -> object:
    return _splits(good_run("npz", _write_good, *SETS))


def _splits(folder: Path) -> dict[str, dict[str, object]]:
    """What the silos of a run have, without the domain, which is called as the file is."""
    found = json.loads((folder / "splits.json").read_text())
    return {silo: {key: value for key, value in each.items() if key != "domain"} for silo, each in found.items()}


def trained(choose: random.Random, place: Path) -> Trial:
    """A run on a bad npz file: refused; or accepted, and then a damaged file was read as the undamaged one."""
    file = place / "arrays.npz"
    kind = damaged(arrays(), choose, place, file)

    def accepted(ended: Ended) -> str:
        if kind not in OF_BYTES:
            return ""
        same = _splits(place / "run") == _good_splits(os.getpid())
        return "" if same else "another content is taken"

    call = run(place / "run", f"data.source=npz:{file}", *SETS)
    return Trial(call, {"arrays.npz", "data.", "samples", "silo"}, kind, accepted)


def predicted(choose: random.Random, place: Path) -> Trial:
    """Predictions for a bad npz file: as many rows as inputs, or refused."""
    file = place / "arrays.npz"
    kind = damaged(arrays(), choose, place, file)
    good = good_run("npz", _write_good, *SETS)

    def accepted(ended: Ended) -> str:
        count = len(ended.out.splitlines()) - 1
        with np.load(file) as found:  # "x" comes first, then "x_test"
            expected = len(next(found[name] for name in ("x", "x_test", "x_train") if name in found))
        return "" if count == expected > 0 else f"{count} rows for {expected} inputs"

    call = lambda: actions.command("predict", good, file, "--silo", "silo-1")  # noqa: E731
    return Trial(call, {"arrays.npz"}, kind, accepted)


def source_of_a_run(choose: random.Random, place: Path) -> Trial:
    """The data of a run are others when it is opened again: refused where they are read, unless what was read is the
    same. Predictions read none of them.
    """
    good = good_run("npz", _write_good, *SETS)
    source = scratch(os.getpid()) / "store" / "good-npz" / "good.npz"
    good_bytes = source.read_bytes()
    kind = damaged(arrays(), choose, place, place / "damaged.npz")
    action = choose.choice(["predict", "load", "resume"])
    np.savez(place / "x.npz", x=arrays()["x_test"])
    predict = partial(actions.command, "predict", good, place / "x.npz", "--silo", "silo-1")

    def call() -> None:
        source.write_bytes((place / "damaged.npz").read_bytes())
        try:
            if action == "predict":
                predict()
            else:
                actions.ACTIONS[action](None, good)  # type: ignore[arg-type]
        finally:
            source.write_bytes(good_bytes)

    def accepted(ended: Ended) -> str:
        if action == "predict":
            return "" if ended.out == in_child(predict).out else "other data make other predictions"
        with np.load(place / "damaged.npz") as found:
            # Axes of one entry may be there or not: the images are the same.
            same = all(n in found and np.array_equal(found[n].squeeze(), array) for n, array in arrays().items())
        return "" if same else f"{action} takes other data than the run had"

    return Trial(call, {"good.npz", "splits.json", "data"}, f"{kind}, {action}", accepted)


FAMILIES = {"npz": trained, "predict-npz": predicted, "source": source_of_a_run}
