"""Domains of different sources as silos: sources joined, all test samples, five kinds of digits."""

from __future__ import annotations

import os
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import caveat, one_error
from data_samples import write_images, write_npz
from PIL import Image
from pydantic import TypeAdapter

from caveat import data
from caveat.config import dump
from caveat.config import load as configured
from caveat.core import ConfigurationError, DataError
from caveat.data.settings import DataSettings, OodSettings, Split
from caveat.data.silo_collection import Silos
from caveat.data.splits import NAMES
from caveat.runs.finished_run import open_run
from caveat.runs.start import start

real_data = pytest.mark.skipif("CAVEAT_DATA" not in os.environ, reason="CAVEAT_DATA does not name prepared real data")
DIGITS = "digits + npz:mnist.npz,usps.npz,mnist_m.npz + npz:svhn_gray_derived.npz"


# Joined sources


def test_parts_of_a_source_are_its_domains(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "a.npz", train=300, test=100, classes=10)
    silos = data.load(DataSettings(source=f"digits + npz:{path}", size=8), 0)
    assert [(silo.name, silo.domain) for silo in silos] == [("silo-0", "digits"), ("silo-1", "a")]
    alone = data.rotated(data.digits(), (0,), 1)[0]
    assert sum(len(silos[0].indices[name]) for name in NAMES) == sum(len(alone.indices[name]) for name in NAMES) == 1797
    index = silos[0].indices["test"].numpy()
    assert np.array_equal(silos.to_image(silos[0].test.x), data.digits().x[index])
    four = data.load(DataSettings(source=f"digits + npz:{path}", size=8, n_silos=4), 0)
    assert [silo.domain for silo in four] == ["digits", "digits", "a", "a"]


def test_folders_joined_keep_their_silos(tmp_path: Path) -> None:
    one = write_images(tmp_path / "one", {"east": {"cat": 20, "dog": 20}})
    two = write_images(tmp_path / "two", {"west": {"cat": 20, "dog": 20}}, size=9)
    silos = data.load(DataSettings(source=f"images:{one} + images:{two}", size=6), 0)
    assert [silo.name for silo in silos] == ["east", "west"]
    assert data.survey(f"{one} + {two}")["in_silos"]


def test_sources_that_cannot_be_joined(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "a.npz")
    with pytest.raises(ConfigurationError, match=r"part 'mnist': expected digits, diabetes, npz:PATH"):
        DataSettings(source="digits + mnist")
    with pytest.raises(ConfigurationError, match=r"csv cannot be joined"):
        DataSettings(source="digits + csv:a.csv", target="ill")
    with pytest.raises(ConfigurationError, match=r"'images:x' is divided into silos"):
        DataSettings(source="digits + images:x")
    with pytest.raises(
        DataError, match=r"a\.npz has 3 classes \(0, 1, 2\), but digits has 10 classes \(0, .* 9\); expected"
    ):
        data.load(DataSettings(source=f"digits + npz:{path}", size=8), 0)
    with pytest.raises(DataError, match=r"several domains are called 'digits'"):
        data.load(DataSettings(source="digits + digits"), 0)
    ten = write_npz(tmp_path / "ten.npz", train=300, test=100, classes=10)
    again = f"npz:{tmp_path / '..' / tmp_path.name / 'ten.npz'} + hub:x"
    for part in ("digits", again):
        with pytest.raises(ConfigurationError, match=r"shares .* with data\.source"):
            data.load(DataSettings(source=f"digits + npz:{ten}", ood=OodSettings(global_source=part)), 0)


def test_what_nobody_knows_can_be_joined_whatever_its_classes(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "a.npz")
    other = write_npz(
        tmp_path / "b.npz", classes=2, x_test=np.zeros((40, 9, 9), np.uint8), x_train=np.zeros((120, 9, 9), np.uint8)
    )
    streams = OodSettings(global_source=f"npz:{path} + npz:{other}", per_silo=1000)
    silos = data.load(DataSettings(n_silos=2, size=8, ood=streams), 0)
    assert len(silos[0].streams["ood_global"]) == 80


def test_survey_shows_the_shape_of_every_domain(tmp_path: Path) -> None:
    found = data.survey(f"digits + {write_npz(tmp_path / 'a.npz', 300, 100, 10)}")
    assert found["source"] == f"digits + npz:{tmp_path / 'a.npz'}"
    assert "shape" not in found
    assert [(part["name"], part["shape"]) for part in found["parts"]] == [("digits", [8, 8, 1]), ("a", [6, 6, 1])]
    shown = caveat("data", f"digits + {tmp_path / 'a.npz'}").stdout
    assert "8x8x1" in shown
    assert "6x6x1" in shown
    assert "shape" not in data.survey("digits")["parts"][0]
    error = one_error(caveat("data", "digits + csv:a.csv"), 2)
    assert "csv cannot be joined" in error


# All test samples


def test_all_test_samples_are_shared_out_in_each_domain(tmp_path: Path) -> None:
    few, many = write_npz(tmp_path / "few.npz", test=7), write_npz(tmp_path / "many.npz", test=90)
    settings = DataSettings(source=f"npz:{few},{many}", n_silos=4, samples_per_silo=40, test_per_silo="all")
    silos = data.load(settings, 0)
    assert [len(silo.test) for silo in silos] == [4, 3, 45, 45]
    assert {sum(len(getattr(silo, name)) for name in NAMES[:3]) for silo in silos} == {40}
    assert len(set(silos[2].indices["test"].tolist()) | set(silos[3].indices["test"].tolist())) == 90
    with pytest.raises(
        DataError, match=r"^few: 2 silos with 4 test samples each need 8 test samples, but there are only 7"
    ):
        data.load(DataSettings(source=f"npz:{few},{many}", n_silos=4, samples_per_silo=40, test_per_silo=4), 0)


def test_a_domain_too_small_is_named(tmp_path: Path) -> None:
    few, many = write_npz(tmp_path / "few.npz", train=30), write_npz(tmp_path / "many.npz")
    with pytest.raises(DataError, match=r"^few: data\.samples_per_silo = 100, but there are only 30 samples"):
        data.load(DataSettings(source=f"npz:{few},{many}", samples_per_silo=100), 0)


@pytest.mark.parametrize("value", ["0", "1.5", "some", "true"])
def test_the_number_of_test_samples_is_a_number_or_all(value: str) -> None:
    with pytest.raises(
        ConfigurationError, match=r'test_per_silo = .*: must be a whole number of at least 1, or "all"$'
    ):
        configured(None, [f"data.test_per_silo={value}"])


def test_the_section_is_written_and_read_back(tmp_path: Path) -> None:
    config = configured(
        None, ["data.source=digits + npz:a.npz", "data.size=28", "data.channels=3", "data.test_per_silo=all"]
    )
    assert (config.data.size, config.data.channels, config.data.test_per_silo) == (28, 3, "all")
    (tmp_path / "config.toml").write_text(dump(config))
    assert configured(str(tmp_path / "config.toml")) == config
    assert TypeAdapter(DataSettings).validate_python({"test_per_silo": 7}).test_per_silo == 7


# Real data


def assert_disjoint(silos: Silos) -> None:
    """No sample is in two splits of a domain, and no two splits on record are the same."""
    for silo in silos:
        parts = [set(silo.indices[name].tolist()) for name in NAMES]
        assert all(part for part in parts)
        assert all(a.isdisjoint(b) for a, b in combinations(parts, 2))
    digests = [digest for silo in silos for digest in data.hashes(silo).values()]
    assert len(digests) == len(set(digests)) >= 4 * len(silos)


@real_data
def test_five_digit_domains_are_five_silos() -> None:
    settings = DataSettings(
        source=DIGITS,
        size=28,
        samples_per_silo=1000,
        test_per_silo="all",
        split=Split(0.743, 0.127, 0.13),
        ood=OodSettings("domains", "npz:fashion_mnist.npz", per_silo=200),
    )
    silos = data.load(settings, 0)
    silos.check(32)
    assert silos.shape == (3, 28, 28)
    assert [silo.domain for silo in silos] == ["digits", "mnist", "usps", "mnist_m", "svhn_gray_derived"]
    for silo, test in zip(silos, (359, 10_000, 2007, 3000, 2000), strict=True):
        assert [len(getattr(silo, name)) for name in NAMES] == [743, 127, 130, test]
        assert silo.train.y.bincount(minlength=10).min() > 20
        grey = silo.domain != "mnist_m"
        assert bool((silo.test.x[:, :1] == silo.test.x).all()) == grey
        assert len(silo.streams["ood_global"]) == len(silo.streams["ood_local"]) == 200
    assert_disjoint(silos)


@real_data
def test_office_and_pacs_files_are_domains_of_one_shape() -> None:
    office = ",".join(f"office_caltech10_{name}.npz" for name in ("amazon", "caltech10", "dslr", "webcam"))
    pacs = ",".join(f"pacs_{name}.npz" for name in ("art_painting", "cartoon", "photo", "sketch"))
    for source, domain, shape, classes in ((office, "dslr", (3, 64, 64), 10), (pacs, "sketch", (3, 64, 64), 7)):
        silos = data.load(DataSettings(source=f"npz:{source}", samples_per_silo=120, test_per_silo="all"), 0)
        assert silos.shape == shape
        assert len(silos.classes) == classes
        assert domain in [silo.domain.rsplit("_", 1)[-1] for silo in silos]
        assert_disjoint(silos)
    with pytest.raises(
        DataError, match=r"^office_caltech10_dslr: data\.samples_per_silo = 127, but there are only 126 samples$"
    ):
        data.load(DataSettings(source=f"npz:{office}", samples_per_silo=127), 0)
    sketch = data.npz("pacs_sketch.npz").x[:4]
    assert np.array_equal(silos.to_image(silos.prepare(sketch)), np.repeat(sketch, 3, -1))


@real_data
def test_a_raw_image_of_a_domain_is_predicted(tmp_path: Path) -> None:
    short = [
        "data.source=digits + npz:usps.npz", "data.size=28", "data.channels=3", "data.samples_per_silo=100",
        "data.test_per_silo=20", "model.name=mlp", "model.hidden=8", "method.name=fedavg", "rounds=1", "baselines=[]",
        "training.local_epochs=1", "training.batch_size=16", "uncertainty.mc_samples=2",
    ]  # fmt: skip
    run = open_run(start(configured(None, short), tmp_path / "run"))
    usps = data.npz("usps.npz").x[:3, :, :, 0]
    np.savez(tmp_path / "raw.npz", x=usps)
    (tmp_path / "raw").mkdir()
    for number, image in enumerate(usps):
        Image.fromarray(image).save(tmp_path / "raw" / f"{number}.png")
    predicted = run.predictor("silo-1")(usps)
    assert len(predicted) == 3
    for name in ("raw.npz", "raw"):
        inputs = data.read_inputs(tmp_path / name, run.silos, "silo-1")
        assert torch.equal(inputs, run.silos.prepare(data.recolored(data.resized(usps[..., None], 28), 3)))
        noted = data.noted_inputs(tmp_path / name, run.preparation, "silo-1")
        assert torch.equal(run.predictor("silo-1")(noted).probs, predicted.probs)
