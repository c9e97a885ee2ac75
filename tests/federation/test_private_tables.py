"""What of a hospital's table leaves it: what its own file allows, and never a value in what a refusal tells others."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from flwr.common.serde import recorddict_to_proto
from hospitals import Federation, hospital, summary

from caveat.config import load
from caveat.core import ConfigurationError, DataError, Refused, RunError
from caveat.core.silo import SiloInfo
from caveat.data.agreement import shared_schema
from caveat.data.shared_schema import DataSchema
from caveat.data.tables.declarations import DictionaryColumn
from caveat.federation.request_terms import Terms
from caveat.federation.server.agreement import unlike_others
from caveat.federation.silo.app import without_details
from caveat.federation.silo.member import SiloSide
from caveat.federation.silo.silo_file import read_silo_file

SURNAMES = [
    f"{first}{last}"
    for first in ("Abel", "Berg", "Carl", "Dorn", "Eich", "Falk", "Grau", "Hell", "Iber", "Jung", "Kern", "Lind")
    for last in ("mann", "feld", "hofer", "stein", "ova")
]
"""60 that nobody has."""
NUMBERS = tuple(DictionaryColumn(name=name, range=(-10, 10)) for name in ("age", "pressure"))
SITES = tuple(DictionaryColumn(name=name, type="category") for name in ("site", "smoker"))


def terms_of(folder: Path, *sets: str, **data: Any) -> Terms:
    """The terms of a federation before its silos agree, with other settings of `[data]`."""
    if not (folder / "config.toml").exists():
        Federation(folder)
    config = load(str(folder / "config.toml"), sets)
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, **data))
    return Terms("abc", config, config.method.name, "", ())


def silo(home: Path, replace: dict[str, str] | None = None, more: str = "") -> SiloSide:
    """The silo of a home whose `silo.toml` is edited."""
    path = home / "silo.toml"
    text = path.read_text()
    for old, new in (replace or {}).items():
        assert old in text
        text = text.replace(old, new)
    path.write_text(text + more)
    return SiloSide(read_silo_file(path))


def told(member: SiloSide, terms: Terms, capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    """What the server and the silo's own log say of a refusal."""
    capsys.readouterr()
    with pytest.raises(RunError) as refused, without_details():
        member.introduce(terms)
    return str(refused.value), capsys.readouterr().err


def recode(table: Path, column: str, codes: dict[str, str]) -> None:
    """Other cells of a column."""
    header, *rows = [line.split(",") for line in table.read_text().splitlines()]
    at = header.index(column)
    rows = [[codes.get(cell, cell) if i == at else cell for i, cell in enumerate(row)] for row in rows]
    table.write_text("\n".join(map(",".join, [header, *rows])) + "\n")


@pytest.fixture(scope="module")
def homes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("federation")
    Federation(folder)
    return folder


# Surnames


def written(text: str) -> set[bytes]:
    """How a text could be hidden: as it is, in lower case, hashed and encoded."""
    found = set()
    for each in (text, text.lower(), text.upper()):
        raw = each.encode()
        digests = [hashlib.new(name, raw) for name in ("sha256", "md5", "sha1")]
        found |= {raw, raw.hex().encode(), *(d.digest() for d in digests), *(d.hexdigest().encode() for d in digests)}
        # Base 64 at each of the three places where a text can begin in others.
        found |= {base64.b64encode(b" " * i + raw)[-(-8 * i // 6) : (i + len(raw)) * 8 // 6] for i in range(3)}
    return found


CANARIES = {form for surname in SURNAMES for form in written(surname)}


def leaking(content: bytes) -> list[bytes]:
    return [canary for canary in CANARIES if canary in content]


def test_the_search_for_surnames_finds_them_however_they_are_written() -> None:
    for form in (
        b"x Abelmann y",
        b"abelmann",
        base64.b64encode(b"ab: Abelmann, Linda"),
        base64.b64encode(b"cAbelmann"),
    ):
        assert leaking(form)
    assert leaking(hashlib.sha256(b"Lindova").digest())
    assert not leaking(b"nobody")


def test_none_of_sixty_surnames_leaves_its_silo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither while the column is refused nor while it is left out, in no message, error, note or file elsewhere."""
    federation = Federation(tmp_path, "fedavg", rounds=1, quorum=3, start_timeout=0.5)
    home = federation.homes["hill"]
    first, *rows = (home / "hill.csv").read_text().splitlines()
    rows = [f"{row},{SURNAMES[i % 60]}" for i, row in enumerate([*rows, *rows])]
    (home / "hill.csv").write_text("\n".join([f"{first},surname", *rows]) + "\n")
    passed, app = [], federation.grid.apps[federation.node["hill"]]

    def listening(message: Any, context: Any) -> Any:
        try:
            reply = app(message, context)
        except Exception as error:
            passed.append(str(error).encode())
            raise
        passed.append(recorddict_to_proto(reply.content).SerializeToString())
        return reply

    federation.grid.apps[federation.node["hill"]] = listening  # type: ignore[assignment]
    with pytest.raises(RunError, match="3 silos are needed"):
        federation.serve()
    refused = next(note for note in federation.notes if "is refused" in note)
    assert "silo 'hill' refuses, a column that is not agreed on: the silo sends categories only for columns" in refused
    log = capsys.readouterr().err
    assert "hill.csv: column 'surname' contains text" in log
    assert "remove the column with 'surname' = false in [data.rename_columns] of silo.toml; naming the column in" in log
    notes = federation.notes
    silo(home, more="[data.rename_columns]\nsurname = false\n")
    federation.serve(load(str(tmp_path / "config.toml"), ["federation.start_timeout=30"]))
    assert len(summary(federation.run)["silos"]) == 3
    assert len(passed) > 4
    elsewhere = [path for path in tmp_path.rglob("*") if path.is_file() and home not in path.parents]
    assert federation.run / "federation.json" in elsewhere
    others = [path.read_bytes() for path in elsewhere] + passed + [note.encode() for note in notes + federation.notes]
    assert [leak for content in others for leak in leaking(content)] == []


# What the server asks for


@pytest.mark.parametrize(
    ("asked", "rule"),
    [
        ({"target": "age"}, "silo 'hill' refuses, 'age': the column to predict must be the one that the silo names"),
        (
            {"categorical": ("site", "pressure")},
            "refuses, 'pressure': the silo sends categories only for columns that it",
        ),
        ({"classes": ()}, "a federation of tables needs data.classes in config.toml"),
        (
            {"classes": ("0", "1")},
            "a federation of tables needs data.classes in config.toml: the meaning of each class",
        ),
        (
            {"dictionary": (*NUMBERS[:1], *SITES, DictionaryColumn(name="pressure", type="category"))},
            "refuses, 'pressure': the silo sends categories only",
        ),
    ],
)
def test_a_server_that_digs_is_refused_by_the_silo(
    asked: dict[str, Any], rule: str, homes: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server, log = told(
        SiloSide(read_silo_file(homes / "silos" / "hill" / "silo.toml")), terms_of(homes, **asked), capsys
    )
    assert rule in server
    assert server.endswith("; see the log at the silo")
    assert "silo.toml" in log


def test_a_server_that_leaves_out_the_questions_is_refused_too(homes: Path) -> None:
    """Categories that somebody made up for the agreement would show in a model whether a silo has them."""
    member = SiloSide(read_silo_file(homes / "silos" / "hill" / "silo.toml"))
    terms = terms_of(homes)
    schema = DataSchema.of_json(json.loads(str(member.introduce(terms)["sketch"])))
    agreed = shared_schema({"hill": schema}, terms.config.data)
    columns = tuple(dataclasses.replace(each, categories=("1.5",), flagged=False) for each in agreed.columns)
    forged = dataclasses.replace(terms, agreement=dataclasses.replace(agreed, columns=columns))
    with pytest.raises(DataError, match="refuses, 'age': the silo sends categories only for columns that it allows"):
        member.join(forged)


def test_a_new_federation_of_tables_names_its_classes_in_words(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    for sets, told_ in (
        ("data.classes=[]", "data.classes is missing, expected the meaning of each class, such as"),
        ('data.classes=["0", "1"]', "are codes, which may mean different things at different silos"),
    ):
        with pytest.raises(ConfigurationError, match=told_):
            federation.serve(load(str(tmp_path / "config.toml"), [sets]))
    assert not federation.run.exists()


def test_a_silo_that_names_no_target_is_told_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    terms = terms_of(tmp_path)
    member = silo(tmp_path / "silos" / "hill", {'target = "outcome"\n': ""})
    server, log = told(member, terms, capsys)
    assert "silo.toml, [data] target" in server
    assert "data.target is missing, expected the column to predict" in log


# Codes of labels


@pytest.mark.parametrize("codes", [{"well": "1", "ill": "2"}, {"well": "0", "ill": "1"}, {"ill": "3"}])
def test_labels_that_are_coded_otherwise_are_refused_until_they_are_declared(
    codes: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    terms, home = terms_of(tmp_path), tmp_path / "silos" / "hill"
    expected = silo(home).introduce(terms)
    recode(home / "hill.csv", "outcome", codes)
    server, log = told(silo(home), terms, capsys)
    assert "silo 'hill' refuses, 'outcome': labels must be in data.classes" in server
    assert "declare in [data.label_codes] of silo.toml" in log
    lines = "".join(f'"{code}" = "{meaning}"\n' for meaning, code in codes.items())
    member = silo(home, more=f"[data.label_codes]\n{lines}")
    assert member.introduce(terms) == expected


def test_several_codes_can_be_one_class_and_a_meaning_that_is_none_is_refused(tmp_path: Path) -> None:
    terms, home = terms_of(tmp_path), tmp_path / "silos" / "hill"
    recode(home / "hill.csv", "outcome", {"well": "0"})
    header, *rows = (home / "hill.csv").read_text().splitlines()
    rows = [row.replace(",ill", f",{1 + i % 4}") for i, row in enumerate(rows)]
    (home / "hill.csv").write_text("\n".join([header, *rows]) + "\n")
    labels = '[data.label_codes]\n0 = "well"\n1 = "ill"\n2 = "ill"\n3 = "ill"\n'
    with pytest.raises(DataError, match=r"labels must be in data\.classes"):
        silo(home, more=labels).introduce(terms)
    silo(home, more='4 = "ill"\n').introduce(terms)
    with pytest.raises(DataError, match=r"labels must be in data\.classes"):
        silo(home, {'4 = "ill"': '4 = "very ill"'}).introduce(terms)


def test_a_silo_whose_classes_are_as_frequent_as_nowhere_else_is_named() -> None:
    def card(name: str, ill: int) -> SiloInfo:
        return SiloInfo(name, "", {"train": 100}, (100 - ill, ill))

    found = {name: card(name, ill) for name, ill in (("a", 30), ("b", 38), ("c", 66))}
    (line,) = unlike_others(found, ("well", "ill"))
    assert line.startswith("silo c: 34% of its training examples are 'well', at other silos 62% to 70%")
    assert unlike_others(found | {"c": card("c", 45)}, ("well", "ill")) == []
    assert unlike_others({"a": found["a"]}, ("well", "ill")) == []


# Small counts


def test_small_counts_leave_only_where_the_silo_allows_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    terms, home = terms_of(tmp_path), tmp_path / "silos" / "hill"
    member = silo(home, {"small_counts = true": "small_counts = false"})
    schema = DataSchema.of_json(json.loads(str(member.introduce(terms)["sketch"])))
    terms = dataclasses.replace(terms, agreement=shared_schema({"hill": schema}, terms.config.data), names=("hill",))
    with pytest.raises(RunError) as refused, without_details():
        member.join(terms)
    told = str(refused.value)
    assert "silo 'hill' refuses: counts of 1 to 4 rows leave the silo only if it allows that" in told
    assert "'ill'" not in told  # of a split of one row the class would be its label
    log = capsys.readouterr().err
    assert "the split 'validation' has fewer than 5 rows of class 'ill'; set data.small_counts = true in" in log
    assert "card" in silo(home, {"small_counts = false": "small_counts = true"}).join(terms)


# The data dictionary


@pytest.mark.parametrize(
    ("column", "file", "server", "log"),
    [
        (
            {"range": (-1, 0.5), "unit": "kPa"}, "", "'age': values must be in the range of data.dictionary",
            "the dictionary allows only values from -1 to 0.5 kPa; ",
        ),
        (
            {"unit": "years"}, '[data.rename_columns]\nage = {unit = "months"}\n', "'age': numbers must be in the unit",
            "column 'age' is in 'months', but the dictionary has it in 'years'; expected",
        ),
        ({}, '[data.rename_columns]\nage = "old"\n', "'age': columns must be in data.dictionary",
         "no column 'age'"),
    ],
)  # fmt: skip
def test_what_is_not_as_the_dictionary_has_it_is_refused(
    column: dict[str, Any], file: str, server: str, log: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dictionary = (DictionaryColumn(name="age", **column), *NUMBERS[1:], *SITES)
    terms = terms_of(tmp_path, dictionary=dictionary)
    found = told(silo(tmp_path / "silos" / "hill", more=file), terms, capsys)
    assert f"silo 'hill' refuses, {server}" in found[0]
    assert log in found[1]


def test_columns_and_units_of_a_silo_s_own_come_to_the_agreed_ones(tmp_path: Path) -> None:
    terms, home = terms_of(tmp_path, dictionary=(*NUMBERS, *SITES)), tmp_path / "silos" / "hill"
    expected = silo(home).introduce(terms)
    header, *rows = [line.split(",") for line in (home / "hill.csv").read_text().splitlines()]
    header = ["alter", *header[1:], "note"]
    rows = [[repr(float(row[0]) * 4), *row[1:], f"free text {i}"] for i, row in enumerate(rows)]
    (home / "hill.csv").write_text("\n".join(map(",".join, [header, *rows])) + "\n")
    columns = '[data.rename_columns]\nalter = {name = "age", unit = "quarters", factor = 0.25}\n'
    assert silo(home, more=columns).introduce(terms) == expected  # "note" is not read, as the dictionary lacks it


def test_a_silo_with_its_own_copy_of_the_dictionary_is_asked_by_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By refusals, a server that changes ranges could search for the extremes of a column."""
    terms, home = terms_of(tmp_path, dictionary=(*NUMBERS, *SITES)), tmp_path / "silos" / "hill"
    sections = [f"[{name}]\nrange = [-10, 10]" for name in ("age", "pressure")]
    sections += [f"[{name}]\ntype = 'category'" for name in ("site", "smoker")]
    (home / "d.toml").write_text("\n".join(sections))
    member = silo(home, more='dictionary = "d.toml"\n')
    assert "sketch" in member.introduce(terms)
    for other in ((), (dataclasses.replace(NUMBERS[0], range=(-10, 2)), *NUMBERS[1:], *SITES)):
        server, log = told(member, terms_of(tmp_path, dictionary=other), capsys)
        assert "silo 'hill' refuses: the data dictionary must be the same as the silo's own copy" in server
        assert "data.dictionary differs from the server's in age" in log
    (home / "d.toml").write_text("[age]\nrange = 3\n")
    with pytest.raises(ConfigurationError, match=r"d\.toml:2: age\.range = 3"):
        read_silo_file(home / "silo.toml")


@pytest.mark.parametrize(
    ("more", "told_"),
    [
        ("[data.label_codes]\n0 = 3\n", r"\[data.label_codes\]: 0.meaning"),
        ("[data.rename_columns]\nage = 3\n", r"\[data.rename_columns\]: 0.name"),
        ('[data.rename_columns]\nage = {unity = "a"}\n', r"\[data.rename_columns\]: 0.unity"),
        ("label_codes = 3\n", "data.label_codes = 3, expected dict"),
    ],
)
def test_a_silo_s_file_names_what_is_declared_wrongly(tmp_path: Path, more: str, told_: str) -> None:
    home = hospital(tmp_path, "hill", 1)
    with pytest.raises(ConfigurationError, match=told_) as caught:
        silo(home, more=more)
    assert str(caught.value).startswith(f"{home / 'silo.toml'}: ")


def test_refusals_are_errors_of_data_whose_rule_is_told() -> None:
    with pytest.raises(Refused) as refused:
        raise Refused("secret 17", "range", "age")
    assert (refused.value.rule, refused.value.column) == ("range", "age")
