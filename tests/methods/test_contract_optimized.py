"""The contract holds, and notices what breaks it, where Python leaves out asserts (`python -O`)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

pytestmark = pytest.mark.long
HERE = Path(__file__).parent
WORKERS = "test_of_other_runs[two_workers_give_the_bits_of_one-FedAvg]"
MUTATION = "test_of_other_runs[nothing_passed_in_is_mutated-FedAvg]"
CHEAP = ("test_of_one_run[FedAvg]", "test_of_one_run[Private-FedAvg]", WORKERS, MUTATION)
SCRIPT = """
import os, sys
import pytest
if __debug__:
    sys.exit("this is to run under -O")
{planted}
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestConfigWarning", *sys.argv[1:]]))
"""
OF_A_PROCESS = """
from caveat.methods import FedAvg
train = FedAvg.train
def other(self, down, state, context):
    update, after = train(self, down, state, context)
    update.payload["model"]["head.1.bias"] += os.getpid() % 1000
    return update, after
FedAvg.train = other
"""
"""Other bits with other workers."""
MUTATING = """
from caveat.methods import FedAvg
average = FedAvg.aggregate
def other(self, server, replies, context):
    server["model"]["head.1.bias"] += 1
    return average(self, server, replies, context)
FedAvg.aggregate = other
"""


def optimized(planted: str, tests: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Those tests of the contract under -O, with something planted before they are imported."""
    script = SCRIPT.format(planted=planted)
    command = [sys.executable, "-O", "-c", script, *(f"{HERE / 'test_contract.py'}::{test}" for test in tests)]
    plain = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return subprocess.run(command, env=plain, text=True, capture_output=True, cwd=HERE.parents[1])


def test_the_contract_holds() -> None:
    done = optimized("", CHEAP)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


def test_planted_differences_are_seen() -> None:
    done = optimized(OF_A_PROCESS + MUTATING, (WORKERS, MUTATION))
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search("Violation: .*: model/.* differs", done.stdout)
    assert re.search("Violation: .* mutates .*: model/.* differs", done.stdout)
    assert "2 failed" in done.stdout
