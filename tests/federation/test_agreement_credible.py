"""Numbers of rows that nobody but a silo can count: what is above belief takes no part without the operator's word."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from flwr.app import ArrayRecord, Message
from hospitals import Federation, summary

from caveat.config import load
from caveat.core import ConfigurationError
from caveat.federation.server.agreement import Confirmed, incredible
from caveat.federation.server.run import StartCommand


def test_more_than_ten_times_the_others_median_is_not_believed() -> None:
    counts = {"a": 100, "b": 120, "c": 80, "d": 10**9}
    assert list(incredible(counts, {})) == ["d"]
    assert (
        "1,000,000,000 training examples, more than 10 times the median of the other silos, 100"
        in (incredible(counts, {})["d"])
    )
    assert not incredible(counts | {"d": 1000}, {})
    assert list(incredible(counts | {"d": 1001}, {})) == ["d"]


def test_other_splits_have_to_be_in_proportion_too_but_for_rounding() -> None:
    counts = {"a": 3, "b": 3, "c": 3, "d": 50}
    assert not incredible(counts, {}, "validation")
    assert "reports 51 validation examples" in incredible(counts | {"d": 51}, {}, "validation")["d"]
    assert not incredible(counts | {"d": 51}, {"d": 400}, "validation")


def test_a_confirmation_is_of_so_many_rows_and_no_more() -> None:
    counts = {"a": 100, "b": 100, "c": 5000}
    assert not incredible(counts, {"c": 5000})
    assert list(incredible(counts, {"c": 4999})) == ["c"]
    assert list(incredible(counts, {"a": 5000})) == ["c"]


def test_who_is_alone_is_believed() -> None:
    assert not incredible({"a": 10**9}, {})


def test_what_the_operator_has_confirmed_is_read_from_files(tmp_path: Path) -> None:
    assert Confirmed(None).read() == {}
    (tmp_path / "coast.rows").write_text("12000\n")
    (tmp_path / "coast.pub").write_text("a key")
    assert Confirmed(tmp_path).read() == {"coast": 12000}
    for text in ("many", "-1", "1e9", "", "9" * 20):
        (tmp_path / "hill.rows").write_text(text)
        with pytest.raises(ConfigurationError, match=r"hill.rows: expected the number of a silo's training examples"):
            Confirmed(tmp_path).read()


def larger(federation: Federation, name: str, times: int) -> None:
    """A hospital with so many times the rows, each a little other."""
    file = federation.homes[name] / f"{name}.csv"
    head, *rows = file.read_text().splitlines()
    more = [f"{float(row.split(',')[0]) + k / 100:.4f},{row.split(',', 1)[1]}" for k in range(times) for row in rows]
    file.write_text("\n".join([head, *more]) + "\n")


def members(run: Path) -> list[str]:
    return list(json.loads((run / "federation.json").read_text())["silos"])


@pytest.mark.long
def test_a_silo_with_too_many_rows_takes_no_part_and_the_operator_is_told(tmp_path: Path) -> None:
    federation = Federation(tmp_path, "fedavg", start_timeout=1)
    larger(federation, "hill", 15)
    run = federation.serve()
    assert members(run) == ["coast", "valley"]
    assert [silo["name"] for silo in summary(run)["silos"]] == ["coast", "valley"]
    assert any("silo hill is set aside" in note and "hill.rows" in note for note in federation.notes)
    # Temperatures and familiarity come from sums that no norm bounds, which the operator is told.
    assert any("by its share" in note and "temper" in note for note in federation.notes)


@pytest.mark.long
def test_a_silo_whose_rows_are_confirmed_takes_part(tmp_path: Path) -> None:
    federation = Federation(tmp_path, "fedavg", start_timeout=1)
    larger(federation, "hill", 15)
    (tmp_path / "project" / "silos").mkdir(parents=True)
    (tmp_path / "project" / "silos" / "hill.rows").write_text("5000")
    run = federation.serve(start=StartCommand(str(tmp_path / "project"), ()))
    assert members(run) == ["coast", "hill", "valley"]


@pytest.mark.long
def test_with_robust_off_whoever_comes_is_believed(tmp_path: Path) -> None:
    federation = Federation(tmp_path, "fedavg", start_timeout=1)
    larger(federation, "hill", 15)
    federation.config = load(str(tmp_path / "config.toml"), ["federation.robust=off"])
    assert members(federation.serve()) == ["coast", "hill", "valley"]


@pytest.mark.long
def test_a_silo_that_joins_later_with_too_many_rows_is_refused(tmp_path: Path) -> None:
    federation = Federation(tmp_path, "fedavg", start_timeout=1)
    federation.config = load(str(tmp_path / "config.toml"), ["federation.min_available_silos=2"])
    larger(federation, "valley", 15)
    late, node = federation.grid.apps.pop(federation.node["valley"]), federation.node["valley"]
    pushed = federation.grid.push_messages

    def joins(messages: object) -> list[str]:
        if (federation.run / "federation.json").exists():  # the run has begun
            federation.grid.apps[node] = late
        return pushed(messages)  # type: ignore[arg-type]

    federation.grid.push_messages = joins  # type: ignore[method-assign]
    run = federation.serve()
    assert members(run) == ["coast", "hill"]
    told = f"node {node} (silo valley) is refused"
    assert any(told in note and "more than 10 times" in note for note in federation.notes)


def many_times(times: float) -> Callable[[Message], Message]:
    """A silo that says of its validation split so many times what it came to."""

    def lie(reply: Message) -> Message:
        if reply.has_content() and "group.likelihood" in reply.content:
            record = reply.content["group.likelihood"]
            assert isinstance(record, ArrayRecord)
            tensors = {name: each * times for name, each in record.to_torch_state_dict().items()}
            reply.content["group.likelihood"] = ArrayRecord(torch_state_dict=tensors)
        return reply

    return lie


@pytest.mark.long
def test_a_silo_whose_sums_no_inputs_come_to_is_left_out_and_the_share_of_the_largest_is_told(tmp_path: Path) -> None:
    federation = Federation(tmp_path, "fedavg", rounds=1, start_timeout=0.5)
    federation.grid.tamper[federation.node["hill"]] = many_times(1e4)
    run = federation.serve()
    rows = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    (left,) = [row for row in rows if row.get("left_out") and row["phase"] == "temperature"]
    assert (left["silo"], left["left_out"]) == ("hill", "likelihoods that are impossible for 6 validation inputs")
    found = json.loads((run / "summary.json").read_text())["largest"]
    told = [(each["phase"], each["split"], each["silo"], round(each["share"], 2)) for each in found]
    assert told == [("temperature", "validation", "coast", 0.5), ("familiarity", "train", "coast", 0.33)]
    assert any("temperature: coast reports 50% of the validation inputs in the sum" in n for n in federation.notes)


@pytest.mark.long
def test_one_whose_table_is_unlike_all_others_ends_the_run_for_nobody(tmp_path: Path) -> None:
    federation = Federation(tmp_path, "fedavg", 1)
    table = federation.homes["hill"] / "hill.csv"
    header, *rows = table.read_text().splitlines()
    table.write_text("\n".join([f"more,{header}", *(f"1,{row}" for row in rows)]) + "\n")
    run = federation.serve()
    assert members(run) == ["coast", "valley"]
    assert any(
        note.startswith("silo hill is set aside, because only without it the others agree") for note in federation.notes
    )
