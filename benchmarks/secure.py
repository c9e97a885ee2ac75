"""The cost of secure aggregation: bytes and seconds of silo and server, by silos, parameters and lost silos.

    PYTHONPATH=src:tests/helpers python benchmarks/secure.py 100:62000:10 4:11000000:0

One process plays all silos and the server. The setup (keys and shares) serves eight sums. Seconds of a silo are means
over silos; only unmasking is at the server. All silos mask the same vector. If memory is short, one masked vector
stands for all but its first number, by which the server recognizes a sum: unmasking costs the same, and the rest of
the sum is not looked at.
"""

import sys
import time

import numpy as np
from secure_silos import SecureFederation

from caveat.secure.messages import hexed


def cost(silos: int, parameters: int, lost: int) -> list[str]:
    names = [f"silo{k:03d}" for k in range(silos)]
    alive = names[lost:]
    began = time.perf_counter()
    made = SecureFederation(names)
    made.set_up()
    setup = (time.perf_counter() - began) / silos
    shares = sum(len(each) for each in hexed(made.server.sealed[names[0]]).values())
    words = np.ones(parameters + 2, np.uint64)
    asked = alive if parameters * silos < 10**7 else alive[:1]
    began = time.perf_counter()
    sealed = made.server.sealed
    sent = {name: made.silos[name].mask(0, names, sealed[name], b"request", words, "work") for name in asked}
    mask = (time.perf_counter() - began) / len(asked)
    vectors = {name: sent.get(name, sent[asked[0]]) for name in alive}
    if len(asked) < len(alive):
        rest = [made.silos[name].mask(0, names, sealed[name], b"request", words[:2], "work") for name in alive[1:]]
        vectors[alive[-1]] = vectors[alive[-1]].copy()
        first = sum(int(each[0]) for each in rest) - int(vectors[alive[0]][0]) * (len(alive) - 2)
        vectors[alive[-1]][0] = first % 2**64
    began = time.perf_counter()
    signatures = made.signed(0, alive)
    opened = {name: made.silos[name].open(0, alive, signatures) for name in alive}
    gives = (time.perf_counter() - began) / len(alive)
    began = time.perf_counter()
    made.server.unmask(0, b"request", vectors, opened)
    unmask = time.perf_counter() - began
    upload = 8 * (parameters + 2)
    return [
        str(silos), f"{parameters:,}", str(lost), f"{upload / 1e6:.1f}", f"{shares / 1e3:.1f}", f"{setup:.3g}",
        f"{mask:.3g}", f"{gives:.2g}", f"{unmask:.3g}",
    ]  # fmt: skip


HEAD = ["silos", "parameters", "lost", "vector, MB", "shares, kB", "setup, s", "mask, s", "agree and give shares, s",
        "unmask, s"]  # fmt: skip

if __name__ == "__main__":
    print(f"| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}")
    for argument in sys.argv[1:]:
        print(f"| {' | '.join(cost(*map(int, argument.split(':'))))} |", flush=True)
