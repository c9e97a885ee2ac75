"""Inputs that are read as they are needed are those that memory would hold, and are never held whole."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from data_samples import write_images
from sampled import different

import caveat
from caveat import data
from caveat.core import CaveatError, ConfigurationError, DataError, RunError
from caveat.data.lazy_rows import ArrayRows, LazyInputs
from caveat.data.raw_samples import Array
from caveat.data.settings import DataSettings
from caveat.data.silo_collection import Silos
from caveat.data.splits import NAMES
from caveat.data.user_data import from_arrays, from_datasets
from caveat.methods import METHODS
from caveat.runs.fixed_size_batches import FEW, filled

RNG = np.random.default_rng(0)
N = 80
Y = np.arange(N) % 2
ARRAYS: dict[str, Array] = {
    "features": (RNG.normal(size=(N, 5)) + Y[:, None]).astype(np.float32),
    "images": RNG.integers(0, 256, (N, 8, 8, 3), dtype=np.uint8),
    "tokens": RNG.integers(0, 40, (N, 6)),
    "series": RNG.normal(size=(N, 6, 2)).astype(np.float32),
}
METHOD = caveat.FedAvg(rounds=2, training=caveat.Training(batch_size=8))


def write_npy(folder: Path, kind: str, silos: int = 2) -> Path:
    for silo in range(silos):
        (folder / f"silo-{silo}").mkdir(parents=True)
        np.save(folder / f"silo-{silo}" / "x.npy", ARRAYS[kind][silo::silos])
        np.save(folder / f"silo-{silo}" / "y.npy", Y.reshape(-1, 2)[silo::silos].ravel())
    return folder


def both(folder: Path, kind: Any) -> tuple[Silos, Silos]:
    """The same silos, in memory and read as needed."""
    path = write_npy(folder, kind)
    lazily = data.load(DataSettings(source=f"npy:{path}", kind=kind), 0)
    names = [silo.name for silo in lazily]
    arrays = {name: (np.load(path / name / "x.npy"), np.load(path / name / "y.npy")) for name in names}
    return from_arrays(arrays, kind=kind), lazily


@pytest.mark.parametrize("kind", ARRAYS)
def test_what_is_read_is_what_memory_would_hold(kind: str, tmp_path: Path) -> None:
    held, lazily = both(tmp_path, kind)
    assert (lazily.shape, lazily.dtype, lazily.normalize) == (held.shape, held.dtype, held.normalize)
    assert data.splits_record(lazily) == data.splits_record(held)
    for one, other in zip(held, lazily, strict=True):
        for name in NAMES:
            assert isinstance(getattr(other, name).x, LazyInputs)
            assert torch.equal(getattr(one, name).x, getattr(other, name).x[:])
    lazily.check(8)


@pytest.mark.parametrize("method", different(METHODS))
@pytest.mark.long
def test_a_run_has_the_same_bits_and_holds_no_split_whole(method: str, tmp_path: Path) -> None:
    held, lazily = both(tmp_path / "data", "images")
    optimizer: Any = "sgd" if method in ("scaffold", "feddc") else "adam"
    made = METHODS[method](rounds=2, training=caveat.Training(batch_size=8, optimizer=optimizer))
    model = caveat.ModelSettings(name="cnn", width=4)
    first = caveat.run(held, made, model=model, out=tmp_path / "held")
    with patch.object(LazyInputs, "whole", side_effect=AssertionError("a split was read whole")):
        second = caveat.run(lazily, made, model=model, out=tmp_path / "lazily")
        said = second.predictor("silo-0")(lazily[0].test.x)
    assert torch.equal(first.predictor("silo-0")(held[0].test.x).probs, said.probs)
    for name in ("splits.json", "gallery.json"):
        assert (first.folder / name).read_text() == (second.folder / name).read_text()


def test_batches_read_no_more_rows_than_they_have(tmp_path: Path) -> None:
    _, lazily = both(tmp_path, "tokens")
    read: list[int] = []
    original = ArrayRows.read

    def counted(rows: ArrayRows, index: Any) -> Array:
        read.append(len(index))
        return original(rows, index)

    with patch.object(ArrayRows, "read", counted):
        x, _ = lazily[0].train.batch(torch.tensor([3, 1, 3]))
        parts = torch.split(lazily[0].train.x, 7)
        assert read == [3]
        sizes = [len(part) for part in parts]
    assert read == [3, *sizes]
    assert sum(sizes) == len(lazily[0].train)
    assert torch.equal(x[0], x[2])


def test_lazy_inputs_do_what_is_asked_of_tensors(tmp_path: Path) -> None:
    held, lazily = both(tmp_path, "features")
    x, known = lazily[0].train.x, held[0].train.x
    assert torch.equal(x[2], known[2])
    assert torch.equal(x[-1], known[-1])
    assert torch.equal(x[3:5, 1], known[3:5, 1])
    assert torch.equal(x[known[:, 0] > 0], known[known[:, 0] > 0])
    assert torch.equal(torch.cat([x, x]), torch.cat([known, known]))
    assert torch.equal(torch.nn.functional.linear(x, torch.ones(1, 5)), known @ torch.ones(5, 1))
    assert torch.equal(x.flatten(1), known)
    assert torch.equal(torch.stack(list(x)), known)
    assert (len(x), x.shape, x.ndim, x.size(1)) == (len(known), known.shape, 2, 5)
    assert float(x.min()) == float(known.min())
    with pytest.raises(AttributeError):
        x.no_such_method  # noqa: B018


def test_mapped_arrays_can_be_given_with_a_test_part(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", ARRAYS["features"])
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    tested = ARRAYS["features"][:20] + 1
    held = from_arrays({"a": (ARRAYS["features"], Y, tested, Y[:20])})
    lazily = from_arrays({"a": (mapped, Y, tested, Y[:20])})
    assert isinstance(lazily["a"].test.x, LazyInputs)
    assert data.splits_record(lazily) == data.splits_record(held)


def test_a_survey_counts_what_is_mapped(tmp_path: Path) -> None:
    found = data.survey(str(write_npy(tmp_path, "series")), kind="series")
    assert (found["source"], found["shape"], found["in_silos"]) == (f"npy:{tmp_path}", [6, 2], True)
    assert [part["class_counts"] for part in found["parts"]] == [[20, 20], [20, 20]]


def test_streams_are_drawn_from_lazy_silos(tmp_path: Path) -> None:
    held, lazily = both(tmp_path, "features")
    drawn = [data.with_streams(s, ood_global=ARRAYS["features"] * 9, per_silo=5) for s in (held, lazily)]
    assert torch.equal(*(silos[0].streams["ood_global"].x for silos in drawn))


@pytest.mark.parametrize("size", [None, 5])
def test_images_of_folders_are_decoded_when_they_are_needed(tmp_path: Path, size: int | None) -> None:
    folder = write_images(tmp_path, {"east": {"cat": 8, "dog": 8}, "west": {"dog": 8, "cat": 8}})
    found = [data.load(DataSettings(source=f"images:{folder}", size=size, lazy=lazy), 0) for lazy in (False, True)]
    assert isinstance(found[1][0].train.x, LazyInputs)
    assert data.splits_record(found[0]) == data.splits_record(found[1])
    assert np.array_equal(found[0].to_image(found[0][1].test.x[0]), found[1].to_image(found[1][1].test.x[0]))
    (folder / "west" / "cat" / "000.png").write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"000\.png"):
        data.load(DataSettings(source=f"images:{folder}", size=size, lazy=True), 0)


def test_an_image_that_is_replaced_while_it_is_read_is_noticed(tmp_path: Path) -> None:
    folder = write_images(tmp_path, {"east": {"cat": 8, "dog": 8}, "west": {"dog": 8, "cat": 8}})
    silos = data.load(DataSettings(source=f"images:{folder}", lazy=True), 0)
    for file in sorted((folder / "east").rglob("*.png")):
        before = file.stat()
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns + 1_000_000))
    with pytest.raises(DataError, match=r"\.png changed while caveat was reading it"):
        silos.silos[0].train.x[:1]


def no_y(folder: Path) -> None:
    (folder / "silo-1" / "y.npy").unlink()


def cut_short(folder: Path) -> None:
    path = folder / "silo-1" / "x.npy"
    path.write_bytes(path.read_bytes()[:-9])


def pickled(folder: Path) -> None:
    np.save(folder / "silo-1" / "x.npy", np.array([None] * 40), allow_pickle=True)


def holed(folder: Path) -> None:
    x = np.load(folder / "silo-1" / "x.npy")
    x[33, 2] = np.nan
    np.save(folder / "silo-1" / "x.npy", x)


def fewer_labels(folder: Path) -> None:
    np.save(folder / "silo-1" / "y.npy", Y[:7])


def narrower(folder: Path) -> None:
    np.save(folder / "silo-1" / "x.npy", ARRAYS["features"][:40, :4])


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (no_y, "y.npy: no such file, expected both x.npy and y.npy"),
        (cut_short, "x.npy: not a readable npy file"),
        (pickled, "x.npy: not a readable npy file"),
        (holed, "1 values are NaN or infinite"),
        (fewer_labels, "40 samples but 7 labels"),
        (narrower, "expected one shape for all"),
    ],
)
def test_what_is_wrong_on_disk_is_one_line(damage: Callable[[Path], None], words: str, tmp_path: Path) -> None:
    path = write_npy(tmp_path, "features")
    damage(path)
    with pytest.raises(DataError) as caught:
        data.load(DataSettings(source=f"npy:{path}"), 0).check(8)
    assert words in str(caught.value)
    assert "silo-1" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_needs_all_inputs_is_refused(tmp_path: Path) -> None:
    path = write_npy(tmp_path, "features")
    with pytest.raises(ConfigurationError, match=r"data\.shift\.noise_std needs all inputs in memory"):
        data.load(DataSettings(source=f"npy:{path}", shift=data.Shift(noise_std=(1.0,))), 0)
    with pytest.raises(ConfigurationError, match=r"data\.lazy = true is not used by source 'digits'"):
        DataSettings(source="digits", lazy=True)
    with pytest.raises(
        ConfigurationError, match="is divided into silos and can only be joined with sources of the same kind"
    ):
        DataSettings(source=f"npy:{path} + digits")


FEATURES = torch.from_numpy(ARRAYS["features"])


class Items(torch.utils.data.Dataset[Any]):
    """A data set of items (x, y), as torch has them."""

    def __init__(self, x: Any, y: Any = Y, names: tuple[str, ...] = ()) -> None:
        self.x, self.y, self.names = x, y, names

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, number: int) -> Any:
        item = self.x[number], self.y[number]
        return dict(zip(self.names, item, strict=True)) if self.names else item


@pytest.mark.parametrize("kind", ["features", "tokens", "series"])
@pytest.mark.parametrize("names", [(), ("text", "label")])
def test_data_sets_are_read_as_arrays_are(kind: Any, names: Any) -> None:
    x = ARRAYS[kind] if names else torch.from_numpy(ARRAYS[kind])
    made = from_datasets({"a": Items(x, names=names)}, columns=names or None)
    assert isinstance(made[0].train.x, LazyInputs)
    assert data.splits_record(made) == data.splits_record(from_arrays({"a": (ARRAYS[kind], Y)}, kind=kind))


def test_a_run_on_data_sets_of_ready_images() -> None:
    x = torch.randn(N, 3, 8, 8)
    silos = from_datasets({"a": Items(x), "b": Items(x.flip(0))}, classes=["no", "yes"])
    assert (silos.shape, silos.classes, silos.images) == ((3, 8, 8), ("no", "yes"), False)
    run = caveat.run(silos, METHOD, model=caveat.ModelSettings(name="cnn", width=4))
    predicted = run.predictor("a")(filled(x[:5], FEW))  # a tensor is one batch, an array is asked in parts of this size
    assert torch.equal(predicted.probs[:5], run.predictor("a")(x[:5].numpy()).probs)


def test_a_silo_may_have_a_data_set_of_its_own_to_test_on() -> None:
    x = torch.from_numpy(ARRAYS["features"])
    made = from_datasets({"a": (Items(x), Items(x[:20] + 1, Y[:20]))})
    arrays = from_arrays({"a": (ARRAYS["features"], Y, ARRAYS["features"][:20] + 1, Y[:20])})
    assert data.splits_record(made) == data.splits_record(arrays)
    assert torch.equal(made[0].test.x[:20], arrays[0].test.x)


class Failing(Items):
    """A disk that loses a file, now or later."""

    gone = -1

    def __getitem__(self, number: int) -> Any:
        if number == self.gone:
            raise OSError(f"scan-{number}.dcm\nis gone")
        return super().__getitem__(number)


class Unmeasured(Items):
    def __len__(self) -> int:
        raise NotImplementedError


def test_a_data_set_that_fails_names_silo_item_and_what_it_raises() -> None:
    failing = Failing(FEATURES)
    silos = from_datasets({"a": Items(FEATURES), "b": failing})
    failing.gone = 37
    told = r"^silo 'b', item 37: the item cannot be read \(OSError: scan-37.dcm is gone\)$"
    with pytest.raises(DataError, match=told):
        from_datasets({"b": failing})
    with pytest.raises(DataError, match=told):
        caveat.run(silos, METHOD)
    with pytest.raises(DataError, match=r"silo 'b': len\(\) of the data set fails \(NotImplementedError"):
        from_datasets({"b": Unmeasured(FEATURES)})


def test_items_that_change_are_another_data_set(tmp_path: Path) -> None:
    class Noisy(Items):
        def __getitem__(self, number: int) -> Any:
            return torch.randn(5), int(Y[number])

    silos = from_datasets({"a": Noisy(range(N))})
    caveat.run(silos, METHOD, out=tmp_path / "run")
    (tmp_path / "run" / "summary.json").unlink()
    with pytest.raises(RunError, match="the data have changed since the run started"):
        caveat.run(silos, METHOD, out=tmp_path / "run")


@pytest.mark.parametrize(
    ("silos", "settings", "words"),
    [
        ([Items(FEATURES)], {}, "silos has type list, expected a mapping from names to data sets"),
        ({"a": iter([1])}, {}, "silo 'a': found a value of type list_iterator, expected a data set"),
        ({3: Items(FEATURES)}, {}, "silo 3: expected a string"),
        ({"a": Items(FEATURES[:0])}, {}, "silo 'a': no samples"),
        (
            {"a": (Items(FEATURES),) * 3},
            {},
            "silo 'a': found 3 data sets, expected one, or a training and a test data set",
        ),
        (
            {"a": (Items(FEATURES), Items(FEATURES[:, :3]))},
            {},
            "inputs have shape (5,) and dtype float32, but test inputs have shape (3,)",
        ),
        ({"a": [1, 2]}, {}, "silo 'a', item 0: found a value of type int, expected (x, y)"),
        ({"a": Items(FEATURES, names=("u", "v"))}, {}, "found a mapping with keys u, v; set columns=(INPUT, LABEL)"),
        ({"a": Items(FEATURES, names=("u", "v"))}, {"columns": ("u", "w")}, "['u', 'v'], expected columns 'u' and 'w'"),
        ({"a": Items(FEATURES.half())}, {}, "item 0: x has shape (5,) and dtype float16; expected float32"),
        ({"a": Items(FEATURES / 0)}, {}, "item 0: x has NaN or infinite numbers, the first in row 0"),
        ({"a": Items(["ab"] * N)}, {}, "item 0: x has dtype <U2, expected numbers"),
        (
            {"a": Items([torch.ones(5 - n % 2) for n in range(N)])},
            {},
            "item 1: x has shape (4,) and dtype float32, expected (5,)",
        ),
        ({"a": Items(FEATURES, ["no", "yes"] * 40)}, {}, "silo 'a': found labels such as 'no', expected non-negative"),
        (
            {"a": Items(FEATURES), "b": Items(torch.ones(N, 5).long())},
            {},
            "silo 'b': inputs have dtype int64, expected",
        ),
        ({"a": Items(FEATURES), "b": Items(torch.ones(N, 4))}, {}, "expected one shape for all"),
    ],
)
def test_data_sets_that_do_not_fit_are_one_line(silos: Any, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(CaveatError) as caught:
        from_datasets(silos, **settings).check(8)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_written_while_it_is_read_is_noticed(tmp_path: Path) -> None:
    path = write_npy(tmp_path, "features")
    silos = data.load(DataSettings(source=f"npy:{path}", kind="features"), 0)
    file = sorted(path.glob("*/x.npy"))[0]
    before = file.stat()
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns + 1_000_000))
    with pytest.raises(DataError, match=r"x\.npy changed while caveat was reading it"):
        silos.silos[0].train.x[:1]
