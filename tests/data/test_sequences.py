"""Ids of tokens and series of measurements: read as what they are said to be, padded, trained on and predicted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from caveat import data
from caveat.core import ConfigurationError, DataError, DataWarning
from caveat.data.agreement import own_schema, own_settings, own_silos, shared_schema
from caveat.data.settings import DataSettings
from caveat.data.user_data import from_arrays

RNG = np.random.default_rng(0)
N, T = 40, 6
Y = np.arange(N) % 2
IDS = RNG.integers(1, 50, (N, T))
LENGTHS = [2 + n % (T - 1) for n in range(N)]
TEXTS = [IDS[n, :length] for n, length in enumerate(LENGTHS)]
SERIES = RNG.normal(size=(N, T, 3)).astype(np.float32)
PARTS = [SERIES[n, :length] for n, length in enumerate(LENGTHS)]


def whole(silo: data.Silo) -> tuple[torch.Tensor, torch.Tensor]:
    """All inputs of a silo and their positions in the source."""
    names = ("train", "validation", "calibration", "test")
    parts = [getattr(silo, name).x for name in names]
    return torch.cat(parts), torch.cat([silo.indices[name] for name in names])


def test_ids_stay_ids() -> None:
    silos = from_arrays({"a": (IDS, Y), "b": (IDS.astype(np.int32), Y)}, kind="tokens")
    assert (silos.shape, silos.dtype) == ((T,), torch.int64)
    for silo in silos:
        x, index = whole(silo)
        assert torch.equal(x, torch.from_numpy(IDS)[index])


def test_shorter_sequences_are_filled_up_at_their_ends() -> None:
    x, index = whole(from_arrays({"a": (TEXTS, Y)}, kind="tokens", pad=7)["a"])
    for row, n in zip(x, index.tolist(), strict=True):
        assert row.tolist() == [*TEXTS[n].tolist(), *[7] * (T - LENGTHS[n])]


def test_the_longest_of_all_silos_and_of_test_parts_decides() -> None:
    longer = [np.ones(9, int), *TEXTS[1:]]
    silos = from_arrays({"a": (TEXTS, Y), "b": (IDS, Y, longer, Y)}, kind="tokens")
    assert silos.shape == (9,)
    assert {tuple(silo.train.x.shape[1:]) for silo in silos} == {(9,)}


def test_shorter_series_get_a_mask() -> None:
    silos = from_arrays({"a": (PARTS, Y), "b": (SERIES, Y)}, kind="series")
    assert (silos.shape, silos.dtype) == ((T, 4), torch.float32)
    x, index = whole(silos["a"])
    for row, n in zip(x.numpy(), index.tolist(), strict=True):
        assert np.array_equal(row[: LENGTHS[n], :3], PARTS[n])
        assert row[:, 3].tolist() == [1.0] * LENGTHS[n] + [0.0] * (T - LENGTHS[n])
        assert not row[LENGTHS[n] :].any()
    assert bool((silos["b"].train.x[:, :, 3] == 1).all())


def test_series_of_one_length_stay_as_they_are() -> None:
    for given in (SERIES, list(SERIES), [torch.from_numpy(each) for each in SERIES]):
        x, index = whole(from_arrays({"a": (given, Y)}, kind="series")["a"])
        assert torch.equal(x, torch.from_numpy(SERIES)[index])


def test_inputs_to_predict_are_brought_to_the_same_form() -> None:
    tokens = from_arrays({"a": (TEXTS, Y)}, kind="tokens", pad=7)
    assert tokens.inputs([[3, 4], [5]]).tolist() == [[3, 4, 7, 7, 7, 7], [5, 7, 7, 7, 7, 7]]
    with pytest.raises(DataError, match="a sequence of 9 steps, expected at most 6"):
        tokens.inputs([[1] * 9])
    with pytest.raises(DataError, match="token id -1, expected"):
        tokens.inputs([[-1]])
    masked = from_arrays({"a": (PARTS, Y)}, kind="series")
    assert masked.inputs([PARTS[0]])[0, :, 3].tolist() == [1, 1, 0, 0, 0, 0]
    with pytest.raises(DataError, match="expected at least one"):
        masked.inputs([])


def test_longer_sequences_are_cut_where_that_is_asked_for() -> None:
    silos = from_arrays({"a": (TEXTS, Y)}, kind="tokens", length=3)
    assert silos.shape == (3,)
    assert silos.inputs([[1, 2, 3, 4]]).tolist() == [[1, 2, 3]]


@pytest.mark.parametrize(
    ("x", "settings", "words"),
    [
        (IDS, {}, "x has dtype int64 and two dimensions; set kind='tokens' if x contains token ids, or"),
        (SERIES, {}, "float series N,T,C need kind 'series'"),
        (SERIES, {"kind": "tokens"}, "expected token ids N,T, or a list of sequences"),
        (SERIES[:, 0], {"kind": "tokens"}, "token ids have dtype float32, expected integers such as int64"),
        (IDS - 5, {"kind": "tokens"}, ", expected ids from 0"),
        (IDS, {"kind": "series"}, "expected series N,T,C, or a list of series T,C"),
        (np.where(SERIES > 2, np.nan, SERIES), {"kind": "series"}, "values are NaN or infinite"),
        ([*PARTS[1:], PARTS[0][:, :2]], {"kind": "series"}, "steps have shapes [(2,), (3,)], expected one shape"),
        ([*TEXTS[1:], np.array([0.5])], {"kind": "tokens"}, "row 39: token ids have dtype float64"),
        (TEXTS, {}, "rows of different lengths, from 2 to 6"),
        (TEXTS, {"kind": "text"}, "kind = 'text', expected one of images, features, tokens, series"),
        (IDS, {"kind": "features", "pad": 3}, "pad = 3 is not used by kind 'features'"),
        (IDS, {"kind": "tokens", "length": 0}, "length = 0, expected at least 1"),
        (IDS, {"kind": "tokens", "pad": -1}, "pad = -1, expected at least 0"),
        (IDS, {"kind": "tokens", "shift": data.Shift(noise_std=(1,))}, "noise cannot be added to token ids"),
        (PARTS, {"kind": "series", "shift": data.Shift(noise_std=(1,))}, "noise cannot be added to a mask"),
    ],
)
def test_what_does_not_fit_is_one_line(x: Any, settings: dict[str, Any], words: str) -> None:
    with pytest.raises((DataError, ConfigurationError)) as caught:
        from_arrays({"a": (x, Y)}, **settings)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_whole_numbers_can_be_features() -> None:
    silos = from_arrays({"a": (IDS, Y)}, kind="features")
    assert (silos.dtype, silos.shape) == (torch.float32, (T,))


def test_files_hold_what_the_configuration_says(tmp_path: Path) -> None:
    tokens, series = tmp_path / "tokens.npz", tmp_path / "series.npz"
    np.savez(tokens, x=IDS, y=Y)
    np.savez(series, x=SERIES, y=Y)
    found = data.load(DataSettings(source=f"npz:{tokens}", kind="tokens", n_silos=2), 0)
    assert (found.dtype, found.shape) == (torch.int64, (T,))
    assert data.read_inputs(tokens, found, "silo-0").tolist() == IDS.tolist()
    found = data.load(DataSettings(source=f"npz:{series}", kind="series", n_silos=2), 0)
    assert (found.dtype, found.shape) == (torch.float32, (T, 3))
    with pytest.warns(DataWarning, match="inputs of int64 are read as features; set data.kind to 'tokens'"):
        data.load(DataSettings(source=f"npz:{tokens}", n_silos=2), 0)
    with pytest.raises(DataError, match="float series N,T,C need kind 'series'"):
        data.load(DataSettings(source=f"npz:{series}", n_silos=2), 0)
    with pytest.raises(ConfigurationError, match=r"data\.kind = 'tokens' is not used by source 'digits'"):
        DataSettings(source="digits", kind="tokens")


@pytest.mark.parametrize("source", ["npz", "npy"])
@pytest.mark.parametrize("kind", ["tokens", "series"])
def test_silos_elsewhere_read_the_same(tmp_path: Path, source: str, kind: Any) -> None:
    x = IDS if kind == "tokens" else SERIES
    parts = {"a": slice(0, 20), "b": slice(20, 40)}
    for name, part in parts.items():
        (tmp_path / name).mkdir()
        np.savez(tmp_path / f"{name}.npz", x=x[part], y=Y[part])
        np.save(tmp_path / name / "x.npy", x[part])
        np.save(tmp_path / name / "y.npy", Y[part])
    shared = DataSettings(source="on_site", kind=kind)
    where = {n: f"npz:{tmp_path / n}.npz" if source == "npz" else f"npy:{tmp_path / n}" for n in parts}
    own = {name: own_settings(shared, place) for name, place in where.items()}
    agreed = shared_schema({name: own_schema(each, 3, name) for name, each in own.items()}, shared)
    together = from_arrays({name: (x[part], Y[part]) for name, part in parts.items()}, kind=kind, seed=3)
    for name, each in own.items():
        (found,) = silos = own_silos(each, 3, name, agreed)
        assert (silos.shape, silos.dtype) == (together.shape, together.dtype)
        assert data.splits_record([found])[name] == data.splits_record([together[name]])[name]
        assert torch.equal(silos.inputs(x[:2]), together.inputs(x[:2]))
