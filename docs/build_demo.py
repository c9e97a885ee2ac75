"""The demo of the landing page: an exported model, onnxruntime-web and a live report, as scripts that load from a file.

python docs/build_demo.py DIR

A page that is opened from a file can load scripts, but neither WebAssembly files nor modules. So the runtime and the
model are strings in a script (gzip, base64), and the page makes no other request.
"""

from __future__ import annotations

import base64
import gzip
import json
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import caveat

HERE = Path(__file__).parent / "demo"
RUNTIME = "ort-wasm-simd-threaded"


def build(out: Path, work: Path) -> str:
    """Write the demo to `out`; return why it was not built, or "". `work` is an empty folder for the run."""
    out.mkdir(parents=True, exist_ok=True)
    why = "" if shutil.which("npm") else "npm is not installed"
    if not why:
        for name in ("package.json", "package-lock.json"):
            shutil.copy(HERE / name, work)
        command = [
            "npm",
            "ci",
            "--ignore-scripts",
            "--no-audit",
            "--no-fund",
            "--silent",
            "--fetch-retries=1",
            "--fetch-timeout=60000",
        ]
        if subprocess.run(command, cwd=work, capture_output=True, check=False).returncode:
            why = "npm could not install onnxruntime-web"
    if why:
        (out / "report.html").write_text(f"<!doctype html><title>Not built</title><p>Not built: {why}.</p>\n")
    facts = {"missing": why} if why else model(out, work)
    (out / "facts.js").write_text(f"window.caveatDemo = {json.dumps(facts)};\n")
    return why


def model(out: Path, work: Path) -> dict[str, object]:
    """Train and export the model; write its report, the runtime and the model; return what the page shows."""
    silos = caveat.data.rotated(caveat.data.digits(), angles=(0, 15), silos_per_angle=1, seed=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about small examples
        run = caveat.run(
            silos,
            caveat.FedAvg(rounds=15, training=caveat.Training(batch_size=32, lr=0.003)),
            model=caveat.ModelSettings(name="mlp"),
            uncertainty=caveat.Uncertainty(policy="switch"),
            every=5,
            out=work / "run",
        )
    from caveat.html.run.page import write_report

    write_report(work / "run", out / "report.html")
    file = caveat.export_model(run, "silo-0", "onnx", work / "digits.onnx", training_features=True)
    dist = work / "node_modules" / "onnxruntime-web" / "dist"
    shutil.copy(dist / "ort.wasm.min.js", out / "ort.js")
    packed = {"wasm": dist / f"{RUNTIME}.wasm", "glue": dist / f"{RUNTIME}.mjs", "model": file}
    strings = {
        name: base64.b64encode(gzip.compress(path.read_bytes(), 6, mtime=0)).decode() for name, path in packed.items()
    }
    (out / "packed.js").write_text(f"window.caveatDemo.packed = {json.dumps(strings)};\n")
    images = silos.to_image(silos["silo-0"].test.x[:30])[..., 0]
    return {
        "examples": images.reshape(len(images), -1).tolist(),
        "reasons": [each.name.lower() for each in caveat.Reason],
        "megabytes": round(sum(each.stat().st_size for each in out.glob("*.js")) / 1e6, 1),
    }


def main(out: Path) -> None:
    """Build the demo, and exit with the reason if it cannot be built."""
    with tempfile.TemporaryDirectory() as folder:
        sys.exit(build(out, Path(folder)) or 0)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main(Path(sys.argv[1]))
