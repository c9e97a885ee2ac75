"""Test streams of what a silo does not know, and classes held out from all."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from data_samples import labeled_images, same, write_csv, write_npz
from torch import Tensor

from caveat import data
from caveat.config import dump
from caveat.config import load as configured
from caveat.core import ConfigurationError, Data, DataError, Silo
from caveat.data.settings import DataSettings, OodSettings, Partition, Shift
from caveat.data.silo_collection import Silos
from caveat.data.splits import NAMES

NEEDS_DATA = pytest.mark.skipif("CAVEAT_DATA" not in os.environ, reason="CAVEAT_DATA does not name prepared real data")
CLASSES = Partition(scheme="classes", per_silo=4)


def load(streams: OodSettings | None = None, seed: int = 0, **settings: object) -> Silos:
    settings = {"n_silos": 5, "partition": CLASSES} | settings
    return data.load(DataSettings(**settings, ood=streams or OodSettings()), seed)  # type: ignore[arg-type]


def inputs(x: Tensor) -> set[bytes]:
    return {row.numpy().tobytes() for row in x}


def developed(silos: Silos) -> set[int]:
    """Positions in the source that any silo trains, chooses or calibrates on."""
    return {i for silo in silos for name in NAMES[:3] for i in silo.indices[name].tolist()}


def equal(a: Mapping[str, Data], b: Mapping[str, Data]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(p, q) for name in a for p, q in zip(a[name], b[name], strict=True))


def domains(silo: Silo, silos: Silos) -> set[str]:
    """The domains that a silo's local stream comes from, by its inputs."""
    found = inputs(silo.streams["ood_local"].x)
    return {other.domain for other in silos if found & inputs(other.test.x)}


# What other silos know


def test_unknown_classes_come_from_the_test_splits_of_others() -> None:
    silos = load(OodSettings(local="classes"))
    train = developed(silos)
    assert {silo.name for silo in silos if silo.streams} == {silo.name for silo in silos}
    for silo in silos:
        stream, index = silo.streams["ood_local"], silo.indices["ood_local"].tolist()
        assert len(stream) == len(silo.test) == len(set(index))
        assert not set(stream.y.tolist()) & set(silo.train.y.tolist())
        assert not set(index) & (train | set(silo.indices["test"].tolist()))
        tests = {i: (other, at) for other in silos for at, i in enumerate(other.indices["test"].tolist())}
        for x, y, (other, at) in zip(*stream, map(tests.__getitem__, index), strict=True):
            assert torch.equal(x, other.test.x[at])
            assert y == other.test.y[at]


def test_other_domains_are_shown_as_their_silos_see_them() -> None:
    silos = load(
        OodSettings(local="domains", per_silo=40), n_silos=6, partition=Partition(), shift=Shift(angles=(0, 90, 180))
    )
    for silo in silos:
        assert len(silo.streams["ood_local"]) == 40
        assert domains(silo, silos) == {"rotate(0)", "rotate(90)", "rotate(180)"} - {silo.domain}
        assert silo.streams["ood_local"].y.min() >= 0


def test_a_silo_that_knows_everything_has_no_local_stream() -> None:
    x, y = labeled_images(90)
    silos = data.from_arrays({"all": (x, y), "some": (x[y < 2], y[y < 2]), "few": (x[y < 2], y[y < 2])})
    streamed = data.with_streams(silos, ood_local="classes")
    assert [list(silo.streams) for silo in streamed] == [[], ["ood_local"], ["ood_local"]]
    unknown = int((streamed["all"].test.y >= 2).sum())
    assert unknown < len(streamed["some"].test)
    assert [len(silo.streams.get("ood_local", ())) for silo in streamed] == [0, unknown, unknown], "there are not more"
    assert "ood_local" not in streamed[0].indices


@pytest.mark.parametrize("partition", ["iid", "classes", "draws", "dirichlet"])
def test_asking_for_streams_changes_no_split_and_no_other_stream(tmp_path: Path, partition: str) -> None:
    outside = write_npz(tmp_path / "out.npz", x_train=np.zeros((120, 8, 8), np.uint8), x_test=np.ones((40, 8, 8), "u1"))
    settings = {"partition": Partition(scheme=partition), "shift": Shift(angles=(0, 9, 0, 9, 0), noise_std=(5,))}  # type: ignore[arg-type]
    ask = {"global_source": f"npz:{outside}", "per_silo": 20}
    plain = load(**settings)
    some, more, again = (load(OodSettings(local=what, **ask), **settings) for what in ("none", "domains", "domains"))  # type: ignore[arg-type]
    for a, b, c, d in zip(plain, some, more, again, strict=True):
        assert same(a, b)
        assert same(a, c)
        assert all(torch.equal(a.indices[name], c.indices[name]) for name in NAMES)
        assert torch.equal(b.streams["ood_global"].x, c.streams["ood_global"].x)
        assert equal(c.streams, d.streams)
        assert (list(a.streams), list(b.streams), len(c.streams)) == ([], ["ood_global"], 2)
    other = load(OodSettings(local="domains", **ask), seed=1, **settings)  # type: ignore[arg-type]
    assert not equal(more[0].streams, other[0].streams)


# What nobody knows


def test_an_outside_source_gives_its_test_part_without_shift_or_label(tmp_path: Path) -> None:
    x_test = np.random.default_rng(0).integers(0, 256, (30, 8, 8), np.uint8)
    labels = np.arange(30) % 3
    path = write_npz(tmp_path / "out.npz", x_train=np.zeros((120, 8, 8), np.uint8), x_test=x_test, y_test=labels)
    normalize = data.Normalize((0.2,), (0.4,))
    settings = {"shift": Shift(angles=(90, 0, 45, 0, 0), noise_std=(20,)), "normalize": normalize}
    silos = load(OodSettings(global_source=f"npz:{path}"), **settings)
    allowed = inputs((torch.from_numpy(x_test)[:, None].float() / 255 - 0.2) / 0.4)
    for silo in silos:
        x, y = silo.streams["ood_global"]
        assert inputs(x) == allowed, "as many as there are, as the test split has more"
        assert y.tolist() == [-1] * 30
    np.savez(path, x=x_test, y=labels)
    whole = load(OodSettings(global_source=f"npz:{path}"), **settings)
    assert inputs(whole[0].streams["ood_global"].x) == allowed, "a source without a test part is unknown as a whole"


@pytest.mark.parametrize("own_test", [True, False])
def test_held_out_classes_are_in_no_split_and_make_the_global_stream(tmp_path: Path, own_test: bool) -> None:
    x, y = labeled_images(400, classes=5)
    names = np.array(["ant", "bee", "cat", "dog", "eel"])
    parts = {"x_train": x[:300], "y_train": y[:300], "x_test": x[300:], "y_test": y[300:]}
    np.savez(tmp_path / "a.npz", classes=names, **(parts if own_test else {"x": x, "y": y}))
    streams = OodSettings(held_out_classes=("bee", "dog"), per_silo=1000)
    silos = load(streams, source=f"npz:{tmp_path / 'a.npz'}", n_silos=3, partition=Partition())
    held_out = np.isin(y, (1, 3))
    assert silos.classes == ("ant", "cat", "eel")
    for silo in silos:
        for name in NAMES:
            index = silo.indices[name].numpy()
            assert [names[label] for label in y[index]] == [silos.classes[label] for label in getattr(silo, name).y]
            assert torch.equal(silos.prepare(x[index]), getattr(silo, name).x)
        stream = silo.streams["ood_global"]
        assert (stream.y == -1).all()
        assert len(stream) == len(inputs(stream.x))
        if own_test:
            assert inputs(stream.x) == inputs(silos.prepare(x[300:][held_out[300:]]))
        else:
            assert inputs(stream.x) < inputs(silos.prepare(x[held_out])), "of these, only the share to test on"
            assert abs(len(stream) - 0.2 * held_out.sum()) <= 3


def test_held_out_classes_join_an_outside_source(tmp_path: Path) -> None:
    outside = write_npz(tmp_path / "out.npz", x_train=np.zeros((120, 8, 8), np.uint8), x_test=np.ones((40, 8, 8), "u1"))
    silos = load(
        OodSettings(global_source=f"npz:{outside}", held_out_classes=("3",), per_silo=10_000), partition=Partition()
    )
    ones = (silos[0].streams["ood_global"].x == silos.prepare(np.ones((1, 8, 8), np.uint8))).flatten(1).all(1)
    assert int(ones.sum()) == 40
    assert len(ones) > 60
    assert len(silos.classes) == 9


def test_held_out_rows_of_a_table_are_encoded_by_the_silo_that_asks(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "a.csv", rows=120)
    settings = {"source": f"csv:{path}", "target": "ward", "partition": Partition(), "n_silos": 2}
    silos = load(OodSettings(held_out_classes=("ward-1",), per_silo=1000), **settings)
    (a, b) = (silo.streams["ood_global"].x for silo in silos)
    assert a.shape == b.shape
    assert 0 < len(a) < 40
    assert not torch.equal(a, b)
    assert torch.isfinite(a).all()
    with pytest.raises(DataError, match="local = 'classes': each silo encodes"):
        load(OodSettings(local="classes"), **settings)


# For one's own silos, and on record


def test_streams_of_silos_in_memory_are_those_of_the_configuration(tmp_path: Path) -> None:
    x = labeled_images(50, size=8)[0]
    path = write_npz(tmp_path / "out.npz", x_train=x, y_train=np.arange(50) % 2, x_test=x, y_test=np.arange(50) % 2)
    written = load(OodSettings(local="classes", global_source=f"npz:{path}", per_silo=30), seed=3)
    made = data.with_streams(load(seed=3), ood_local="classes", ood_global=x, per_silo=30, seed=3)
    assert all(equal(a.streams, b.streams) for a, b in zip(written, made, strict=True))
    assert data.splits_record(written) == data.splits_record(made)
    bare = data.with_streams(made)
    assert all(not silo.streams and set(silo.indices) == set(NAMES) for silo in bare)
    assert data.with_streams(made, ood_global=x).classes == made.classes


def test_the_record_lists_streams_only_where_there_are_some() -> None:
    plain = load()
    silos = data.with_streams(plain, ood_local="classes", ood_global=labeled_images(50, size=8)[0], per_silo=30)
    before, record = data.splits_record(plain), json.loads(json.dumps(data.splits_record(silos)))
    for silo in silos:
        entry = record[silo.name]
        streams = entry.pop("streams")
        assert entry == before[silo.name]
        assert "streams" not in before[silo.name]
        assert streams["ood_local"]["class_counts"] == silo.streams["ood_local"].y.bincount(minlength=10).tolist()
        assert streams["ood_global"]["examples"] == 30
        assert streams["ood_global"]["class_counts"] == [0] * 10
        assert len({streams[name]["content_sha256"] for name in streams}) == 2


def test_the_section_is_written_and_read_back(tmp_path: Path) -> None:
    sets = ["data.ood={local='classes', held_out_classes=['3', '7'], per_silo=9}", "data.ood.global_source=npz:a.npz"]
    config = configured(None, sets)
    assert config.data.ood == OodSettings("classes", "npz:a.npz", ("3", "7"), 9)
    path = tmp_path / "config.toml"
    path.write_text(dump(config))
    assert configured(str(path)) == config


# Errors


def test_settings_of_streams_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"global_source = 'mnist': expected digits, diabetes, npz:PATH"):
        OodSettings(global_source="mnist")
    with pytest.raises(ConfigurationError, match="columns of tables differ"):
        OodSettings(global_source="csv:a.csv")
    with pytest.raises(
        ConfigurationError, match=r"data\.ood\.per_silo = 9 has no effect: no out-of-distribution inputs are configured"
    ):
        OodSettings(per_silo=9)
    with pytest.raises(ConfigurationError, match="local = 'both': must be"):
        OodSettings(local="both")  # type: ignore[arg-type]
    path, (x, y) = tmp_path / "cat.npz", labeled_images(120)
    np.savez(path, x=x, y=y, classes=["badger", "cat", "dog"])
    source = {"source": f"npz:{path}", "partition": Partition()}
    with pytest.raises(ConfigurationError, match=r"no class 'bagder'; did you mean badger\? \(available: badger, cat"):
        load(OodSettings(held_out_classes=("cat", "bagder")), **source)
    with pytest.raises(ConfigurationError, match="leaves 1 of 3 classes to the silos, expected at least 2"):
        load(OodSettings(held_out_classes=("cat", "dog")), **source)
    with pytest.raises(ConfigurationError, match=r"shares .* with data\.source"):
        load(OodSettings(global_source=f"npz:{tmp_path / '..' / tmp_path.name / 'cat.npz'}"), **source)
    with pytest.raises(DataError, match=r"npz.* has inputs of shape \(6, 6, 1\), but .* shape \(8, 8, 1\)"):
        load(OodSettings(global_source=f"npz:{path}"))


def test_streams_of_nothing_unknown_are_errors() -> None:
    with pytest.raises(
        DataError,
        match=r"'classes': every silo trains on all of the 10 tested classes, so no test input is out-of-distribution",
    ):
        load(OodSettings(local="classes"), partition=Partition())
    with pytest.raises(DataError, match="'domains': all silos belong to one domain, 'digits'"):
        load(OodSettings(local="domains"))
    silos = load()
    with pytest.raises(ConfigurationError, match="local = 'both', expected 'none', 'classes' or 'domains'"):
        data.with_streams(silos, ood_local="both")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="per_silo = 0, expected at least 1"):
        data.with_streams(silos, per_silo=0)
    with pytest.raises(DataError, match="ood_global: no inputs"):
        data.with_streams(silos, ood_global=np.zeros((0, 8, 8), np.uint8))
    with pytest.raises(DataError, match=r"shape \(7, 7, 1\), expected \(8, 8, 1\)"):
        data.with_streams(silos, ood_global=np.zeros((9, 7, 7), np.uint8))


# Real data


@NEEDS_DATA
def test_the_streams_of_federated_posterior_networks() -> None:
    settings = {"source": "npz:mnist.npz", "n_silos": 20, "partition": Partition(scheme="draws", per_silo=3)}
    plain = load(**settings)
    streams = OodSettings(local="classes", global_source="npz:fashion_mnist.npz")
    silos, again = load(streams, **settings), load(streams, **settings)
    assert sum(len(getattr(silo, name)) for silo in silos for name in NAMES) == 70_000
    assert {len(silo.train.y.unique()) for silo in silos} == {2, 3}
    train = developed(silos)
    pixels = data.npz("fashion_mnist.npz").x[60_000:]
    outside = inputs(silos.prepare(pixels))
    for silo, twin, bare in zip(silos, again, plain, strict=True):
        assert same(silo, bare)
        assert equal(silo.streams, twin.streams)
        local, unknown = silo.streams["ood_local"], silo.streams["ood_global"]
        index = set(silo.indices["ood_local"].tolist())
        assert len(local) == len(unknown) == len(index) == len(silo.test) >= 250
        assert not index & train
        assert min(index) >= 60_000, "of the test part"
        assert not set(local.y.tolist()) & set(silo.train.y.tolist())
        assert (unknown.y == -1).all()
        assert len(inputs(unknown.x) & outside) == len(unknown)
