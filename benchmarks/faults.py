"""Inject faults for every method: crashes, damaged files and invalid inputs; more than 6,000 cases.

python benchmarks/faults.py [--only GROUP ...] [--seed N] [--processes N]
python benchmarks/faults.py --case NAME

A group is a method, a variant, again-START (comparisons, audits, calls in Python), flower-METHOD or fuzz:FAMILY
(`--list` lists them). tests/helpers/faults/__init__.py describes the faults and the required results. Ends with status
1 if a case fails. Takes about an hour on one core; another seed draws other cases.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

os.environ |= {"OMP_NUM_THREADS": "1", "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "helpers"))

from faults.outcomes import FAILURES, GOOD, Outcome
from faults.selection import LONG, carry_out, groups, names

Result = tuple[str, dict[str, Outcome], float]


def of_group(group: str, seed: int) -> Result:
    """The outcomes of a group's cases, and the seconds that they took."""
    began = time.monotonic()
    found = {name: carry_out(name) for name in names(group, LONG, seed)}
    return group, found, time.monotonic() - began


def apart(group: str, seed: int) -> Result:
    """`of_group` in a process of its own, not in a pool's: those may have no children, which comparisons need."""
    context = multiprocessing.get_context("fork")
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=_send_group, args=(group, seed, send))
    process.start()
    send.close()
    try:
        result: Result = receive.recv()
    except EOFError:
        raise SystemExit(f"{group}: its process ended without results") from None
    finally:
        process.join()
    return result


def _send_group(group: str, seed: int, send: Connection) -> None:
    send.send(of_group(group, seed))


def one(name: str) -> int:
    """Carry out a case, and say what came of it."""
    found = carry_out(name)
    print(f"{name}: {found.kind}\n{found.told}".rstrip())
    return int(not found.good)


def table(results: list[Result]) -> str:
    """A row per group, and their sum."""
    lines = [f"| group | cases | {' | '.join(GOOD)} | failed | s per case |", f"|---|{'---:|' * (len(GOOD) + 3)}"]
    total, time_spent = Counter[str](), 0.0
    for group, found, seconds in results:
        kinds = Counter(outcome.kind for outcome in found.values())
        lines.append(_row(group, kinds, seconds))
        total, time_spent = total + kinds, time_spent + seconds
    return "\n".join([*lines, _row("**all**", total, time_spent)])


def _row(name: str, kinds: Counter[str], seconds: float) -> str:
    count = kinds.total()
    bad = count - sum(kinds[kind] for kind in GOOD)
    good = " | ".join(f"{kinds[kind]:,}" for kind in GOOD)
    return f"| {name} | {count:,} | {good} | {bad:,} | {seconds / max(count, 1):.2f} |"


def failed(results: list[Result]) -> list[str]:
    """The cases that failed, the worst first."""
    bad = [(name, outcome) for _, found, _ in results for name, outcome in found.items() if not outcome.good]
    order = list(FAILURES)
    bad.sort(key=lambda each: order.index(each[1].kind))
    return [f"{outcome.kind}: {name}: {' / '.join(outcome.told.split(chr(10)))[-300:]}" for name, outcome in bad]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", help="carry out one case, by its name")
    parser.add_argument("--only", nargs="*", default=groups(), metavar="GROUP", help="these groups")
    parser.add_argument("--list", action="store_true", help="list the groups")
    parser.add_argument("--seed", type=int, default=0, help="which cases are drawn")
    parser.add_argument("--processes", type=int, default=1, help="groups that are carried out side by side")
    given = parser.parse_args()
    if given.list:
        print("\n".join(groups()))
        return 0
    with tempfile.TemporaryDirectory(prefix="caveat-faults-") as folder:
        tempfile.tempdir = folder
        os.environ["FLWR_HOME"] = str(Path(folder, "flower"))
        if given.case:
            return one(given.case)
        results = list[Result]()
        with ThreadPoolExecutor(given.processes) as threads:
            for result in threads.map(partial(apart, seed=given.seed), given.only):
                results.append(result)
                bad = failed([result])
                print(f"{result[0]}: {len(result[1])} cases, {len(bad)} failed, {result[2]:.0f} s", file=sys.stderr)
                print("".join(f"  {line}\n" for line in bad), end="", file=sys.stderr, flush=True)
    print(table(results))
    print("\n".join(lines := failed(results)))
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
