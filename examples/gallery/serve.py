"""
Serve a model over HTTP
=======================

``caveat serve`` answers requests with probabilities, p-values, a decision and its reason.
"""

import json
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import numpy as np
import pandas as pd

import caveat

rng = np.random.default_rng(0)
tables = {}
for name in ("north", "south"):
    table = pd.DataFrame({"age": rng.normal(66, 10, 200).round(), "creatinine": np.exp(rng.normal(0.1, 0.4, 200))})
    table["outcome"] = np.where(table.creatinine + rng.normal(0, 0.4, 200) > 1.1, "died", "alive")
    tables[name] = table
folder = Path(tempfile.mkdtemp()) / "run"
silos = caveat.data.from_frames(tables, target="outcome")
run = caveat.run(silos, caveat.FedAvg(rounds=8), uncertainty=caveat.Uncertainty(policy="switch"), out=folder, every=8)

# %%
# Start the service on a free port. In practice, run ``caveat serve RUN --silo north``.

with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = str(free.getsockname()[1])
command = [sys.executable, "-m", "caveat", "serve", str(folder), "--silo", "north", "--port", port]
server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
body = json.dumps({"rows": [{"age": 61, "creatinine": 0.9}, {"age": 61, "creatinine": 999}]}).encode()
request = urllib.request.Request(f"http://127.0.0.1:{port}/predict", body, headers={"content-type": "application/json"})
while server.poll() is None:
    try:
        answer = json.load(urllib.request.urlopen(request))
        break
    except OSError:  # it is still starting
        time.sleep(0.1)
server.terminate()
server.wait()

# %%
# The second patient's creatinine is a typing error.

for each in answer["answers"]:
    print(json.dumps({key: each[key] for key in ("label", "probabilities", "familiarity", "decision", "reason")}))
