"""Laws of the splits, shifts and partitions of caveat.data."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from data_samples import labeled_images, same, write_csv, write_npz

import caveat
from caveat import data
from caveat.core import AugmentedData, ConfigurationError, DataError, DataWarning, Silo
from caveat.data.partitions import deal, mislabeled, partition
from caveat.data.settings import DataSettings, Partition, Shift, Split
from caveat.data.shifts import rotate
from caveat.data.splits import NAMES, development_splits, draw_parts, reserve_test


def positions(silo: Silo) -> list[int]:
    return [i for name in NAMES for i in silo.indices[name].tolist()]


# Splits


def test_no_sample_is_in_two_splits_or_two_silos() -> None:
    silos = data.rotated(data.digits(), seed=3)
    used = [i for silo in silos for i in positions(silo)]
    assert len(used) == len(set(used)) == 1797
    for silo in silos:
        assert all(len(getattr(silo, name)) == len(silo.indices[name]) for name in NAMES)


def test_splits_are_a_function_of_the_seed() -> None:
    first, again, other = (data.rotated(data.digits(), seed=seed, noise_std=(0, 0, 9)) for seed in (1, 1, 2))
    assert all(same(a, b) for a, b in zip(first, again, strict=True))
    assert data.hashes(first[0]) == data.hashes(again[0])
    assert all(data.hashes(first[0])[name] != data.hashes(other[0])[name] for name in NAMES)


def test_indices_lead_back_to_the_source() -> None:
    pool = data.digits()
    silo = data.rotated(pool, angles=(0,), silos_per_angle=3)[1]
    for name in NAMES:
        index = silo.indices[name].numpy()
        assert np.array_equal(getattr(silo, name).y, pool.y[index])
        expected = (pool.x[index, :, :, 0].astype(np.float32) / 255 - 0.5) / 0.5
        assert np.allclose(getattr(silo, name).x[:, 0], expected, atol=1e-6)


def test_hashes_are_those_of_little_endian_int64() -> None:
    silos = data.rotated(data.digits())
    test = silos[0].indices["test"].tolist()
    digest = hashlib.sha256(b"".join(i.to_bytes(8, "little") for i in test)).hexdigest()
    record = data.splits_record(silos)["silo-0"]
    assert data.hashes(silos[0])["test"] == digest == record["test"]["sha256"]
    assert record["train"]["examples"] == sum(record["train"]["class_counts"]) == len(silos[0].train)


@pytest.mark.parametrize("labels", [Partition(), Partition(scheme="dirichlet"), Partition(scheme="classes")])
def test_test_labels_move_nothing_but_themselves(tmp_path: Path, labels: Partition) -> None:
    y_test = labeled_images(40, seed=1)[1]
    straight = write_npz(tmp_path / "a.npz", y_test=y_test)
    turned = write_npz(tmp_path / "b.npz", y_test=y_test[::-1])
    shift = Shift(angles=(0, 90), noise_std=(0, 5))
    a, b = (
        data.load(DataSettings(source=f"npz:{path}", n_silos=2, partition=labels, shift=shift), 0)
        for path in (straight, turned)
    )
    assert all(same(p, q, NAMES[:3]) for p, q in zip(a, b, strict=True))


def _shares(silos: int, rows: int, share: float) -> np.ndarray:
    """(silos, splits) shares of a class in the splits of silos whose rows are independent."""
    draw, found = np.random.default_rng(0), []
    for _ in range(silos):
        y = draw.random(rows) < share
        development, test = reserve_test(rows, 0.2, draw)
        parts = development_splits(len(development), Split(), "a", draw)
        found.append([*(y[development[parts[name]]].mean() for name in NAMES[:3]), y[test].mean()])
    return np.array(found)


def test_no_split_tells_which_classes_are_in_another_so_held_out_rows_are_drawn_like_new_inputs() -> None:
    """Stratified splits of 40 rows have correlations of about .9: what a small silo's model learned of its class
    frequencies was then right for its calibration rows, but not for new inputs."""
    correlations = np.corrcoef(_shares(4000, 40, 0.4).T)[np.triu_indices(4, 1)]
    assert np.abs(correlations).max() < 4 / np.sqrt(4000)


def test_a_rare_class_is_no_rarer_in_calibration_and_test() -> None:
    """With a row that always goes to training it is, at every silo, so that a guarantee over many silos fails."""
    found = _shares(3000, 30, 0.05)
    deviation = found.std(0) / np.sqrt(len(found))
    assert (np.abs(found.mean(0) - 0.05) < 3 * deviation).all()
    assert (deviation < 0.003).all()


def test_parts_are_disjoint_and_have_the_sizes_asked_for() -> None:
    for time in (None, np.arange(141)[::-1]):
        parts = draw_parts(141, (100, 20, 18), np.random.default_rng(0), time)
        assert [len(part) for part in parts] == [100, 20, 18]
        assert len(set(np.concatenate(parts).tolist())) == 138


def test_an_own_test_part_is_kept_apart_and_its_positions_follow(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "a.npz", x_val=np.zeros((30, 6, 6), np.uint8), y_val=np.zeros(30, np.uint8))
    silos = data.load(DataSettings(source=f"npz:{path}", n_silos=3), 0)
    assert sorted(i for silo in silos for i in silo.indices["test"].tolist()) == list(range(150, 190))
    assert sorted(i for silo in silos for n in NAMES[:3] for i in silo.indices[n].tolist()) == list(range(150))


def test_sizes_are_those_asked_for(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "a.npz")
    settings = DataSettings(source=f"npz:{path}", n_silos=3, samples_per_silo=40, split=Split(0.5, 0.25, 0.25))
    for silo in data.load(settings, 0):
        assert [len(getattr(silo, name)) for name in NAMES] == [20, 10, 10, 10]
    with pytest.raises(
        DataError, match=r"3 silos with 14 test samples each need 42 test samples, but there are only 40"
    ):
        data.load(DataSettings(source=f"npz:{path}", n_silos=3, samples_per_silo=40, test_per_silo=14), 0)
    with pytest.raises(
        DataError, match=r"41 silos with 1 test sample each need 41 test samples, but there are only 40"
    ):
        data.load(DataSettings(source=f"npz:{path}", n_silos=41, samples_per_silo=3), 0)


@pytest.mark.parametrize(
    ("split", "samples", "sizes"),
    [
        (Split(), 1000, (800, 100, 100)),
        (Split(), 200, (160, 20, 20)),
        (Split(), 161, (125, 16, 20)),
        (Split(), 48, (23, 5, 20)),
        (Split(), 47, (23, 5, 19)),
        (Split(), 24, (12, 2, 10)),
        (Split(), 3, (1, 1, 1)),
        (Split(validation=0.25), 48, (16, 12, 20)),
        (Split(train=0.8), 48, (38, 5, 5)),
        (Split(calibration=0.1), 48, (38, 5, 5)),
        (Split(calibration=0.3), 100, (60, 10, 30)),
        (Split(0.8, 0.1, 0.1), 48, (38, 5, 5)),
    ],
)
def test_small_silos_have_20_calibration_samples_by_default_and_given_shares_are_kept(
    split: Split, samples: int, sizes: tuple[int, int, int]
) -> None:
    assert split.sizes(samples) == sizes


@pytest.mark.parametrize("samples", range(60, 260, 7))
def test_every_silo_of_60_rows_can_call_an_input_unfamiliar(samples: int) -> None:
    x, y = np.arange(3.0 * samples).reshape(samples, 3), np.arange(samples) % 2
    (silo,) = data.from_arrays({"a": (x, y)})
    assert len(silo.calibration) >= 20
    assert len(silo.train) >= samples // 3


# Shifts


def test_rotation_is_counter_clockwise_about_half_width_and_height() -> None:
    image = np.arange(1, 17, dtype=np.uint8).reshape(1, 4, 4, 1)
    # Worked out by hand: the right column becomes the top row, one row further down because the centre is the pixel
    # coordinate (2, 2) and not the middle (1.5, 1.5).
    expected = [[0, 0, 0, 0], [4, 8, 12, 16], [3, 7, 11, 15], [2, 6, 10, 14]]
    assert rotate(image, 90)[0, :, :, 0].tolist() == expected
    assert np.array_equal(rotate(image, 0), image)
    assert np.array_equal(rotate(image, 360), image)


def test_rotation_is_bilinear_with_black_outside() -> None:
    image = np.zeros((1, 8, 8, 2), np.uint8)
    image[0, 4, 5] = (200, 100)  # one pixel right of the centre: turned by 30 degrees, it goes up by half a pixel
    turned = rotate(image, 30)[0]
    cos, sin = np.cos(np.pi / 6), np.sin(np.pi / 6)
    # Output (4, 5) is taken from x = 4 + cos, y = 4 + sin.
    assert turned[4, 5].tolist() == [round(200 * cos * (1 - sin)), round(100 * cos * (1 - sin))]
    assert rotate(np.full((1, 8, 8, 1), 255, np.uint8), 45)[0, 0, 0, 0] == 0


def test_noise_comes_before_rotation_and_stays_in_range() -> None:
    pool = data.digits()
    silos = data.rotated(pool, angles=(0, 45), silos_per_angle=1, noise_std=(0, 40))
    assert [silo.domain for silo in silos] == ["rotate(0)", "rotate(45)+noise(40)"]
    assert silos[1].train.x.abs().max() <= 1
    assert torch.all(silos[1].train.x[:, :, 0, 0] == -1)  # a corner that rotation fills with black, after the noise
    clean = data.rotated(pool, angles=(0, 45), silos_per_angle=1)
    assert not same(silos[1], clean[1])
    assert same(silos[0], clean[0])


def test_no_noise_is_drawn_twice() -> None:
    plain = np.full((60, 6, 6), 128, np.uint8)
    plain[0] = 129  # images that are all the same would be refused
    arrays = {name: (plain, np.arange(60) % 2) for name in ("a", "b")}
    silos = data.from_arrays(arrays, shift=Shift(noise_std=(20,)))
    noise = torch.cat([getattr(silo, name).x for silo in silos for name in NAMES])
    assert len(noise.unique(dim=0)) == 120
    assert abs(noise.std() * 255 / 2 - 20) < 1


def test_a_shift_of_fewer_entries_than_silos_comes_in_blocks() -> None:
    silos = data.load(DataSettings(n_silos=6, shift=Shift(angles=(0, -50, 120))), 0)
    assert [silo.domain for silo in silos] == [f"rotate({a})" for a in (0, 0, -50, -50, 120, 120)]
    with pytest.raises(ConfigurationError, match="3 entries for 4 silos"):
        data.load(DataSettings(n_silos=4, shift=Shift(angles=(0, -50, 120))), 0)


# Wrong labels


def noisy(*shares: float, seed: int = 0, **settings: Any) -> data.Silos:
    return data.load(DataSettings(n_silos=4, label_noise=shares, **settings), seed)


def test_the_share_of_training_labels_that_are_wrong_is_exact_and_nothing_else_changes() -> None:
    clean, silos = noisy(), noisy(0, 0.4)
    before, after = data.splits_record(clean), data.splits_record(silos)
    truth = torch.from_numpy(data.digits().y)
    for number, silo in enumerate(silos):
        right = truth[silo.indices["train"]]
        wrong = int((silo.train.y != right).sum())
        assert wrong == (0 if number < 2 else round(0.4 * len(right)))
        assert all(after[silo.name][split] == before[silo.name][split] for split in NAMES[1:])  # type: ignore[index]
        assert torch.equal(silo.train.x, clean[number].train.x)
        assert data.hashes(silo) == data.hashes(clean[number])


def test_a_wrong_label_is_any_other_class_alike() -> None:
    y = np.repeat(np.arange(4), 3000)
    found = mislabeled(y, 1, 4, np.random.default_rng(0))
    counts = np.array([np.bincount(found[y == label], minlength=4) for label in range(4)])
    assert np.diag(counts).tolist() == [0] * 4
    assert np.abs(counts + 1000 * np.eye(4) - 1000).max() < 120  # four and a half standard deviations
    assert mislabeled(y[:7], 0.5, 4, np.random.default_rng(0)).shape == (7,)
    assert np.array_equal(y, np.repeat(np.arange(4), 3000))


def test_wrong_labels_are_a_function_of_seed_and_silo() -> None:
    one, again, other = (noisy(0.5, seed=seed) for seed in (0, 0, 1))
    assert all(same(a, b) for a, b in zip(one, again, strict=True))
    places = [silo.train.y[:300] != noisy()[n].train.y[:300] for n, silo in enumerate(one)]
    assert not torch.equal(places[0], places[1])
    assert not torch.equal(one[0].train.y, other[0].train.y)
    # Fewer silos with wrong labels leave those of the others as they are.
    assert torch.equal(noisy(0, 0.5)[3].train.y, one[3].train.y)


def test_wrong_labels_are_made_before_batches_are_changed_and_where_data_comes_in_silos(tmp_path: Path) -> None:
    plain, changed = noisy(0.3), noisy(0.3, augment=("flip",))
    assert isinstance(changed[0].train, AugmentedData)
    assert torch.equal(changed[0].train.y, plain[0].train.y)
    paths = [write_npz(tmp_path / f"{name}.npz") for name in "ab"]
    source = "csv:" + ",".join(str(write_csv(tmp_path / f"{name}.csv")) for name in "ab")
    for settings in (DataSettings(source="npz:" + ",".join(map(str, paths)), n_silos=2),
                     DataSettings(source=source, target="ill")):  # fmt: skip
        clean, silos = (data.load(replace(settings, label_noise=noise), 0) for noise in ((), (0, 1)))
        assert same(clean[0], silos[0])
        assert not (clean[1].train.y == silos[1].train.y).any()
        assert same(clean[1], silos[1], NAMES[1:])


@pytest.mark.parametrize("shares", [(0.1, 0.2, 0.3), (0.1,) * 8])
def test_as_many_shares_as_there_are_silos_or_a_divisor(shares: tuple[float, ...]) -> None:
    with pytest.raises(ConfigurationError, match=rf"^data\.label_noise has {len(shares)} entries for 4 silos"):
        noisy(*shares)


def test_wrong_labels_and_a_stream_of_classes_that_a_silo_lacks_exclude_each_other() -> None:
    labels = Partition(scheme="classes")
    with pytest.raises(ConfigurationError, match=r"data\.label_noise hides which classes a silo lacks"):
        DataSettings(n_silos=4, partition=labels, label_noise=(0.1,), ood=data.OodSettings(local="classes"))


def test_names_sort_as_numbers() -> None:
    names = [silo.name for silo in data.load(DataSettings(n_silos=12), 0)]
    assert names == sorted(names)
    assert names[1] == "silo-01"


# Partitions


@pytest.mark.parametrize("alpha", [0.3, 100.0])
def test_dirichlet_gives_no_sample_twice_and_is_as_unequal_as_alpha_says(alpha: float) -> None:
    silos = data.load(DataSettings(n_silos=5, partition=Partition(scheme="dirichlet", alpha=alpha)), 0)
    used = [i for silo in silos for i in positions(silo)]
    assert len(used) == len(set(used))
    counts = torch.stack([silo.train.y.bincount(minlength=10) for silo in silos]).double()
    spread = (counts / counts.sum(0)).std(0).mean()
    assert spread < 0.05 if alpha > 1 else spread > 0.1
    tests = torch.stack([silo.test.y.bincount(minlength=10) for silo in silos]).double()
    assert torch.corrcoef(torch.stack([counts.flatten(), tests.flatten()]))[0, 1] > (0.95 if alpha < 1 else 0)


def test_classes_per_silo_are_exact_and_used_evenly() -> None:
    silos = data.load(DataSettings(n_silos=5, partition=Partition(scheme="classes", per_silo=4)), 0)
    assert [len(torch.cat([getattr(silo, name).y for name in NAMES]).unique()) for silo in silos] == [4] * 5
    owners = torch.stack([silo.train.y.bincount(minlength=10) > 0 for silo in silos]).sum(0)
    assert owners.tolist() == [2] * 10
    used = [i for silo in silos for i in positions(silo)]
    assert len(used) == len(set(used)) == 1797


def test_dealing_follows_the_shares_of_each_class() -> None:
    y = np.repeat([0, 1], 100)
    parts = deal(y, 2, None, np.array([[0.2, 0.8], [1.0, 0.0]]), np.random.default_rng(0))
    assert [np.bincount(y[part], minlength=2).tolist() for part in parts] == [[20, 100], [80, 0]]


def of_pfllib(y: np.ndarray, silos: int, alpha: float, rng: np.random.Generator) -> np.ndarray:
    """Samples per silo and class as PFLlib deals them: class by class, to silos without their even share.

    It rounds down, and the last silo gets the rest, so that it has single samples of classes.
    """
    held = np.zeros((silos, y.max() + 1), int)
    for label, count in enumerate(np.bincount(y)):
        drawn = rng.dirichlet([alpha] * silos) * (held.sum(1) < len(y) / silos)
        ends = (np.cumsum(drawn / drawn.sum())[:-1] * count).astype(int)
        held[:, label] = np.diff([0, *ends, count])
    return held


@pytest.mark.parametrize("alpha", [0.1, 1.0])
def test_pfllib_s_dirichlet_has_its_distribution(alpha: float) -> None:
    y = np.repeat(np.arange(10), 100)
    figures = []
    for seed in range(200):
        rng, other = (np.random.default_rng([seed, each]) for each in (0, 1))
        parts, _ = partition(Partition("pfllib", alpha=alpha, minimum=4), y, 10, 5, None, rng)
        ours = np.array([np.bincount(y[part], minlength=10) for part in parts])
        theirs = of_pfllib(y, 5, alpha, other)
        while theirs.sum(1).min() < 4:
            theirs = of_pfllib(y, 5, alpha, other)
        assert ours.sum() == theirs.sum() == len(y)
        figures.append([(held.sum(1).std(), (held > 1).sum(1).mean(), held.max()) for held in (ours, theirs)])
    ours, theirs = np.array(figures).transpose(1, 0, 2)
    error = np.sqrt((ours.var(0) + theirs.var(0)) / 200)
    assert (abs(ours.mean(0) - theirs.mean(0)) < 4 * error + (1, 0.1, 1)).all()


def test_a_silo_with_its_even_share_gets_no_further_class() -> None:
    y = np.repeat(np.arange(10), 100)
    for seed in range(20):
        parts, _ = partition(Partition("pfllib", minimum=4), y, 10, 5, None, np.random.default_rng(seed))
        for part in parts:
            held = np.bincount(y[part], minlength=10)
            last = np.flatnonzero(held)[-1]
            assert held[:last].sum() < len(y) / 5


def test_silos_have_the_classes_that_are_given() -> None:
    given = (("0", "1"), ("2",), ("1", "9"))
    silos = data.load(DataSettings(partition=Partition(scheme="classes", silo_classes=given)), 0)
    for silo, names in zip(silos, given, strict=True):
        for split in NAMES:
            assert set(getattr(silo, split).y.tolist()) == set(map(int, names))
    shared = [sum(int((getattr(silo, split).y == 1).sum()) for split in NAMES[:3]) for silo in silos]
    assert shared[1] == 0
    assert abs(shared[0] - shared[2]) <= 1
    for change, told in (
        ({"silo_classes": (("0",), ("x",))}, "silo_classes names 'x': no such class"),
        ({"silo_classes": (("0",), ())}, r"silo_classes\[1\] is empty"),
        ({"silo_classes": given, "per_silo": 2}, "per_silo = 2 has no effect if silo_classes is set"),
        ({"silo_classes": (("0", "0"),)}, "contains '0' twice"),
    ):
        with pytest.raises(ConfigurationError, match=told):
            data.load(DataSettings(partition=Partition(scheme="classes", **change)), 0)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="has the classes of 3 silos, expected 4"):
        data.load(DataSettings(n_silos=4, partition=Partition(scheme="classes", silo_classes=given)), 0)


def test_silos_of_one_class_train_with_a_warning() -> None:
    silos = data.load(DataSettings(n_silos=10, partition=Partition(scheme="classes", per_silo=1)), 0)
    assert all(len(set(silo.train.y.tolist())) == 1 for silo in silos)
    assert len({int(silo.train.y[0]) for silo in silos}) == 10
    with pytest.raises(DataError, match="silo 'silo-0': all its training labels are '3', expected two classes"):
        silos.check(16)
    with pytest.warns(DataWarning, match=r"'silo-0': all .* are '3': alone it cannot learn any other class \(and"):
        silos.check(16, one_class=True)
    with pytest.warns(DataWarning, match="cannot learn any other class"):
        run = caveat.run(silos, caveat.FedAvg(rounds=1), training=caveat.Training(batch_size=16))
    assert 0 < run.summary["mean"]["accuracy"] < 0.9


@pytest.mark.parametrize(("silos", "per_silo", "classes"), [(20, 3, 10), (12, 2, 4), (30, 4, 5)])
def test_each_silo_has_as_many_draws_and_each_class_is_split_evenly_over_its_draws(
    silos: int, per_silo: int, classes: int
) -> None:
    y = np.repeat(np.arange(classes), 600)
    labels = Partition(scheme="draws", per_silo=per_silo)
    fewer = 0
    for seed in range(10):
        parts, shares = partition(labels, y, classes, silos, None, np.random.default_rng(seed))
        assert shares is not None
        # The numbers of draws per class are what makes every silo's shares add up to its draws.
        draws, _, rank, _ = np.linalg.lstsq(shares.T, np.full(silos, per_silo), rcond=None)
        dealt = shares * draws[:, None]
        assert rank == classes
        assert np.allclose(dealt, dealt.round())
        assert np.allclose(dealt.sum(axis=0), per_silo)
        assert draws.min() > 0.99
        held = np.stack([np.bincount(y[part], minlength=classes) for part in parts], axis=1)
        assert np.abs(held - 600 * shares).max() <= 1
        assert (held > 0).sum(axis=0).min() >= 2
        fewer += int(((held > 0).sum(axis=0) < per_silo).sum())
    assert (fewer > 0) == (per_silo > 2), "a silo that draws a class twice has fewer, but two at least"


def test_fewer_draws_than_classes_are_all_different() -> None:
    y = np.repeat(np.arange(9), 60)
    parts, shares = partition(Partition("draws", per_silo=2), y, 9, 2, None, np.random.default_rng(0))
    assert shares is not None
    assert sorted(shares.sum(axis=1)) == [0] * 5 + [1] * 4
    assert [len(part) for part in parts] == [120, 120]


def test_draws_deal_the_test_part_by_the_same_shares() -> None:
    silos = data.load(DataSettings(n_silos=10, partition=Partition(scheme="draws")), 0)
    for silo in silos:
        assert set(silo.test.y.tolist()) == set(silo.train.y.tolist())
    used = [i for silo in silos for i in positions(silo)]
    assert len(used) == len(set(used)) == 1797
    with pytest.raises(ConfigurationError, match=r"alpha = 0\.1 is not used by partition 'draws'"):
        Partition(scheme="draws", alpha=0.1)


def test_partition_that_cannot_be_is_one_clear_error() -> None:
    with pytest.raises(DataError, match="none of 100 draws of partition 'dirichlet' gave each of 100 silos"):
        data.load(DataSettings(n_silos=100, partition=Partition(scheme="dirichlet", alpha=0.01)), 0)
    with pytest.raises(
        DataError, match=r"2000 silos with at least 10 samples each need 20000 samples, but there are only 1438"
    ):
        data.load(DataSettings(n_silos=2000), 0)
    with pytest.raises(ConfigurationError, match="per_silo = 11, but the data have only 10 classes"):
        data.load(DataSettings(n_silos=5, partition=Partition(scheme="classes", per_silo=11)), 0)
