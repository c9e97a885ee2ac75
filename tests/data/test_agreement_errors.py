"""What silos cannot agree on, what they must not say, and what strangers send instead: one error each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from data_samples import SEED, SILOS, TABLES, edit_csv, write_csv, write_images

from caveat import data
from caveat.core import ConfigurationError, DataError
from caveat.data.agreement import check_fits, own_schema, own_settings, shared_schema
from caveat.data.settings import DataSettings, Normalize, OodSettings, Partition, Shift
from caveat.data.shared_schema import DataSchema, SharedSchema


def refused(silos: Mapping[str, DataSchema], *words: str, settings: DataSettings = SILOS) -> None:
    with pytest.raises(DataError) as caught:
        shared_schema(silos, settings)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_silos_is_no_source_to_read() -> None:
    with pytest.raises(ConfigurationError, match=r"'on_site' is only for a federation over Flower.*caveat flower init"):
        data.load(TABLES, SEED)
    with pytest.raises(ConfigurationError, match="on_site cannot be joined"):
        DataSettings(source="digits + on_site")
    with pytest.raises(ConfigurationError, match=r"ood.global_source = 'on_site'"):
        OodSettings(global_source="on_site")
    with pytest.raises(ConfigurationError, match="or on_site"):
        DataSettings(source="on_site:here")


@pytest.mark.parametrize(
    ("key", "settings"),
    [
        ("data.n_silos = 3", {"n_silos": 3}),
        ("data.silo_column = 'ward' is not used", {"silo_column": "ward"}),
        ("data.shift.angles", {"shift": Shift(angles=(0, 90))}),
        ("data.shift.noise_std", {"shift": Shift(noise_std=(1.0,))}),
        ("data.partition.scheme = 'classes'", {"partition": Partition(scheme="classes")}),
        ("data.ood.local = 'classes'", {"ood": OodSettings(local="classes")}),
        ("data.ood.held_out_classes", {"ood": OodSettings(held_out_classes=("7",))}),
    ],
)
def test_what_needs_the_data_of_other_silos_is_refused(key: str, settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        DataSettings(source="on_site", **settings)
    assert key in str(caught.value)
    assert "silo" in str(caught.value)


@pytest.mark.parametrize("source", ["on_site", "hub:mnist", "digits + digits", "tape:x"])
def test_sources_that_one_silo_cannot_read(source: str) -> None:
    with pytest.raises(ConfigurationError, match=r"data.source"):
        own_settings(SILOS, source)


@pytest.fixture
def wards(tmp_path: Path) -> list[Path]:
    return [write_csv(tmp_path / f"{name}.csv") for name in "ab"]


def test_a_target_has_to_be_named_by_someone(wards: list[Path]) -> None:
    with pytest.raises(ConfigurationError, match=r"data.target is missing"):
        own_settings(SILOS, f"csv:{wards[0]}")
    with pytest.raises(ConfigurationError, match=r"data.target = 'ill' is not used by source 'digits'"):
        own_settings(TABLES, "digits")


def test_no_part_of_the_source_is_called_like_the_silo(wards: list[Path], tmp_path: Path) -> None:
    folder = write_images(tmp_path / "all", {"east": {"2": 9, "10": 9}, "west": {"10": 9, "7": 9}})
    for settings in (own_settings(TABLES, f"csv:{wards[0]},{wards[1]}"), own_settings(SILOS, f"images:{folder}")):
        with pytest.raises(DataError, match="or one with the silo's name, 'north'"):
            own_schema(settings, SEED, "north")


def test_two_files_of_one_name(wards: list[Path], tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    other = write_csv(tmp_path / "more" / "a.csv", seed=1)
    with pytest.raises(DataError, match="several files are called 'a'"):
        own_schema(own_settings(TABLES, f"csv:{wards[0]},{other}"), SEED, "a")


def test_a_column_of_names_does_not_leave_the_silo(wards: list[Path]) -> None:
    for row in range(60):
        edit_csv(wards[0], row, 3, f"patient {row}")
    with pytest.raises(DataError, match=r"'ward' has .* look like names") as caught:
        own_schema(own_settings(TABLES, f"csv:{wards[0]}", categorical=("ward",)), SEED, "a")
    assert "patient" not in str(caught.value)


FEATURES = DataSchema(("0", "1"), (2,))
GREY = DataSchema(("0", "1"), (6, 6, 1))


def table(labels: tuple[str, ...] = ("no", "yes"), **columns: str) -> DataSchema:
    said = [
        {"name": name, "holds": holds, "categories": ["x"] if holds == "texts" else [], "missing": False}
        for name, holds in columns.items()
    ]
    return DataSchema.of_json({"labels": list(labels), "shape": [len(said)], "columns": said})


@pytest.mark.parametrize(
    ("silos", "words"),
    [
        ({}, ["no silo"]),
        ({"a": DataSchema(("1",), (2,)), "b": DataSchema(("1",), (2,))}, ["a, b", "'1'", "two classes"]),
        ({"a": FEATURES, "b": GREY}, ["silo 'a'", "(2,)", "silo 'b'", "(6, 6, 1)"]),
        ({"a": FEATURES, "b": DataSchema(("0", "1"), (3,))}, ["(2,)", "silo 'b'", "(3,)"]),
        ({"a": GREY, "b": DataSchema(("0",), (6, 7, 3))}, ["(6, 6, 1)", "(6, 7, 3)", "data.size"]),
        ({"a": GREY, "b": DataSchema(("0",), (6, 6, 4))}, ["silo 'b'", "4"]),
        ({"a": table(u="numbers", v="texts"), "b": FEATURES}, ["'a' has a table", "'b' does not"]),
        ({"a": table(u="numbers"), "b": table(u="numbers", v="texts")}, ["'a' and 'b'", "columns 'v'"]),
        ({"a": table(u="numbers"), "b": table(u="texts")}, ["'u'", "texts at silo 'b'", "data.categorical"]),
        (
            {"a": FEATURES, "b": DataSchema(("no", "yes"), (2,))},
            ["numbers at silo 'a'", "texts at silo 'b' ('no', 'yes')"],
        ),
        ({"a": FEATURES, "b": DataSchema(("1", "2", "0"), (2,))}, ["silo 'b'", "in the order '1', '2', '0'"]),
    ],
)
def test_silos_that_cannot_agree_are_told_who_differs_in_what(silos: dict[str, DataSchema], words: list[str]) -> None:
    refused(silos, *words)


def test_settings_that_do_not_fit_what_silos_have() -> None:
    with pytest.raises(ConfigurationError, match=r"data.normalize is for images"):
        shared_schema({"a": FEATURES}, DataSettings(source="on_site", normalize=Normalize(mean=(0.1,))))
    with pytest.raises(ConfigurationError, match=r"data.size = 8 is for images"):
        shared_schema({"a": FEATURES}, DataSettings(source="on_site", size=8))


def test_categories_of_numbers_by_name() -> None:
    settings = DataSettings(source="on_site", categorical=("u",))
    shared = shared_schema({"a": table(u="texts"), "b": table(u="nothing")}, settings)
    assert shared.columns[0].categories == ("x",)
    assert shared_schema({"a": table(u="nothing")}, settings).columns[0].categories == ()
    assert shared_schema({"a": table(u="nothing")}, SILOS).columns[0].categories is None


@pytest.mark.parametrize(
    ("late", "words"),
    [
        (table(("maybe",), u="numbers", v="texts"), ["label 'maybe'", "'no', 'yes'"]),
        (table(("yes", "no"), u="numbers", v="texts"), ["in the order 'yes', 'no'"]),
        (table(u="numbers"), ["columns 'v'"]),
        (table(u="texts", v="texts"), ["'u' contains texts at silo 'late'", "data.categorical"]),
        (DataSchema(("no",), (6, 6, 1)), ["columns 'u', 'v'"]),
    ],
)
def test_a_silo_that_joins_later_and_does_not_fit(late: DataSchema, words: list[str]) -> None:
    shared = shared_schema({"a": table(u="numbers", v="texts")}, SILOS)
    with pytest.raises(DataError) as caught:
        check_fits(shared, "late", late)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_a_later_silo_has_the_agreed_size_and_colours() -> None:
    shared = shared_schema({"a": DataSchema(("0", "1"), (6, 6, 3))}, SILOS)
    check_fits(shared, "grey", GREY)
    for shape in ((5, 6, 1), (4,)):
        with pytest.raises(DataError, match="silo 'late' has inputs of shape"):
            check_fits(shared, "late", DataSchema(("0",), shape))
    check_fits(
        shared_schema({"a": GREY}, DataSettings(source="on_site", size=4)), "late", DataSchema(("0",), (99, 7, 1))
    )


SAID = table(u="numbers", v="texts").to_json()
AGREED = shared_schema({"a": table(u="numbers", v="texts")}, SILOS).to_json()
COLUMN = {"name": "u", "holds": "numbers", "categories": [], "missing": False}


@pytest.mark.parametrize(
    "malformed",
    [
        None, [], "sketch", {}, {"labels": ["0"]}, object(), float("nan"),
        SAID | {"rows": 60},
        SAID | {"labels": []},
        SAID | {"labels": ["no", "no"]},
        SAID | {"labels": ["no", 1]},
        SAID | {"labels": [""]},
        SAID | {"labels": ["x" * 501]},
        SAID | {"labels": [str(n) for n in range(10_001)]},
        SAID | {"shape": [3]},
        SAID | {"shape": [2.0]},
        SAID | {"shape": [True, True]},
        {"labels": ["0"], "shape": [-1]},
        {"labels": ["0"], "shape": [1 << 40]},
        {"labels": ["0"], "shape": [1, 2, 3, 4]},
        {"labels": ["0"], "shape": []},
        {"labels": ["0"], "shape": [1], "columns": [COLUMN | {"holds": "secrets"}]},
        {"labels": ["0"], "shape": [1], "columns": [COLUMN | {"categories": ["x"]}]},
        {"labels": ["0"], "shape": [1], "columns": [COLUMN | {"mean": 3.5}]},
        {"labels": ["0"], "shape": [2], "columns": [COLUMN, COLUMN]},
    ],
)  # fmt: skip
def test_a_malformed_sketch(malformed: object) -> None:
    with pytest.raises(DataError, match=r"a silo's schema is malformed: .") as caught:
        DataSchema.of_json(malformed)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "malformed",
    [
        None,
        {},
        AGREED | {"classes": ["no"]},
        AGREED | {"size": 4},
        AGREED | {"columns": []} | {"shape": [0]},
        AGREED | {"columns": [{"name": "u", "categories": ["x"], "flagged": True}], "shape": [1]},
        AGREED | {"weights": [1.0]},
    ],
)
def test_a_malformed_agreement(malformed: object) -> None:
    with pytest.raises(DataError, match=r"the shared schema is malformed: ."):
        SharedSchema.of_json(malformed)


def test_a_deeply_nested_sketch() -> None:
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    with pytest.raises(DataError, match="malformed"):
        DataSchema.of_json({"labels": nested})
