"""What training needs is imported once: what a forked worker imports, every other one imports again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import caveat

SCRIPT = """
import sys, tempfile
from pathlib import Path
from federations import METHODS, Federation
method = next(each for each in METHODS if type(each).__name__ == sys.argv[1])
Federation(method, Path(tempfile.mkdtemp())).run(stop=1)
print(*[name for name in ("sympy", "mpmath", "torch._dynamo", "torch._inductor") if name in sys.modules])
"""


@pytest.mark.parametrize("method", ["FedAvg", "FedPN"])
@pytest.mark.long
def test_training_imports_neither_a_compiler_nor_algebra(method: str) -> None:
    """Each of these takes half a second of CPU time or more."""
    folders = [str(Path(caveat.__file__).parents[1]), str(Path(__file__).parents[1] / "helpers")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(folders)}
    done = subprocess.run([sys.executable, "-c", SCRIPT, method], env=environment, text=True, capture_output=True)
    assert (done.returncode, done.stdout) == (0, "\n"), done.stderr
