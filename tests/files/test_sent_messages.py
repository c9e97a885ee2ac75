"""The ledger: every message of every silo, each form once, whole lines only."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from commands import caveat, one_error

from caveat.core import DataError, RunError, Update
from caveat.files import Ledger, read_ledger, read_sent, tensors_of
from caveat.files.schema import FileSum, as_json

WEIGHTS = {"model": {"w": torch.zeros(2, 3), "n": torch.tensor(7)}, "control": {"c": torch.zeros(4, dtype=torch.half)}}
SUMS = {"sums": {"nll": torch.zeros((), dtype=torch.float64)}}


def lines_of(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_message_has_its_bytes_and_its_form_every_tensor(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    Ledger(path).add({"hill": Update(WEIGHTS, 40)}, round=3, t=5, phase="train")
    entries = read_ledger(path)
    (form,) = entries.forms
    assert [as_json(message) for message in entries.messages] == [
        {"round": 3, "t": 5, "phase": "train", "silo": "hill", "form": form, "bytes": 24 + 8 + 8, "examples": 40}
    ]
    assert {name: as_json(tensor) for name, tensor in entries.forms[form].items()} == {
        "control/c": {"shape": [4], "dtype": "float16", "bytes": 8},
        "model/n": {"shape": [], "dtype": "int64", "bytes": 8},
        "model/w": {"shape": [2, 3], "dtype": "float32", "bytes": 24},
    }


def test_no_value_of_a_tensor_is_in_the_ledger(tmp_path: Path) -> None:
    texts = []
    for i, value in enumerate((0.125, -977.0)):
        path = tmp_path / f"{i}.jsonl"
        Ledger(path).add({"hill": Update({"model": {"w": torch.full((3,), value)}}, 1)}, t=0)
        texts.append(path.read_text())
    assert texts[0] == texts[1]


def test_a_form_is_written_once_before_its_first_message_whatever_the_order_of_its_tensors(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    turned = {group: dict(reversed(tensors.items())) for group, tensors in reversed(WEIGHTS.items())}
    ledger.add({"a": Update(WEIGHTS, 1), "b": Update(turned, 2)}, t=0)
    ledger.add({"a": Update(SUMS, 1), "b": Update(WEIGHTS, 2)}, t=1)
    kinds = ["form" if "tensors" in line else line["silo"] for line in lines_of(ledger.log.path)]
    assert kinds == ["form", "a", "b", "form", "a", "b"]
    assert tensors_of(WEIGHTS) == tensors_of(turned)


def test_a_rewound_ledger_continues_to_the_same_bytes(tmp_path: Path) -> None:
    whole, rewound = Ledger(tmp_path / "whole"), Ledger(tmp_path / "rewound")
    for ledger in (whole, rewound):
        ledger.add({"a": Update(WEIGHTS, 1)}, t=0)
    kept = rewound.log.sum
    for ledger in (whole, rewound):
        ledger.add({"a": Update(SUMS, 1)}, t=1)
    again = Ledger(rewound.log.path)
    again.rewind(kept)
    assert again.log.sum == kept
    again.add({"a": Update(SUMS, 1)}, t=1)  # its form was dropped too, and is there again
    assert rewound.log.path.read_text() == whole.log.path.read_text()


def test_half_a_line_is_not_read_and_a_rewind_cuts_it_off(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.add({"a": Update(WEIGHTS, 1)}, t=0)
    whole = ledger.log.path.read_text()
    ledger.add({"a": Update(WEIGHTS, 1)}, t=1)
    ledger.log.path.write_text(ledger.log.path.read_text()[:-9])
    assert [message.t for message in read_ledger(ledger.log.path).messages] == [0]
    again = Ledger(ledger.log.path)
    again.recover(None)
    assert ledger.log.path.read_text() == whole
    again.add({"a": Update(WEIGHTS, 1)}, t=1)
    assert [message.t for message in read_ledger(ledger.log.path).messages] == [0, 1]
    assert len(read_ledger(ledger.log.path).forms) == 1


def test_a_new_ledger_is_rewound_to_nothing_and_a_missing_one_refused(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.rewind(None)
    assert (ledger.log.bytes, read_ledger(ledger.log.path).messages) == (0, [])
    with pytest.raises(RunError, match=r"ledger\.jsonl is missing"):
        ledger.rewind(FileSum(bytes=1, sha256="0" * 64))


def test_two_instances_append_to_one_ledger(tmp_path: Path) -> None:
    one, other = Ledger(tmp_path / "ledger.jsonl"), Ledger(tmp_path / "ledger.jsonl")
    for t in range(3):
        one.recover(None)
        one.add({"a": Update(WEIGHTS, 1)}, t=t)
        other.recover(one.log.sum)
        other.add({"b": Update(WEIGHTS, 1)}, t=t)
    entries = read_ledger(one.log.path)
    assert [(message.t, message.silo) for message in entries.messages] == [(t, n) for t in range(3) for n in "ab"]
    assert len(entries.forms) == 1
    third = Ledger(one.log.path)
    third.recover(other.log.sum)
    third.add({"a": Update(WEIGHTS, 1)}, t=3)
    assert "tensors" not in lines_of(one.log.path)[-2]  # a later instance knows the forms that are there


def test_measurements_are_not_counted(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.add({"a": Update(WEIGHTS, 1), "b": Update(WEIGHTS, 1)}, round=1, t=0, phase="train")
    ledger.add({"b": Update(WEIGHTS, 1)}, round=2, t=1, phase="train")
    ledger.add({"a": Update(SUMS, 1), "c": Update(SUMS, 1)}, t=1, round=2, phase="final", split="test")
    assert read_ledger(ledger.log.path).counted == {"a": 0, "b": 1}


def test_no_ledger_is_empty_and_another_kind_of_file_is_refused(tmp_path: Path) -> None:
    assert read_ledger(tmp_path / "none").messages == []
    for text in ("{]\n", "3\n", '{"tensors": {}}\n'):
        (tmp_path / "other").write_text(text)
        with pytest.raises(RunError, match=r"cannot read .*other"):
            read_ledger(tmp_path / "other")


# Damage


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda text: bytes(len(text)), "line 1: zero bytes"),
        (lambda text: text + bytes(40), "line 4: zero bytes"),
        (lambda text: text.replace(b'"a"', b'"\xff"'), "line 2 cannot be read as UTF-8 text"),
        (lambda text: text.replace(b'"silo"', b'"s\n'), "line 2: not valid JSON"),
        (lambda text: text + b"[" * 3000 + b"\n", "line 4: not valid JSON"),
        (lambda text: text + b"[]\n", "line 4: "),
        (lambda text: text.split(b"\n", 1)[1], "line 1: no earlier line describes the form"),
        (lambda text: text.replace(b'"bytes": 40', b'"bytes": -40'), "line 2: bytes: "),
    ],
)
def test_damage_is_named_with_file_and_line(tmp_path: Path, damage: Callable[[bytes], bytes], told: str) -> None:
    path = tmp_path / "ledger.jsonl"
    Ledger(path).add({"a": Update(WEIGHTS, 1), "b": Update(WEIGHTS, 2)}, t=0)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError) as refused:
        read_sent(path)
    assert str(refused.value).startswith(f"{path}, {told}")
    said = one_error(caveat("flower", "ledger", tmp_path), 3)
    assert f"{path}, {told}" in said
    assert said.isprintable()


def test_half_a_line_of_a_killed_process_is_no_damage(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    Ledger(path).add({"a": Update(WEIGHTS, 1), "b": Update(WEIGHTS, 2)}, t=0)
    path.write_bytes(path.read_bytes()[:-10])
    sent = read_sent(path)
    assert sent is not None
    assert list(sent.silos) == ["a"]


def test_a_line_that_a_run_cannot_go_on_from_is_named(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    Ledger(path).add({"a": Update(WEIGHTS, 1), "b": Update(WEIGHTS, 2)}, t=0)
    path.write_text(path.read_text().replace('"silo": "b"', '"silo": b'))
    with pytest.raises(RunError) as refused:
        read_ledger(path)
    assert str(refused.value).startswith(f"cannot read {path}, line 3: ")
