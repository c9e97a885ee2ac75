"""Tables that are wrong: what a spreadsheet, a hospital or an attacker may hand over, to train on or to predict."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

from . import actions
from .children import Ended
from .fuzz import Trial, good_run, run

COLUMNS = ("age", "dose", "town", "ward", "ill")
INPUTS = 5
"""What a model takes of the good table: age and dose, whether age is missing or not, and two towns."""
SETTINGS = (
    "data.target=ill data.silo_column=ward rounds=1 training.local_epochs=1 training.batch_size=8 model.name=mlp "
    "model.width=4 model.features=4 model.hidden=4 uncertainty.mc_samples=2 engine.workers=1 baselines=[] "
    "data.split.train=0.6 data.split.validation=0.15 data.split.calibration=0.25 method.name=fedavg"
)
SETS = SETTINGS.split()
BAD = [
    "1.2x", "1,2", "--", "#REF!", "#N/A", "1e999", "inf", "-inf", "0x1F", "1 234.5", "1'000", "12%", "$5", "=1+1",
    "1.2.3", "<5", "ca. 3", "3-4", "\u0661\u0662", "1e", "NaN?", "1_0", "O.5", "\u22121.5", "TRUE", "2024-01-01",
]  # fmt: skip
ODD = [
    "",
    "?",
    ".x.part",
    "..",
    "a/b",
    "=1+1",
    "w" * 300,
    "-",
    "\u202e",
    "nan",
    "<b>",
    "ward-0 ",
    " ",
    "NUL",
    "ä",
    "🙂",
]

Rows = list[list[str]]


def rows(count: int = 72) -> Rows:
    """Age (with gaps), dose, town, ward, and the target; the header first."""
    found = [list(COLUMNS)]
    for i in range(count):
        age = "" if i % 7 == 0 else str(30 + (i * 11) % 40)
        dose, town = f"{(i * 0.37) % 2 - 1:.3f}", ("north", "south")[i % 4 % 2]
        found.append([age, dose, town, f"ward-{i % 3}", "yes" if float(dose) > 0.2 * (i % 3) - 0.3 else "no"])
    return found


def _text(table: Rows, separator: str = ",") -> str:
    quoted = [[f'"{cell}"' if separator in cell or "\n" in cell else cell for cell in row] for row in table]
    return "\n".join(separator.join(row) for row in quoted) + "\n"


# Mutations. Each changes the rows or returns the text; those of KEEPS leave numbers numbers.


def decimal_commas(table: Rows, choose: random.Random) -> str:
    for row in table[1:]:
        row[1] = row[1].replace(".", ",")
    return _text(table, ";")


def bad_number(table: Rows, choose: random.Random) -> str:
    choose.choice(table[1:])[choose.choice([0, 1])] = choose.choice(BAD)
    return _text(table)


def bad_numbers(table: Rows, choose: random.Random) -> str:
    column, bad = choose.choice([0, 1]), choose.choice(BAD)
    for row in choose.sample(table[1:], choose.choice([2, 3, 7])):
        row[column] = bad
    return _text(table)


def mixed_separators(table: Rows, choose: random.Random) -> str:
    lines = _text(table).splitlines()
    i = choose.randrange(1, len(lines))
    lines[i] = lines[i].replace(",", choose.choice([";", "\t", "|"]))
    return "\n".join(lines)


def units(table: Rows, choose: random.Random) -> str:
    for row in table[1:]:
        row[1] += choose.choice([" mg", " g"])
    return _text(table)


def thousands(table: Rows, choose: random.Random) -> str:
    for i, row in enumerate(table[1:]):
        row[1] = f"{1 + i % 9},{(i * 37) % 1000:03d}"
    return _text(table)


def names_as_text(table: Rows, choose: random.Random) -> str:
    for i, row in enumerate(table[1:]):
        row[2] = f"Person {i}"
    return _text(table)


KEEPS: dict[str, Callable[[Rows, random.Random], str]] = {
    each.__name__: each for each in (decimal_commas, bad_number, bad_numbers, mixed_separators, units, thousands)
}


def odd_cell(table: Rows, choose: random.Random) -> str:
    choose.choice(table)[choose.randrange(5)] = choose.choice(ODD)
    return _text(table)


def odd_column(table: Rows, choose: random.Random) -> str:
    column, odd = choose.randrange(5), choose.choice(ODD)
    for row in table[1:]:
        row[column] = odd
    return _text(table)


def ragged(table: Rows, choose: random.Random) -> str:
    row = choose.choice(table)
    row.append("1") if choose.random() < 0.5 else row.pop()
    return _text(table)


def fewer_rows(table: Rows, choose: random.Random) -> str:
    del table[choose.choice([0, 1, 2, 3, 5, 9]) :]
    return _text(table)


def quotes(table: Rows, choose: random.Random) -> str:
    text = _text(table)
    at = choose.randrange(len(text))
    return text[:at] + choose.choice(['"', "'", '""', '"\n']) + text[at:]


def doubled_column(table: Rows, choose: random.Random) -> str:
    table[0][choose.randrange(5)] = choose.choice(COLUMNS)
    return _text(table)


def large_cell(table: Rows, choose: random.Random) -> str:
    choose.choice(table)[choose.randrange(5)] = "x" * choose.choice([10_000, 200_000, 2_000_000])
    return _text(table)


def regression_target(table: Rows, choose: random.Random) -> str:
    for i, row in enumerate(table[1:]):
        row[4] = f"{i * 0.731:.3f}"
    return _text(table)


OTHERS = {
    each.__name__: each
    for each in (
        odd_cell, odd_column, ragged, fewer_rows, quotes, doubled_column, large_cell, names_as_text, regression_target,
    )
}  # fmt: skip


def encoded(text: str, choose: random.Random) -> tuple[bytes, str]:
    """Bytes of a text, now and then in another encoding, or damaged."""
    kind = choose.choice(["utf-8"] * 6 + ["utf-8-sig", "latin-1", "utf-16", "flip", "nul", "cr", "cut"])
    if kind in ("flip", "nul", "cut"):
        data = bytearray(text.encode())
        at = choose.randrange(len(data)) if data else 0
        if kind == "cut":
            return bytes(data[:at]), kind
        if data:
            data[at] = 0 if kind == "nul" else data[at] ^ 1 << choose.randrange(8)
        return bytes(data), kind
    if kind == "cr":
        return text.replace("\n", "\r").encode(), kind
    return text.encode(kind, "replace"), kind


def table(choose: random.Random, place: Path) -> Trial:
    """A run on a bad table: refused, or read as it was meant."""
    kind = choose.choice([*KEEPS, *OTHERS])
    text = {**KEEPS, **OTHERS}[kind](rows(), choose)
    data, encoding = encoded(text, choose)
    file = place / "table.csv"
    file.write_bytes(data)
    keeps = kind in KEEPS and encoding in ("utf-8", "utf-8-sig", "cr")

    def accepted(ended: Ended) -> str:
        shape = json.loads((place / "run" / "model" / "model.json").read_text())["shape"]
        said = any(column in ended.err for column in COLUMNS)
        return f"{shape} inputs, expected [{INPUTS}]" if keeps and shape != [INPUTS] and not said else ""

    call = run(place / "run", f"data.source=csv:{file}", *SETS)
    names = {"table.csv", *COLUMNS, "data.", "silo", "classes", "samples, expected"}
    return Trial(call, names, f"{kind}, {encoding}", accepted)


def _write_good(folder: Path) -> str:
    (folder / "good.csv").write_text(_text(rows()))
    return f"csv:{folder / 'good.csv'}"


def predicted(choose: random.Random, place: Path) -> Trial:
    """Predictions for a bad table by a good run: a row per input, or refused."""
    kind = choose.choice([*KEEPS, *OTHERS])
    data, encoding = encoded({**KEEPS, **OTHERS}[kind](rows(12), choose), choose)
    file = place / "table.csv"
    file.write_bytes(data)
    good = good_run("table", _write_good, *SETS)

    def call() -> None:
        actions.command("predict", good, file, "--silo", "ward-1")

    def accepted(ended: Ended) -> str:
        lines = ended.out.splitlines()
        return "" if lines and lines[0].startswith("row,label") and len(lines) > 1 else f"no rows: {ended.out[:80]}"

    return Trial(call, {"table.csv", *COLUMNS}, f"{kind}, {encoding}", accepted)


FAMILIES = {"table": table, "predict-table": predicted}
