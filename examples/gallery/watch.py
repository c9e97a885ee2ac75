"""
Watch for change
================

``caveat watch`` tests whether new rows are still like the calibration rows. However often you run it,
the probability of ever raising a false alarm is at most 1 %.
"""

import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
from typer.testing import CliRunner

import caveat
from caveat.cli.main import app

folder = Path(tempfile.mkdtemp())
rng = np.random.default_rng(0)


def patients(count: int) -> pd.DataFrame:
    """Made-up patients, whose creatinine is in mg/dl."""
    table = pd.DataFrame({"age": rng.normal(66, 10, count).round(), "creatinine": np.exp(rng.normal(0.1, 0.4, count))})
    table["outcome"] = np.where(table.creatinine + rng.normal(0, 0.4, count) > 1.1, "died", "alive")
    return table


silos = caveat.data.from_frames({"north": patients(300), "south": patients(300)}, target="outcome")
run = caveat.run(silos, caveat.FedAvg(rounds=8), out=folder / "run", every=8)


def watch(table: pd.DataFrame) -> None:
    """Show the command's output for a batch of new rows."""
    table.drop(columns="outcome").to_csv(folder / "batch.csv", index=False)
    state = str(folder / "watch.json")
    command = ["watch", str(folder / "run"), "--silo", "north", str(folder / "batch.csv"), "--state", state]
    done = CliRunner().invoke(app, command)
    print(done.output.replace(str(folder), "..."), f"exit status {done.exit_code}")


# %%
# A batch of patients like those before.

watch(patients(100))

# %%
# The laboratory now reports creatinine in µmol/l.

changed = patients(100)
changed["creatinine"] *= 88.4
watch(changed)
