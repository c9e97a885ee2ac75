"""Requests of a curious server, mistakes of hospitals, and tables that change, as `deploy.py` tests them."""

from __future__ import annotations

import base64
import csv
import hashlib
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from machines import EXPECTED, Failed, Machine, wait_for

TARGET = "disease"
SURNAMES = [
    f"{first}{second}".capitalize()
    for first in ("brax", "thun", "quil", "vorn", "zeld", "mork", "plim", "drus", "kelv", "fanz")
    for second in ("holtz", "ington", "ovary", "eskul", "ander", "wyck")
]
"""60 names that no file has but the one that they are written to."""
DIGGING = {
    "the histogram of ages as labels": ("data.target=age", EXPECTED["target"]),
    "the ages as categories": ('data.dictionary=[{name="age", type="category"}]', EXPECTED["dictionary"]),
}
"""What the server's configuration asks for, and what each hospital answers."""
Rows = list[list[str]]


def read(table: Path) -> Rows:
    with table.open(newline="") as file:
        return list(csv.reader(file))


def write(table: Path, rows: Rows) -> None:
    with table.open("w", newline="") as file:
        csv.writer(file).writerows(rows)


def add_surnames(table: Path) -> None:
    """A column of names, as the file of a hospital may have one."""
    header, *rows = read(table)
    chosen = random.Random(0)
    write(table, [[*header, "surname"], *([*row, chosen.choice(SURNAMES)] for row in rows)])


def recode(table: Path, code: Callable[[int, str], str]) -> None:
    """Other codes of the target, by row and code."""
    header, *rows = read(table)
    at = header.index(TARGET)
    write(table, [header, *([*row[:at], code(i, row[at]), *row[at + 1 :]] for i, row in enumerate(rows))])


CODES: dict[str, Callable[[int, str], str]] = {
    "twos": lambda row, code: str(int(code) + 1),
    "fives": lambda row, code: str(row % 5),
}
"""Hospitals that have 1 and 2 for 0 and 1, and 0 to 4, and do not say what these mean."""


def flip(table: Path) -> str:
    """Take every label for the other one. Returns the file as it was."""
    before = table.read_text()
    recode(table, lambda row, code: str(1 - int(code)))
    return before


def refuse_codes(server_says: Callable[[], str], machines: Sequence[tuple[str, Machine]]) -> None:
    for name, machine in machines:
        _refuse_codes(server_says, name, machine)


def _refuse_codes(server_says: Callable[[], str], name: str, machine: Machine) -> None:
    own = EXPECTED["code"] + "healthy, ill)"
    wait_for(f"{name} says why it refuses", 240, lambda: own in machine.log("silo").read_text(), 2)
    told = f"silo '{name}' refuses, '{TARGET}': {EXPECTED['labels']}"
    wait_for(f"the server hears of {name}", 60, lambda: told in server_says(), 5)
    machine.stop("silo")


def refuse_digging(server: Machine, run: str, hospitals: Sequence[Machine]) -> None:
    """Runs whose configuration asks for what no hospital tells: all refuse, and the run fails."""
    for number, (what, (override, told)) in enumerate(DIGGING.items()):
        options = (override, "federation.start_timeout=60")
        server.start("digging", "./run.sh", f"runs/{run}-digging-{number}", *options)
        wait_for("a run that asks for too much ends", 300, lambda: server.ended("digging") is not None)
        if not server.ended("digging"):
            raise Failed(f"a run that asks for {what} ended well")
        said = server.log("digging").read_text()
        if told not in said or list((server.folder / "runs").glob(f"{run}-digging-{number}/splits.json")):
            raise Failed(f"a run that asks for {what} was not refused for it; see {server.log('digging')}")
        for hospital in hospitals:
            if told not in hospital.log("silo").read_text():
                raise Failed(f"{hospital.folder.name} does not say why it refuses; see {hospital.log('silo')}")


def keep_predictions(hospital: Machine, name: str) -> None:
    """Rows are predicted alike after the table was sorted, extended and deleted."""
    kept = [path.parent for path in hospital.folder.glob("state/*/*/silo.json")]
    if len(kept) != 1:
        raise Failed(f"{name} keeps {len(kept)} models, expected one")
    table, rows = hospital.folder / f"{name}.csv", hospital.folder / "rows.csv"
    header, *all_rows = read(table)
    write(rows, [header, *all_rows[:40]])

    def predicted() -> str:
        return hospital.call("caveat", "predict", str(kept[0]), str(rows), "--silo", name)

    first = predicted()
    for what, changed in (("sorted", sorted(all_rows)), ("extended", all_rows + all_rows[:30]), ("deleted", None)):
        if changed is None:
            table.unlink()
        else:
            write(table, [header, *changed])
        if predicted() != first:
            raise Failed(f"{name}: other predictions after its table was {what}")


def search_surnames(folder: Path, owner: Path) -> None:
    """Raises Failed if a surname is in a file of another machine, as it is or in another form."""
    wanted = {form.encode() for name in SURNAMES for form in forms(name)}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink() and not path.is_relative_to(owner):
            content = path.read_bytes()
            if found := next((form for form in wanted if form in content), None):
                raise Failed(f"{path} holds {found.decode()}, of a surname that was to stay at {owner.name}")


def forms(name: str) -> Iterator[str]:
    """A name in cases, encodings and hashes."""
    for text in (name, name.lower(), name.upper()):
        yield text
        yield base64.b64encode(text.encode()).decode().rstrip("=")
        yield text.encode().hex()
        for kind in ("md5", "sha1", "sha256"):
            yield hashlib.new(kind, text.encode()).hexdigest()
