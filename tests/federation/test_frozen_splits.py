"""A silo's data as they were when it joined: what is noticed of a source that changes, and what becomes of it then."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from commands import caveat as command
from flwr.app import RecordDict
from hospitals import NAMES, Federation, hospital, losing, summary

import caveat
from caveat.config import load
from caveat.core import ConfigurationError, DataError, RunError
from caveat.data.agreement import shared_schema
from caveat.data.new_inputs import noted_inputs
from caveat.data.shared_schema import DataSchema
from caveat.data.splits import splits_record
from caveat.engines.flower_messages import pack
from caveat.federation.keys import Asked
from caveat.federation.request_terms import Terms
from caveat.federation.server.membership import OpenMembership, PendingGreeting
from caveat.federation.silo.frozen_splits import DataChanged
from caveat.federation.silo.held_out_before import HELD_OUT
from caveat.federation.silo.member import SiloSide
from caveat.federation.silo.silo_file import read_silo_file
from caveat.files import read_payload
from caveat.wrappers.alarms import ROWS

Edit = Callable[[list[str]], list[str]]


def flipped(rows: list[str], count: int | None = None) -> list[str]:
    other = {"ill": "well", "well": "ill"}
    first, last = rows[:count], [] if count is None else rows[count:]
    return [f"{row.rpartition(',')[0]},{other[row.rpartition(',')[2]]}" for row in first] + last


def newcomers(rows: list[str]) -> list[str]:
    return [*rows, *(f"{40 + i}.25,{row.partition(',')[2]}" for i, row in enumerate(rows[:30]))]


EDITS: dict[str, Edit] = {"sorted": sorted, "extended": newcomers, "flipped": flipped}


def edit(table: Path, change: Edit) -> None:
    header, *rows = table.read_text().splitlines()
    table.write_text("\n".join([header, *change(rows)]) + "\n")


class Hill:
    """A silo that has joined a federation of its own making."""

    def __init__(self, folder: Path) -> None:
        self.home = hospital(folder, "hill", 1)
        self.table = self.home / "hill.csv"
        sets = ("source='on_site'", "target='outcome'", "classes=['ill','well']", "categorical=['site']")
        other = ("engine.name=flower", "model.name=mlp", "method.name=fedavg", "training.batch_size=8", "baselines=[]")
        self.config = load(None, [*(f"data.{each}" for each in sets), *other])

    def said(self, changed: str) -> None:
        lines = [line for line in (self.home / "silo.toml").read_text().splitlines() if not line.startswith("changed")]
        (self.home / "silo.toml").write_text("\n".join([*lines, f'changed = "{changed}"']) + "\n")

    @property
    def side(self) -> SiloSide:
        return SiloSide(read_silo_file(self.home / "silo.toml"))

    def terms(self, federation: str = "first", seed: int = 3) -> Terms:
        terms = Terms(federation, dataclasses.replace(self.config, seed=seed), "fedavg", "", ("hill",))
        sketch = DataSchema.of_json(json.loads(str(self.side.introduce(terms)["sketch"])))
        return dataclasses.replace(terms, agreement=shared_schema({"hill": sketch}, self.config.data))

    def split(self, terms: Terms) -> dict[str, set[str]]:
        """The rows of each split, as the table has them now."""
        rows, silo = self.table.read_text().splitlines()[1:], self.side.run(terms).silos[0]
        return {name: {rows[i] for i in index.tolist()} for name, index in silo.indices.items()}


@pytest.fixture
def hill(tmp_path: Path) -> Hill:
    return Hill(tmp_path)


def test_the_same_rows_in_another_order_elsewhere_or_read_again_are_no_change(hill: Hill) -> None:
    terms = hill.terms()
    joined = hill.side.join(terms)
    for change in (sorted, lambda rows: rows[::-1], list):
        edit(hill.table, change)
        assert hill.side.join(terms) == joined
    os.utime(hill.table, (1, 1))
    assert hill.side.join(terms) == joined
    hill.table.rename(hill.home / "moved.csv")
    toml = hill.home / "silo.toml"
    toml.write_text(toml.read_text().replace("hill.csv", "moved.csv"))
    assert hill.side.join(terms) == joined


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda rows: rows[3:], "3 rows missing, 0 rows new, 0 rows with another label"),
        (newcomers, "0 rows missing, 30 rows new, 0 rows with another label"),
        (lambda rows: flipped(rows, 1), "0 rows missing, 0 rows new, 1 row with another label"),
        (lambda rows: [*flipped(rows[2:]), "1,1,1,a,ill"], "2 rows missing, 1 row new, 78 rows with another label"),
    ],
)
def test_a_change_is_refused_in_a_sentence_with_counts_and_no_rows(hill: Hill, change: Edit, told: str) -> None:
    terms = hill.terms()
    hill.side.join(terms)
    before = hill.table.read_text()
    edit(hill.table, change)
    for act in (hill.side.join, hill.side.run):
        with pytest.raises(DataChanged) as refused:
            act(terms)
        said = str(refused.value)
        assert said.startswith(f"silo 'hill': {hill.table} has changed since the silo joined: {told}; ")
        assert 'to "keep" to continue' in said
        assert not any(row in said for row in hill.table.read_text().splitlines()[1:])
    hill.table.write_text(before)
    hill.side.join(terms)


def test_a_table_that_is_gone_or_has_another_column_is_named(hill: Hill) -> None:
    terms = hill.terms()
    joined = hill.side.join(terms)
    text = hill.table.read_text()
    hill.table.write_text(text.replace("pressure", "systolic"))
    with pytest.raises(DataChanged, match=r"hill.csv can no longer be read: .*no column 'pressure'.*data.changed"):
        hill.side.run(terms)
    hill.table.unlink()
    for changed in ("stop", "drop"):
        hill.said(changed)
        with pytest.raises(DataChanged, match=r"hill.csv can no longer be read: .*no such file"):
            hill.side.run(terms)
    hill.said("keep")
    assert hill.side.join(terms) == joined


def test_keep_goes_on_with_what_was_stored_for_nobody_else_to_read(
    hill: Hill, capsys: pytest.CaptureFixture[str]
) -> None:
    terms = hill.terms()
    joined = hill.side.join(terms)
    hill.said("keep")
    edit(hill.table, lambda rows: newcomers(flipped(rows[5:])))
    for _ in range(2):
        assert hill.side.join(terms) == joined
    assert capsys.readouterr().err.count("continuing with the stored rows") == 1  # said once
    stored = [*hill.side.home(terms).glob("data-*"), hill.side.file.state / HELD_OUT]
    assert len(stored) == 3
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in stored)
    hill.said("stop")
    with pytest.raises(DataChanged, match="5 rows missing, 30 rows new, 75 rows with another label"):
        hill.side.join(terms)


def column_values(folder: Path) -> list[float]:
    """The values of calibration rows in what prepares inputs, in any file of a folder."""
    kept = [json.loads(path.read_text()) for path in (*folder.rglob("data-*.json"), *folder.rglob("preparation.json"))]
    silos = [each for file in kept for each in file.get("preparation", file)["table"]["silos"].values()]
    return [x for silo in silos for column in silo.get("reference", {}).get("columns", []) for x in column["values"]]


def test_drop_takes_rows_that_are_gone_out_of_all_splits_and_says_so(
    hill: Hill, capsys: pytest.CaptureFixture[str]
) -> None:
    terms = hill.terms()
    hill.side.join(terms)
    before, tensors = hill.split(terms), {*hill.side.home(terms).glob("*.safetensors")}
    assert hill.side.says(terms) == {}
    assert column_values(hill.side.home(terms))
    hill.said("drop")
    gone = {sorted(before[name])[0] for name in before} | {sorted(before["train"])[1]}
    silo = hill.side.run(terms).silos[0]
    edit(hill.table, lambda rows: newcomers([row for row in rows if row not in gone]))
    said = hill.side.says(terms) or hill.side.join(terms)
    after = hill.side.run(terms).silos[0]
    counts = {name: sum(row in rows for row in gone) for name, rows in before.items()}
    for name in before:
        stays = [i for i, at in enumerate(silo.indices[name].tolist()) if at in after.indices[name].tolist()]
        assert len(stays) == len(getattr(silo, name)) - counts[name]
        assert torch.equal(getattr(silo, name).x[stays], getattr(after, name).x)
        assert torch.equal(getattr(silo, name).y[stays], getattr(after, name).y)
    card, record = json.loads(str(said["card"])), json.loads(str(said["record"]))
    assert card["dropped"] == record["dropped"] == counts
    assert card["examples"] == {name: len(rows) - counts[name] for name, rows in before.items()}
    assert {**splits_record([after])["hill"], "dropped": counts} == record  # type: ignore[dict-item]
    assert {key: said[key] for key in ("card", "record")} == hill.side.says(terms)
    assert "5 rows missing, 30 rows new" in (told := capsys.readouterr().err)
    assert "5 removed (train 2, validation 1, calibration 1, test 1), none added" in told
    assert not column_values(hill.side.home(terms))
    now = {*hill.side.home(terms).glob("*.safetensors")}
    assert len(now) == 1
    assert not now & tensors
    # Nobody comes back, and nobody else leaves.
    edit(hill.table, lambda rows: [*rows, *gone])
    hill.side.join(terms)
    assert {name: len(getattr(hill.side.run(terms).silos[0], name)) for name in before} == card["examples"]


def test_the_server_takes_over_what_is_left_of_a_silo_s_data_and_nothing_else(hill: Hill) -> None:
    terms, notes = hill.terms(), list[str]()
    members = OpenMembership(hill.home / "federation.json", terms, notes.append)
    words = {key: json.loads(str(hill.side.join(terms)[key])) for key in ("card", "record")}

    def hear(dropped: dict[str, int], record: object = None, **card: object) -> None:
        found = {"card": {**words["card"], **card, "dropped": dropped}, "record": record or words["record"]}
        members.hear("hill", {key: json.dumps(value) for key, value in found.items()})

    members.hear("hill", {key: json.dumps(value) for key, value in words.items()})
    sizes, counts = words["card"]["examples"], words["card"]["class_counts"]
    smaller, rest = sizes | {"train": sizes["train"] - 2}, [counts[0] - 2, counts[1]]
    other = words["record"] | {"train": words["record"]["train"] | {"sha256": "0" * 64}}
    elsewhere = words["record"] | {"test": words["record"]["test"] | {"sha256": "0" * 64}}
    wrong: list[tuple[dict[str, int], object, dict[str, object]]] = [
        ({}, None, {"examples": smaller, "class_counts": rest}),  # rows that nobody says have left
        ({"train": 3}, other, {"examples": smaller, "class_counts": rest}),
        ({"train": 2}, elsewhere, {"examples": smaller, "class_counts": rest}),  # another test split
        ({}, other, {}),  # other rows, as many
        ({"train": 2}, other, {"examples": smaller, "class_counts": [counts[0] + 1, counts[1] - 3]}),
    ]
    for dropped, record, card in wrong:
        with pytest.raises(DataError, match="its data changed after it joined"):
            hear(dropped, record, **card)
    hear({"train": 2}, other | {"dropped": {"train": 2}}, examples=smaller, class_counts=rest)
    assert members.silo_infos["hill"].examples == smaller
    assert members.records["hill"]["dropped"] == {"train": 2}
    assert notes[-1] == "silo hill: 2 rows have been removed from its data so far (train 2)"
    with pytest.raises(DataError, match="its data changed"):  # who has left does not come back
        members.hear("hill", {key: json.dumps(value) for key, value in words.items()})


def test_drop_of_too_many_is_refused_and_what_is_stored_can_be_deleted(hill: Hill) -> None:
    terms = hill.terms()
    joined = hill.side.join(terms)
    hill.said("drop")
    text = hill.table.read_text()
    edit(hill.table, lambda rows: rows[:6])
    with pytest.raises(
        DataChanged, match=r"74 rows missing.* the silo cannot train \(.*`caveat flower delete-data (\S+)` deletes"
    ):
        hill.side.run(terms)
    home = hill.side.home(terms)
    assert command("flower", "delete-data", hill.home).exit_code == 2
    assert column_values(home)
    assert command("flower", "delete-data", home).exit_code == 0
    assert not [*home.glob("*.safetensors")]
    assert not column_values(home)
    with pytest.raises(DataChanged, match=r"no longer has the rows from which .*data-\w+\.json was made"):
        hill.side.run(terms)
    hill.table.write_text(text)
    assert hill.side.join(terms) == joined


def test_another_silo_toml_is_no_way_round_what_was_stored(hill: Hill) -> None:
    terms = hill.terms()
    hill.side.join(terms)
    edit(hill.table, flipped)
    toml = hill.home / "silo.toml"
    toml.write_text(toml.read_text() + 'separator = ","\n')
    with pytest.raises(DataChanged, match=r"no longer has the rows from which .* was made when the silo joined"):
        hill.side.run(terms)
    edit(hill.table, flipped)
    hill.side.run(terms)
    hill.said("perhaps")
    with pytest.raises(ConfigurationError, match=r"data.changed = 'perhaps', expected one of stop, keep, drop"):
        hill.side  # noqa: B018


def test_what_was_held_out_once_is_never_trained_on_in_a_later_federation(hill: Hill) -> None:
    terms = hill.terms()
    hill.side.join(terms)
    first = hill.split(terms)
    held = first["test"] | first["calibration"]
    edit(hill.table, lambda rows: newcomers(sorted(rows)))
    for federation, seed in (("second", 3), ("third", 4)):
        later = hill.terms(federation, seed)
        hill.side.join(later)
        found = hill.split(later)
        assert held <= found["test"] | found["calibration"]
        assert first["test"] <= found["test"]
        assert len(found["train"]) > len(first["train"])
    kept = (hill.side.file.state / HELD_OUT).read_text()
    assert not any(cell in kept for row in held for cell in row.split(",") if len(cell) > 4)
    state = hill.side.file.state
    dataclasses.replace(hill.side.file, state=state / "other").secret()
    shutil.move(state / "other" / "secret", state / "secret")
    with pytest.raises(DataError, match=r"held-out\.json was not written with the secret in .*secret"):
        hill.side.join(hill.terms("fourth"))


# A federation, with a server


@pytest.mark.long
def test_predictions_are_of_what_was_frozen_whatever_becomes_of_the_table(tmp_path: Path) -> None:
    federation = Federation(tmp_path / "f", "fedavg", 1)
    federation.serve()
    table = federation.homes["hill"] / "hill.csv"
    asked, whole = shutil.copy(table, tmp_path / "asked.csv"), table.read_text()

    def answers() -> torch.Tensor:
        run = caveat.load(federation.kept("hill"))
        assert torch.equal(run.silos[0].train.x, frozen)
        return run.predictor("hill")(noted_inputs(asked, run.preparation, "hill")).probs

    frozen = caveat.load(federation.kept("hill")).silos[0].train.x
    first = answers()
    for change in EDITS.values():
        table.write_text(whole)
        edit(table, change)
        assert torch.equal(answers(), first)
    table.unlink()
    assert torch.equal(answers(), first)


@pytest.mark.long
def test_labels_flipped_between_interruption_and_resume_are_named_and_stop_the_silo(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    federation = Federation(tmp_path, "fedavg", 2, quorum=3)
    federation.grid.tamper[federation.node["hill"]] = losing(2)
    with pytest.raises(RunError, match="fewer than the quorum"):
        federation.serve()
    federation.grid.tamper.clear()
    table = federation.homes["hill"] / "hill.csv"
    edit(table, flipped)
    told = r"3 silos are needed .* after 3 s: 2 joined \(coast, valley\), hill connected .*\nrefused: .*DataChanged"
    with pytest.raises(RunError, match=told):
        federation.serve()
    told = "(silo hill) is refused: join: failed: DataChanged: its data changed"
    assert any(told in note for note in federation.notes)
    assert not any("label" in note or str(table) in note for note in federation.notes)
    assert "0 rows missing, 0 rows new, 80 rows with another label" in capsys.readouterr().err
    edit(table, flipped)
    federation.serve()
    assert summary(federation.run)["complete"]


@pytest.mark.long
def test_the_server_s_sizes_follow_rows_that_leave_in_the_middle_of_a_run(tmp_path: Path) -> None:
    federation = Federation(tmp_path, "fedavg", 2)
    home, rounds = federation.homes["hill"], list[int]()
    (home / "silo.toml").write_text((home / "silo.toml").read_text() + 'changed = "drop"\n')

    def leave(reply: object) -> object:
        rounds.append(1)
        if len(rounds) == 1:
            edit(home / "hill.csv", lambda rows: rows[8:])
        return reply

    federation.grid.tamper[federation.node["coast"]] = leave  # type: ignore[assignment]
    run = federation.serve()
    found = {silo["name"]: silo for silo in summary(run)["silos"]}
    assert list(found) == NAMES
    assert not [note for note in federation.notes if "without" in note]
    dropped = found["hill"]["dropped"]
    assert sum(dropped.values()) == 8
    sizes = {split: found["hill"][f"n_{split}"] + dropped.get(split, 0) for split in ("train", "test", "calibration")}
    assert sizes == {split: found["coast"][f"n_{split}"] for split in sizes}
    assert "dropped" not in found["coast"]
    assert any(
        note.startswith("silo hill: 8 rows have been removed from its data so far (train") for note in federation.notes
    )
    record = json.loads((run / "splits.json").read_text())["hill"]
    assert record["dropped"] == dropped
    assert record["test"]["examples"] == found["hill"]["n_test"]
    kept = json.loads((run / "federation.json").read_text())["silos"]["hill"]
    assert kept["card"]["dropped"] == dropped


class OneAnswer:
    """A wire with one node, whose next answer is an error or these words."""

    def __init__(self) -> None:
        self.answer: str | dict[str, str | int] = ""

    def online(self) -> set[int]:
        return {7}

    def push(self, sent: object, kind: str, seconds: float) -> dict[str, int]:
        return {}

    def pull(self, messages: list[str]) -> tuple[dict[str, RecordDict], dict[str, str]]:
        if isinstance(self.answer, str):
            return {}, dict.fromkeys(messages, self.answer)
        return dict.fromkeys(messages, pack({}, **self.answer)), {}


def test_a_refusal_is_forgotten_once_the_silo_is_mended(hill: Hill) -> None:
    """The sentence with which a run ends names whom it still waits for, and why, and nobody else."""
    terms, notes, wire = hill.terms(), list[str](), OneAnswer()
    members = OpenMembership(hill.home / "federation.json", terms, notes.append)

    def hear(answer: str | dict[str, str | int], question: str) -> None:
        wire.answer = answer
        members._pending["m"] = PendingGreeting(Asked("first", question, "", 7), math.inf)
        members._read(wire)  # type: ignore[arg-type]

    greeting = {**hill.side.introduce(terms), "version": caveat.__version__}
    hear("DataError, see the log at the silo", "introduce")
    assert notes == ["node 7 is refused: introduce: DataError, see the log at the silo"]
    hear(greeting, "introduce")
    hear("DataChanged", "join")
    assert notes[-1] == "node 7 (silo hill) is refused: join: DataChanged"
    assert members._refused == {7: "join: DataChanged"}
    hear({**hill.side.join(terms), "version": caveat.__version__}, "join")
    assert members._refused == {}
    assert members.connected(wire) == ["hill"]  # type: ignore[arg-type]


def numbers_in(folder: Path) -> set[float]:
    """Every float of every tensor in a folder, float32."""
    files = [read_payload(path) for path in folder.rglob("*.safetensors")]
    return {
        x for file in files for group in file.values() for t in group.values() for x in t.float().flatten().tolist()
    }


@pytest.mark.long
@pytest.mark.parametrize("method", ["fedpn", "uefl"])
def test_after_forgetting_no_number_of_a_row_is_left_and_probabilities_stay(tmp_path: Path, method: str) -> None:
    federation = Federation(tmp_path, method)
    federation.serve()
    kept = federation.kept(NAMES[0])
    of = {path: read_payload(path) for path in kept.glob("state/silos/*/*.safetensors")}
    kept_numbers = [pair for state in of.values() for pair in state.get("familiarity", {}).items()]
    rows = torch.cat(
        [tensor.flatten() for name, tensor in kept_numbers if name.startswith("input.") or name.endswith(ROWS)]
    )
    x = torch.cat([read_payload(path)["test"]["x"] for path in kept.parent.glob("data-*.safetensors")]).flatten()
    assert any(name.endswith(ROWS) for name, _ in kept_numbers)
    telling = {v for v in (rows.tolist() + x.tolist()) if v not in (0.0, 1.0)}
    assert len(telling) > 30
    assert telling <= numbers_in(kept.parent)
    table = federation.homes[NAMES[0]] / f"{NAMES[0]}.csv"
    before, after = tmp_path / "before.csv", tmp_path / "after.csv"
    assert command("predict", kept, table, "--silo", NAMES[0], "--out", before).exit_code == 0
    said = command("flower", "delete-data", kept.parent.parent)
    assert said.exit_code == 0
    assert "features of calibration inputs replaced by distances" in said.output
    assert "preparation.json: values of the columns deleted" in said.output
    assert not column_values(kept.parent)
    assert not telling & numbers_in(kept.parent)
    assert command("predict", kept, table, "--silo", NAMES[0], "--out", after).exit_code == 0
    one, other = (list(csv.DictReader(path.read_text().splitlines())) for path in (before, after))
    gone = {"nearness", "novel"}
    assert {*one[0]} - {*other[0]} == gone
    changed = gone | {"typicality", "decision", "reason"}  # of alarms without that for novel inputs
    for mine, theirs in zip(one, other, strict=True):
        assert {k: v for k, v in mine.items() if k not in changed} == {
            k: v for k, v in theirs.items() if k not in changed
        }
    assert command("flower", "delete-data", kept.parent).exit_code == 0  # there is nothing more to forget
