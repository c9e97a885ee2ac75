"""Make the pages to look at when a change affects what people read: one of each kind.

    CAVEAT_DATA=DIR python benchmarks/report_pages.py OUT [NAME...]

OUT/NAME.html is the page, OUT/NAME.txt what the commands printed, OUT/runs/NAME the run. Names are those of `PAGES`;
existing pages stay. The comparison of ten seeds and the 1,000 silos take longest.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np

from caveat.data import digits

HEART = " ".join(f"{{data}}/uci_heart_{place}.csv" for place in ("cleveland", "hungarian", "switzerland", "va"))
MANY = (
    "run uefl-mnist --set method.name=fedavg --set data.n_silos=1000 --set data.shift.angles=[0] --set rounds=6 "
    "--set data.samples_per_silo=40 --set data.test_per_silo=10 --set model.name=lenet5 --set training.batch_size=16 "
    "--vectorized auto"
)
PAGES = {
    "run": "run digits",
    "guarantee": "run digits --set method.name=fedavg --set baselines=[] --set uncertainty.policy=guaranteed "
    "--set uncertainty.risk=0.05",
    "streams": "run fedpn-fmnist --set rounds=20 --set data.samples_per_silo=1000 --set data.test_per_silo=300 "
    "--set evaluation.every=5",
    "heart": f"run {HEART} --target disease",
    "failed": "run digits --set method.name=fedavg --set training.optimizer=sgd --set training.lr=300",
    "forty": "run digits --set method.name=fedavg --set data.n_silos=40 --set data.shift.angles=[0,40,80,120] "
    "--set training.batch_size=8 --set 'baselines=[\"local\"]'",
    "thousand": f"{MANY} --set 'baselines=[\"local\"]'",
    "quantity": "run diabetes",
    "compare3": "compare digits --methods local,fedavg,uefl --seeds 0,1,2",
    "compare10": "compare digits --methods local,fedavg,ditto,fedrep --seeds 0,1,2,3,4,5,6,7,8,9",
    "audit": "audit digits --set method.name=fedavg --set baselines=[] --set rounds=10 --seeds 0,1,2,3,4",
    "predictions_heart": "predict {out}/runs/heart {out}/heart.csv --silo uci_heart_cleveland",
    "foreign": "predict {out}/runs/run {out}/foreign.npz --silo silo-0",
    "own": "predict {out}/runs/run {out}/own.npz --silo silo-0",
}
"""By name, the command; {out} is OUT and {data} is $CAVEAT_DATA."""


def inputs(out: Path, data: Path) -> None:
    """Write the inputs of the pages about predictions."""
    images = digits().x[..., 0]
    draw = np.random.default_rng(0)
    np.savez(out / "own.npz", x=images[draw.permutation(len(images))[:200]])
    noise = draw.integers(0, 256, (20, 8, 8), dtype=np.uint8)
    np.savez(out / "foreign.npz", x=np.concatenate([images[:40], np.rot90(images[40:80], axes=(1, 2)), noise]))
    header, *rows = [line.rsplit(",", 1)[0] for line in (data / "uci_heart_cleveland.csv").read_text().splitlines()]
    strange = "29,1,4,400,900,0,1,200,0,9,2,3,7"
    (out / "heart.csv").write_text("\n".join([header, *rows[:79], strange]) + "\n")


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("out", type=Path)
    words.add_argument("names", nargs="*", default=list(PAGES))
    chosen = words.parse_args()
    out, data = chosen.out.resolve(), Path(os.environ["CAVEAT_DATA"])
    (out / "runs").mkdir(parents=True, exist_ok=True)
    inputs(out, data)
    for name in chosen.names:
        page, folder = out / f"{name}.html", out / "runs" / name
        if page.exists():
            continue
        line = shlex.split(PAGES[name].format(out=out, data=data))
        predicts = line[0] == "predict"
        line += ["--report", str(page), "--out", str(out / f"{name}.csv")] if predicts else ["--out", str(folder)]
        done = subprocess.run([sys.executable, "-m", "caveat", *line], capture_output=True, text=True)
        (out / f"{name}.txt").write_text(f"$ caveat {shlex.join(line)}\n{done.stdout}{done.stderr}")
        if not predicts:
            for report in filter(Path.exists, (folder / "report.html", folder / "audit.html")):
                page.write_bytes(report.read_bytes())
        print(f"{name}: status {done.returncode}", flush=True)


if __name__ == "__main__":
    main()
