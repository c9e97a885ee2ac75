"""Count the updates of finished runs without malicious silos that exceeded the bound of docs/how-to/byzantine.md.

    python benchmarks/bound_counts.py FOLDER...

Prints a line per method for all runs below the folders: the number of runs and of updates, how many updates exceeded
the bound, and by what factor at most. Runs of `local` send nothing and are omitted.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class Counts:
    """Of one method."""

    runs = updates = above = 0
    longest = 0.0


def lines(file: Path) -> Iterator[dict[str, Any]]:
    for line in file.read_text().splitlines():
        yield json.loads(line)


def main(folders: list[str]) -> None:
    found: dict[str, Counts] = defaultdict(Counts)
    for place in sorted(path.parent for folder in folders for path in Path(folder).rglob("summary.json")):
        method = json.loads((place / "summary.json").read_text())["method"]
        if method == "local" or not (place / "ledger.jsonl").exists():
            continue
        counts, times = found[method], [line.get("times_bound") for line in lines(place / "rounds.jsonl")]
        above = [each for each in times if each is not None]
        counts.runs += 1
        counts.updates += sum(line.get("phase") == "train" for line in lines(place / "ledger.jsonl"))
        counts.above += len(above)
        counts.longest = max([counts.longest, *above])
    for method, counts in sorted(found.items()):
        longest = f", {counts.longest:.2g} times as long at most" if counts.above else ""
        print(f"{method}: {counts.runs} runs, {counts.above} of {counts.updates} updates above the bound{longest}")
    print(f"all: {sum(c.above for c in found.values())} of {sum(c.updates for c in found.values())}")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1:])
