"""What runs on a device, tried on the stand-in of `shadow.py`.

Once torch knows of a device that is no CPU, a process that has trained can have no forked workers any more. So the
tests of `cases_*.py` run in processes of their own, all of a file in one.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.parametrize("cases", sorted(path.name for path in HERE.glob("cases_*.py")))
@pytest.mark.long
def test_on_a_device(cases: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "-o", f"python_files={cases}"]
    done = subprocess.run([*command, str(HERE / cases)], text=True, capture_output=True, cwd=HERE.parents[1])
    if "lets no device be written in Python" in done.stdout:
        pytest.skip("torch lets no device be written in Python")
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
