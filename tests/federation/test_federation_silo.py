"""What a silo does not do, whatever the server of its federation asks."""

from __future__ import annotations

import dataclasses
import json
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import caveat as evaluate
from federations import assert_same
from flwr.app import Message, RecordDict
from hospitals import Federation, hospital

import caveat
from caveat.config import load
from caveat.core import ConfigurationError, DataError, Payload, RunError, Update
from caveat.data.agreement import own_schema
from caveat.data.new_inputs import noted_inputs, read_inputs
from caveat.engines.flower_messages import Order, unpack, words_of
from caveat.federation.request_terms import Terms
from caveat.federation.silo.app import without_details
from caveat.federation.silo.member import MODEL_FILES, SiloSide, open_member
from caveat.federation.silo.silo_file import read_silo_file
from caveat.federation.silo.store import OwnBooks
from caveat.files import read_payload, write_record
from caveat.files.schema import SiloKeeps, SiloSource
from caveat.runs.finished_run import Run
from caveat.runs.stored_preparation import PREPARATION

pytestmark = pytest.mark.long

PLAIN = ("uncertainty.temperature_scaling=false", "uncertainty.familiarity=false")
"""So that the last rounds are of training."""


class Asked:
    """A federation that is over, and one of its silos with what it was asked."""

    def __init__(self, folder: Path, method: str = "fedavg", rounds: int = 1, more: tuple[str, ...] = ()) -> None:
        self.federation, self.orders = Federation(folder, method, rounds), list[RecordDict]()
        deliver, hill = self.federation.grid._deliver, self.federation.node["hill"]

        def delivered(message: Message) -> str:
            if message.metadata.dst_node_id == hill and message.metadata.message_type == "train":
                self.orders.append(RecordDict(message.content))
            return deliver(message)

        self.federation.grid._deliver = delivered  # type: ignore[method-assign]
        self.federation.serve(load(str(folder / "config.toml"), [*PLAIN, *more]))
        self.member = SiloSide(read_silo_file(self.federation.homes["hill"] / "silo.toml"))
        self.terms = Terms.of_text(str(words_of(self.orders[0])["terms"]))

    def order(self, i: int = 0, **changes: Any) -> tuple[Order, Payload]:
        words = words_of(self.orders[i])
        order = Order(int(words["t"]), str(words["task"]), int(words["counted"]), str(words["silo"]))
        return order._replace(**changes), unpack(self.orders[i])

    def perform(self, i: int = 0, terms: Terms | None = None, **changes: Any) -> Update:
        return self.member.perform(terms or self.terms, *self.order(i, **changes))

    def configured(self, *sets: str) -> Terms:
        return dataclasses.replace(
            self.terms, config=load(str(self.federation.folder / "config.toml"), [*PLAIN, *sets])
        )


def test_a_silo_does_no_work_that_is_no_round_s(tmp_path: Path) -> None:
    asked = Asked(tmp_path, more=("privacy.clip_norm=0.001",))
    assert asked.perform().examples == 1
    for task in ("base.base.train", "base.base.aggregate", "base.broadcast", "__class__", "base.check"):
        with pytest.raises(RunError, match="neither a task of a round nor an evaluation"):
            asked.perform(task=task)


def test_a_silo_keeps_to_the_configuration_that_it_joined_with(tmp_path: Path) -> None:
    asked = Asked(tmp_path, more=("privacy.clip_norm=0.001",))
    privacy = "privacy.clip_norm=0.001"
    for sets in (
        (),
        ("privacy.clip_norm=100",),
        (privacy, "data.target=age"),
        (privacy, "federation.min_available_silos=9"),
    ):
        other = asked.configured(*sets)
        for act in (asked.member.join, lambda terms: asked.perform(terms=terms)):
            with pytest.raises(DataError, match="stored at joining"):
                act(other)
    asked.perform(terms=asked.configured(privacy, "federation.quorum=1", "federation.round_timeout=9"))
    with pytest.raises(DataError, match="'fedprox' is not a method of the federation"):
        asked.perform(terms=dataclasses.replace(asked.terms, method="fedprox"))


def test_a_silo_writes_nowhere_but_in_its_state_folder(tmp_path: Path) -> None:
    asked = Asked(tmp_path)
    for name in (str(tmp_path / "outside"), "../outside", "", "a/b"):
        with pytest.raises(DataError, match="is not a valid name of a federation"):
            asked.member.join(dataclasses.replace(asked.terms, federation=name))
    assert not list(tmp_path.rglob("outside*"))


def test_an_order_of_a_round_that_is_over_changes_nothing(tmp_path: Path) -> None:
    asked = Asked(tmp_path, "scaffold", rounds=3)
    folder = asked.federation.kept("hill") / "state" / "silos" / "hill"
    before = {path.name: read_payload(path) for path in folder.iterdir()}
    with pytest.raises(RunError, match="for round 1 of the schedule, but the silo already has a state of round 3"):
        asked.perform(0)
    assert {path.name for path in folder.iterdir()} == set(before)
    for name, state in before.items():
        assert_same(state, read_payload(folder / name))


def test_labels_that_look_like_names_are_not_told(tmp_path: Path) -> None:
    asked = Asked(tmp_path)
    table = asked.federation.homes["hill"] / "hill.csv"
    first, *rows = table.read_text().splitlines()
    table.write_text("\n".join([f"{first},surname", *(f"{row},Person{i // 2}" for i, row in enumerate(rows))]) + "\n")
    elsewhere = dataclasses.replace(asked.configured("data.target=surname"), federation="another")
    with pytest.raises(
        DataError, match="refuses, 'surname': the column to predict must be the one that the silo names"
    ):
        asked.member.introduce(elsewhere)
    renamed = dataclasses.replace(asked.member.file, target="surname")
    with pytest.raises(DataError, match=r"refuses, 'surname': labels must be in data\.classes"):
        SiloSide(renamed).introduce(elsewhere)
    # Where nobody has named classes, they are looked at.
    settings = dataclasses.replace(renamed.settings(elsewhere.config.data), classes=())
    with pytest.raises(DataError, match=r"rows have 40 labels, .* look like names; set data.target in silo.toml"):
        own_schema(settings, 3, "hill")


def edited(home: Path, **data: str) -> SiloSide:
    """The silo of a table, with keys of its own under `[data]`."""
    text = (home / "silo.toml").read_text() + "".join(f"{key} = {value}\n" for key, value in data.items())
    (home / "silo.toml").write_text(text)
    return SiloSide(read_silo_file(home / "silo.toml"))


def test_a_silo_says_how_its_own_table_is_written(tmp_path: Path) -> None:
    """The sketch is that of the same table in the federation's way, and predictions read rows in the silo's way."""
    asked = Asked(tmp_path)
    home = asked.federation.homes["hill"]
    expected = asked.member.introduce(asked.terms)
    tensors = asked.member.data.silos(asked.terms)[0].train
    written = (home / "hill.csv").read_text().replace(",", "|").replace(".", ",")
    (home / "hill.csv").write_text(written)
    member = edited(home, decimal='","', separator='"|"', numeric='["age", "pressure"]')
    assert member.introduce(asked.terms) == expected
    silos = member.data.silos(asked.terms)
    assert torch.equal(silos[0].train.x, tensors.x)
    assert torch.equal(read_inputs(home / "hill.csv", silos, "hill")[silos[0].indices["train"]], tensors.x)
    again = Federation(tmp_path / "again", "fedavg", 1)
    (again.homes["hill"] / "hill.csv").write_text(written)
    edited(again.homes["hill"], decimal='","', separator='"|"')
    again.serve()
    kept = open_member(again.kept("hill"))
    assert len(kept.predictor("hill")(noted_inputs(home / "hill.csv", kept.silos, "hill"))) == 80
    told = evaluate(
        "predict", again.kept("hill"), home / "hill.csv", "--silo", "hill", "--report", tmp_path / "page.html"
    )
    assert told.exit_code == 0, told.stderr
    assert "of 80 inputs" in (tmp_path / "page.html").read_text().replace("</b>", "")


def test_magnitudes_leave_only_where_the_silo_allows_it(tmp_path: Path) -> None:
    asked = Asked(tmp_path)

    def told(member: SiloSide) -> list[int | None]:
        columns = json.loads(str(member.introduce(dataclasses.replace(asked.terms, agreement=None))["sketch"]))[
            "columns"
        ]
        return [each["magnitude"] for each in columns if each["holds"] == "numbers"]

    assert set(told(asked.member)) == {None}
    assert all(isinstance(each, int) for each in told(edited(asked.federation.homes["hill"], magnitudes="true")))


def test_a_silo_has_its_own_column_of_groups(tmp_path: Path) -> None:
    """The column is no input, and the server does not learn of it; the silo draws its splits by group."""
    asked = Asked(tmp_path)
    home = asked.federation.homes["hill"]
    expected = asked.member.introduce(asked.terms)
    first, *rows = (home / "hill.csv").read_text().splitlines()
    lines = [f"{first},who,when", *(f"{row},p{i // 4},{i}" for i, row in enumerate(rows))]
    (home / "hill.csv").write_text("\n".join(lines) + "\n")
    member = edited(home, groups='"who"', time='"when"')
    sent = member.introduce(asked.terms)
    assert all(word not in str(sent) for word in ("who", "when", "p1"))
    assert {each["name"] for each in json.loads(str(sent["sketch"]))["columns"]} == {
        each["name"] for each in json.loads(str(expected["sketch"]))["columns"]
    }
    (silo,) = member.data.silos(asked.terms)
    at = {name: (silo.indices[name].numpy() // 4).tolist() for name in ("train", "validation", "calibration", "test")}
    assert all(max(one) < min(other) for one, other in pairwise(at.values()))
    assert len(set(at["test"])) == len(at["test"]) == 4


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("groups", "3", "data.groups = 3, expected str"),
        ("decimal", '";"', "decimal = ';'"),
        ("separator", '";;"', "data.separator = ';;'"),
        ("numeric", '["age", 3]', "numeric"),
        ("numeric", '"age"', "data.numeric = 'age', expected list"),
        ("decimals", '","', "unknown key data.decimals; available: source, target, categorical, numeric, decimal"),
    ],
)
def test_a_silo_s_file_names_the_key_that_is_wrong(tmp_path: Path, key: str, value: str, told: str) -> None:
    home = hospital(tmp_path, "hill", 1)
    with pytest.raises(ConfigurationError) as caught:
        edited(home, **{key: value})
    assert told in str(caught.value)
    assert str(caught.value).startswith(f"{home / 'silo.toml'}: ")


def test_a_cell_that_is_refused_stays_at_the_silo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    federation = Federation(tmp_path)
    table = federation.homes["hill"] / "hill.csv"
    lines = table.read_text().splitlines()
    age, rest = lines[7].split(",", 1)
    table.write_text("\n".join([*lines[:7], f"secret{age},{rest}", *lines[8:]]) + "\n")
    with pytest.raises(RunError):
        federation.serve()
    assert not any("secret" in note for note in federation.notes)
    assert any("hill" in note or "8" in note for note in federation.notes)
    assert "line 8: 'age' is 'secret" in capsys.readouterr().err


def test_a_silo_s_state_is_for_nobody_else_to_read(tmp_path: Path) -> None:
    asked = Asked(tmp_path)
    state = asked.member.file.state
    assert state.stat().st_mode & 0o777 == 0o700
    assert (state / "secret").stat().st_mode & 0o777 == 0o600
    assert not list(state.glob(".secret*"))


def test_a_secret_is_there_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = Federation(tmp_path).homes["hill"]

    def killed(_: int) -> str:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("secrets.token_hex", killed)
        with pytest.raises(KeyboardInterrupt):
            read_silo_file(home / "silo.toml").secret()
    secret = read_silo_file(home / "silo.toml").secret()
    assert secret == read_silo_file(home / "silo.toml").secret() > 2**64


def test_a_server_tells_silos_nothing_of_its_machine(tmp_path: Path) -> None:
    assert Asked(tmp_path).terms.folder == ""


# Opening what a silo keeps


@pytest.mark.parametrize("positive", ["ill", "well"])
def test_what_a_silo_keeps_is_measured_as_a_run_is(positive: str, tmp_path: Path) -> None:
    """On a table with labels, at the silo, which has no summary of the run; by the configured positive class."""
    asked = Asked(tmp_path, more=(f"data.positive_class={positive}",))
    table = asked.federation.homes["hill"] / "hill.csv"
    found = evaluate("evaluate", asked.federation.kept("hill"), table, "--silo", "hill", "--target", "outcome")
    assert found.exit_code == 0, found.stderr
    figures = json.loads(found.stdout)
    assert figures["examples"] == 80
    confusion, k = figures["confusion"], ["ill", "well"].index(positive)
    of_class = sum(confusion[k]) + confusion[0][k] + confusion[1][k]  # by label, and by prediction
    assert figures["f1"] == pytest.approx(2 * confusion[k][k] / of_class)


def everything(folder: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def test_opening_what_a_silo_keeps_writes_nothing_wherever_it_says_its_state_is(tmp_path: Path) -> None:
    asked = Asked(tmp_path / "federation", "trfeddis")
    kept = tmp_path / "copy"
    shutil.copytree(asked.federation.kept("hill"), kept)
    (asked.member.file.state / "secret").unlink()
    own = caveat.load(asked.federation.kept("hill"))
    x = own.silos[0].test.x
    for state in (tmp_path / "victim", asked.member.file.state):
        found = json.loads((kept / "silo.json").read_text())
        found["file"]["state"] = str(state)
        (kept / "silo.json").write_text(json.dumps(found))
        OwnBooks(kept).keep_files(*MODEL_FILES, PREPARATION)  # as whoever made the folder would
        before = everything(tmp_path)
        opened = caveat.load(kept)
        assert torch.equal(opened.predictor("hill")(x).probs, own.predictor("hill")(x).probs)
        assert opened.folder == kept
        assert everything(tmp_path) == before


@pytest.mark.parametrize("method", ["fedavg", "fml", "trfeddis"])
def test_what_a_silo_keeps_predicts_elsewhere_without_its_table(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = ("uncertainty.familiarity=true", "uncertainty.temperature_scaling=true", "uncertainty.set_coverage=0.9")
    asked = Asked(tmp_path / "federation", method, more=full)
    (tmp_path / "away").mkdir()
    table = shutil.copy(asked.federation.homes["hill"] / "hill.csv", tmp_path / "away")
    kept, silos = asked.federation.kept("hill"), asked.member.data.silos(asked.terms)
    with_data = Run(asked.member._run(asked.terms, silos, kept, 0))
    expected = with_data.predictor("hill")(noted_inputs(table, silos, "hill"))
    shutil.move(kept, tmp_path / "away" / "model")
    shutil.rmtree(tmp_path / "federation")
    monkeypatch.chdir(tmp_path / "away")
    opened = caveat.load("model")
    found = opened.predictor("hill")(noted_inputs("hill.csv", opened.preparation, "hill"))
    assert torch.equal(found.probs, expected.probs)
    assert torch.equal(found.decision, expected.decision)
    assert found.familiarity is not None
    assert torch.equal(found.familiarity, expected.familiarity)
    with pytest.raises(DataError, match="the data of the run, which predictions do not need, cannot be read: "):
        opened.silos  # noqa: B018
    # Nothing of other silos' tables.
    assert [*json.loads(Path("model/preparation.json").read_text())["table"]["silos"]] == ["hill"]


def test_a_preparation_that_a_silo_s_books_do_not_know_is_refused(tmp_path: Path) -> None:
    kept = Asked(tmp_path).federation.kept("hill")
    OwnBooks(kept).keep_files(*MODEL_FILES)
    with pytest.raises(DataError, match=r"kept\.json does not list preparation\.json next to it"):
        caveat.load(kept)
    (kept / "preparation.json").unlink()
    with pytest.raises(DataError, match=r"preparation\.json does not exist"):
        caveat.load(kept)


def test_books_that_are_older_than_the_model_are_named(tmp_path: Path) -> None:
    kept = Asked(tmp_path).federation.kept("hill")
    books = OwnBooks(kept)
    own = books.read()
    assert own is not None
    books.write(own.model_copy(update={"files": {}}))
    with pytest.raises(DataError, match=r"kept\.json does not list the model next to it"):
        caveat.load(kept)


@pytest.mark.parametrize("place", [".", ".."])
def test_a_silo_writes_nothing_through_a_link(tmp_path: Path, place: str) -> None:
    asked = Asked(tmp_path / "federation")
    folder, elsewhere = (asked.federation.kept("hill") / place).resolve(), tmp_path / "elsewhere"
    folder.rename(elsewhere)
    folder.symlink_to(elsewhere)
    before = everything(elsewhere)
    with pytest.raises(RunError, match="is a link to"):
        asked.member.join(asked.terms)
    assert everything(elsewhere) == before


def test_data_of_a_silo_without_their_checksum_are_read_anew(tmp_path: Path) -> None:
    asked = Asked(tmp_path)
    (said,) = asked.member.home(asked.terms).glob("data-*.json")
    data, before = said.with_suffix(".safetensors"), said.read_bytes()
    whole = data.read_bytes()
    said.unlink()
    data.write_bytes(whole[:-1] + b"x")
    asked.member.run(asked.terms)
    assert (data.read_bytes(), said.read_bytes()) == (whole, before)


@pytest.mark.parametrize("damage", ["{", '{"schema": 1, "file": 3}', "[" * 3000, "1" * 5000, "name", "terms"])
def test_a_damaged_silo_json_is_named(tmp_path: Path, damage: str) -> None:
    file = SiloSource(silo="../x" if damage == "name" else "x", state=str(tmp_path / "state"), source="csv:x.csv")
    (tmp_path / "silo.json").write_text(damage)
    if damage in ("name", "terms"):
        config = load("digits")
        terms = "{}" if damage == "terms" else Terms("a", config, "uefl", "", ("x",)).to_text()
        write_record(tmp_path / "silo.json", SiloKeeps(schema=1, file=file, terms=terms))
    with pytest.raises(DataError) as refused:
        caveat.load(tmp_path)
    assert str(refused.value).startswith(f"{tmp_path / 'silo.json'}: ")
    assert len(str(refused.value)) < 1000
    assert [path.name for path in tmp_path.iterdir()] == ["silo.json"]


@pytest.mark.parametrize("name", ["", ".x.part", "a/b", "a\\nb", "a\\u202eb", "n" * 201])
def test_a_silo_s_own_file_names_it_so_that_a_folder_can_be_called_so(tmp_path: Path, name: str) -> None:
    path = tmp_path / "silo.toml"
    path.write_text(f'silo = "{name}"\nstate = "state"\n[data]\nsource = "csv:x.csv"\n')
    with pytest.raises(ConfigurationError, match="expected at most 200 bytes of printable") as refused:
        read_silo_file(path)
    assert str(refused.value).startswith(f"{path}: silo name ")
    assert str(refused.value).isprintable()


def test_what_a_server_says_is_in_the_silo_s_log_as_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RunError, match=r"^ValueError, see the log at the silo$"), without_details():
        raise ValueError("\x1b]0;owned\x07\u202e")
    assert "\\x1b]0;owned\\x07\\u202e" in (said := capsys.readouterr().err)
    assert "\x1b" not in said
    assert "Traceback" in said.splitlines()[0]
