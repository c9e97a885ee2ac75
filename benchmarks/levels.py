"""Check that shared memory, descriptors and processes do not grow over 300 rounds with two workers, for every method.

`python benchmarks/levels.py [ROUNDS]` prints, per method, bytes of shared memory after a sixth of the rounds and after
the last, and the same for descriptors and processes. It ends with status 1 if any of them has grown in between.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "helpers"))
from federations import METHODS, is_level, levels_over_rounds

ROUNDS = 300


def main() -> int:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    grown = 0
    for method in METHODS:
        with tempfile.TemporaryDirectory(prefix="caveat-levels-") as folder:
            levels = levels_over_rounds(replace(method, rounds=rounds), Path(folder))  # type: ignore[type-var]
        early, last = levels[len(levels) // 6], levels[-1]
        level = is_level(early, last)
        grown += not level
        print(f"{method.name:10} {len(levels):4} rounds  {tuple(early)}  {tuple(last)}  {'' if level else 'grown'}")
    print(f"{len(METHODS)} methods, {grown} grown")
    return int(grown > 0)


if __name__ == "__main__":
    sys.exit(main())
