"""Look for the numbers of single hospitals at the server of a federation with secure aggregation.

    PYTHONPATH=src:tests/helpers:examples/hospitals python benchmarks/canaries/check.py OUT

Four hospitals and a server run as processes on this machine, over TLS. Two canary values are in each tensor of each
hospital's training update, and each hospital records what it sends before it is masked. Whenever the server has opened
a sum, and at the end, the memory of all its processes is read (Linux only) and searched, as are its folder, logs and
Flower's database. Only numbers with six distinct bytes or more are searched, because other programs may have simpler
ones by chance; so is, as a control, the model of all hospitals. Each sum is compared with the plain sum of what was
recorded. Takes five to eight minutes on an idle machine, and ends with status 1 if a number is found or a sum differs.
"""

import os
import re
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from canaries import Recorded, files_below, is_telling, where
from hospitals import hospital
from machines import Machine, copy_of, free_port, listens, processes, wait_for

from caveat.engines.flower_secure import OpenedSum
from caveat.federation.project import write_project
from caveat.files import read_payload
from caveat.secure.fixed_point import decode

HERE = Path(__file__).parent
NAMES = ("coast", "hill", "lake", "valley")
CONFIG = """
seed = 3
rounds = 1
[data]
source = "on_site"
target = "outcome"
classes = ["ill", "well"]
categorical = ["site"]
[model]
name = "mlp"
width = 8
hidden = 8
features = 6
[method]
name = "fedavg"
[training]
batch_size = 8
[uncertainty]
policy = "guaranteed"
set_coverage = 0.8
[engine]
name = "flower"
[federation]
secure = true
robust = "off"
min_available_silos = 4
quorum = 3
round_timeout = 120
"""


class Processes:
    """The server's machine, and four hospitals' machines, which have each other's public keys."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.records = folder, folder / "canaries"
        self.port = free_port()
        write_project(folder / "server", CONFIG, None)
        self.server = Machine(folder / "server")
        self.server.call("./certificates.sh", "localhost")
        self.silos = {name: copy_of(self.server.folder, folder / name) for name in NAMES}
        (folder / "peers").mkdir()
        for seed, (name, machine) in enumerate(self.silos.items()):
            shutil.copytree(hospital(folder / "tables", name, seed), machine.folder, dirs_exist_ok=True)
            settings = machine.folder / "silo.toml"
            settings.write_text(f'peers = "{folder}/peers"\n{settings.read_text()}')
            machine.call("./key.sh", name)
            shutil.copy(machine.folder / "keys" / f"{name}.pub", folder / "peers")
            machine.variables = {
                "PYTHONPATH": os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH")))),
                "CANARIES": str(self.records),
                "CANARIES_HELPERS": str(HERE.parents[1] / "tests" / "helpers"),
            }

    @property
    def run(self) -> Path:
        return self.server.folder / "runs" / "secure"

    def start(self) -> None:
        self.server.start("server", "./server.sh", "127.0.0.1", str(self.port))
        wait_for("the server listens", 60, lambda: listens(self.port), 0.2)
        for name, machine in self.silos.items():
            self.server.call("./admit.sh", str(machine.folder / "keys" / f"{name}.pub"))
            machine.start("silo", "./silo.sh", "silo.toml", f"keys/{name}", f"localhost:{self.port}")
        wait_for("four silos are online", 120, self.online)
        self.server.start("run", "./run.sh", f"runs/{self.run.name}")

    def online(self) -> bool:
        return sum(node["status"] == "online" for node in self.server.flwr("supernode", "ls", "deploy")["nodes"]) == 4

    def memory(self) -> Iterator[tuple[str, bytes]]:
        for pid in processes(self.server.home / "server"):
            yield from memory_of(pid)

    def destroy(self) -> None:
        for machine in (self.server, *self.silos.values()):
            machine.destroy()


def memory_of(pid: int, block: int = 1 << 26) -> Iterator[tuple[str, bytes]]:
    """Yield the writable memory of a process, without pages of zeros."""
    try:
        with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as memory:
            for line in maps:
                found = re.match(r"([0-9a-f]+)-([0-9a-f]+) rw", line)
                start, end = (int(each, 16) for each in found.groups()) if found else (0, 0)
                for at in range(start, end, block):
                    memory.seek(at)
                    content = np.frombuffer(memory.read(min(block, end - at)), np.uint8)
                    pages = content[: len(content) // 4096 * 4096].reshape(-1, 4096)
                    yield f"memory of process {pid}", pages[pages.any(1)].tobytes()
    except OSError:
        return  # the process has ended


def check(made: Processes) -> int:
    sums, found, size, control = dict[str, OpenedSum](), list[str](), 0, 0
    patterns = set[bytes]()

    def search() -> None:
        nonlocal size, control
        # The server keeps the means of the model, which nothing else has by chance.
        means = [decode(each.words, each.layout).means(each.layout) for each in sums.values()]
        models = [tensor for payload in means for tensor in payload.get("model", {}).values()]
        totals = [part.numpy().tobytes() for each in models if (part := each.flatten()[:4]).is_floating_point()]
        totals = [each for each in totals if len(each) > 8 and is_telling(each)]
        for name, content in list(made.memory()):  # all of it first, because the server does not wait
            size += len(content)
            found.extend(where(patterns, [(name, content)]))
            control += len(where(totals, [(name, content)]))

    def collect() -> bool:
        """Read the sums that the server opened since; return whether there are any."""
        fresh = [path for path in made.run.glob("state/sums/*.safetensors") if path.stem not in sums]
        for path in fresh:
            sums[path.stem] = OpenedSum.of_payload(read_payload(path), path)[0]
            patterns.update(Recorded(made.records, path.stem, sums[path.stem].examples).patterns())
        return bool(fresh)

    while (status := made.server.ended("run")) is None:
        if collect():
            search()
        time.sleep(0.2)
    collect()
    search()
    print(f"the run ended with status {status}; {len(sums)} sums, {len(patterns)} patterns of single hospitals")
    print(f"{size / 1e6:,.0f} MB of the server's memory: {len(found)} found; the model, as a control: {control} times")
    files = list(files_below(made.server.folder))
    below = where(patterns, files)
    print(f"{len(files)} files of the server, Flower's database among them: {len(below)} found")
    counts, worst = 0, 0.0
    for task, each in sums.items():
        exact, error = Recorded(made.records, task, each.examples).compare(decode(each.words, each.layout).sums)
        counts, worst = counts + exact, max(worst, error)
    print(f"{counts:,} counts are exact; the largest error of other numbers is {worst:.2f} of the bound")
    print(*found, *below, sep="\n")
    return int(bool(status or found or below or worst > 1 or not control or len(sums) < 4))


if __name__ == "__main__":
    made = Processes(Path(sys.argv[1]).absolute())
    try:
        made.start()
        sys.exit(check(made))
    finally:
        made.destroy()
