"""Run hospitals and a server as separate processes on this machine, and test how they handle failures.

For each method:

- Silos join over TLS with registered keys. A server that requests too much, labels with undeclared codes, and a node
  that claims another silo's name are refused.
- A silo is killed and reconnects. The server is killed and restarted, and labels that were flipped in between are
  detected.
- The result is bit-identical to a run on one machine in which silos take part in the same rounds. No surname has left
  its hospital, and later changes of tables do not affect predictions.
- A silo that missed the end gets the model, and a silo that comes after the run joins.
- A malicious silo is named; its run is rolled back and continues without it.

With `fedavg`, there are four hospitals with secure aggregation, none that joins later, and no malicious silo.

Ends with status 1 at the first failure.
"""

from __future__ import annotations

import argparse
import atexit
import os
import re
import shutil
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from curious import CODES, add_surnames, flip, keep_predictions, recode, refuse_codes, refuse_digging, search_surnames
from late import check_model, deliver, last_training, trained
from machines import EXPECTED, Failed, Machine, copy_of, free_port, kill, listens, open_to_others, processes, wait_for
from malicious import FOLDER, MALICIOUS, attack, go_back
from reference import counted, differences

from caveat.config import dump, load
from caveat.federation.project import write_project

HERE = Path(__file__).parent
HOSPITALS = ("cleveland", "hungarian", "va")
VICTIM, RELABELED, NAMED = "va", "hungarian", "cleveland"
"""Who is killed, whose labels are flipped while the server is away, and whose table has a column of surnames."""
NEWCOMER = "switzerland"
"""Who comes when the run is over."""
JOINING = 5  # rounds
STRANGER, IMPOSTOR = "stranger", "impostor"
"""One whose key the server does not know; and one whose key it knows, but who says that it is another silo."""
DECLARED = {
    '# target = "column" ': 'target = "disease" ',
    "# categorical = [] ": 'categorical = ["sex", "cp", "fbs", "restecg", "exang", "slope", "thal"] ',
    "small_counts = false ": "small_counts = true ",
    "# dictionary = ": "dictionary = ",
    "# [data.label_codes] ": "[data.label_codes] ",
    "# 0 =": "0 =",
    "# 1 =": "1 =",
}
"""What each hospital says of its table, in place of lines of the template of `silo.toml`."""
LABELS = ("# [data.label_codes] ", "# 0 =", "# 1 =")
"""The lines that say what its labels mean."""


@dataclass
class Deployment:
    """A server and the hospitals' machines."""

    folder: Path
    data: Path
    method: str
    port: int
    secure: bool = False
    server: Machine = field(init=False)
    hospitals: dict[str, Machine] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """The hospitals that take part from the beginning. A sum needs three, so that one of four may be away."""
        return (*HOSPITALS, NEWCOMER) if self.secure else HOSPITALS

    @property
    def run(self) -> Path:
        return self.server.folder / "runs" / self.method

    @property
    def machines(self) -> list[Machine]:
        return [*self.hospitals.values(), *([self.server] if hasattr(self, "server") else [])]

    def install(self) -> None:
        """The project on every machine; certificates, keys, and the hospitals' tables."""
        project = self.folder / "server"
        config = load(str(HERE / f"{self.method}.toml"))
        self.secure = config.federation.secure
        write_project(project, dump(config), None)
        self.server = Machine(project)
        self.server.call("./certificates.sh", "localhost")
        for name in (*HOSPITALS, NEWCOMER, STRANGER, IMPOSTOR, *CODES, MALICIOUS):
            machine = self.hospitals[name] = copy_of(project, self.folder / name)
            table = name if name in (*HOSPITALS, NEWCOMER) else HOSPITALS[0]
            shutil.copy(self.data / f"uci_heart_{table}.csv", machine.folder / f"{name}.csv")
            shutil.copy(HERE / "dictionary.toml", machine.folder)
            text = (machine.folder / "silo.toml").read_text()
            said = VICTIM if name == IMPOSTOR else name
            declared = DECLARED | ({} if name not in CODES else dict.fromkeys(LABELS, ""))
            for template, own in ({'"name"': f'"{said}"', "table.csv": f"{name}.csv"} | declared).items():
                text = text.replace(template, own or template)
            (machine.folder / "silo.toml").write_text(text)
            machine.call("./key.sh", name)
        path = os.pathsep.join(filter(None, (str(FOLDER), os.environ.get("PYTHONPATH"))))
        self.hospitals[MALICIOUS].variables = {
            "PYTHONPATH": path,
            "MALICIOUS_FOLDER": str(self.hospitals[MALICIOUS].folder),
        }
        add_surnames(self.table(NAMED))
        for name, code in CODES.items():
            recode(self.table(name), code)

    def table(self, name: str) -> Path:
        return self.hospitals[name].folder / f"{name}.csv"

    def start_server(self) -> None:
        self.server.start("server", "./server.sh", "127.0.0.1", str(self.port))
        wait_for("the server listens", 60, self.listens, 0.2)

    def listens(self) -> bool:
        if self.server.ended("server") is not None:
            raise Failed(f"the server ended; see {self.server.log('server')}")
        return listens(self.port)

    def register(self) -> None:
        """All machines but the stranger, by the names of their keys."""
        for name in (*HOSPITALS, NEWCOMER, IMPOSTOR, *CODES, MALICIOUS):
            self.server.call("./admit.sh", str(self.hospitals[name].folder / "keys" / f"{name}.pub"))

    def start_silo(self, name: str) -> None:
        self.hospitals[name].start("silo", "./silo.sh", "silo.toml", f"keys/{name}", f"localhost:{self.port}")

    def online(self) -> int:
        return sum(node["status"] == "online" for node in self.server.flwr("supernode", "ls", "deploy")["nodes"])

    def submit(self) -> None:
        self.server.start("run", "./run.sh", f"runs/{self.method}")

    @property
    def number(self) -> str:
        """Flower's number of the run, as it was submitted last."""
        return str(re.findall(r"^run (\d+):", self.server.log("run").read_text(), re.MULTILINE)[-1])

    @property
    def last_training(self) -> int:
        """The position in the schedule of the last round of training."""
        return last_training(HERE / f"{self.method}.toml")

    def rounds(self, silo: str | None = None) -> set[int]:
        """The rounds counted so far, of a silo or of any."""
        return {t for t, name in counted(self.run) if silo in (None, name)}

    def going(self) -> None:
        """Raises Failed if the run has ended."""
        if (status := self.server.ended("run")) is not None:
            raise Failed(f"the run ended with status {status}; see {self.server.log('run')}")

    def counts(self, what: str, silo: str | None, after: int, seconds: float) -> int:
        """Wait until a round after that one is counted, and return the newest."""

        def found() -> bool:
            self.going()
            return max(self.rounds(silo), default=-1) > after

        wait_for(what, seconds, found)
        return max(self.rounds(silo))

    def states(self) -> dict[str, Path]:
        """Where the hospitals keep their private states: below the federation's name and the method's."""
        found = {name: sorted(self.hospitals[name].folder.glob("state/*/*/state/silos")) for name in self.names}
        if any(len(places) > 1 for places in found.values()):
            raise Failed(f"states of several runs: {found}")
        return {name: places[0] for name, places in found.items() if places}

    def destroy(self) -> None:
        for machine in self.machines:
            machine.destroy()


class Steps:
    """Prints a line per step, with the seconds that it took."""

    def __init__(self) -> None:
        self.mark = time.monotonic()

    def __call__(self, what: str) -> None:
        now = time.monotonic()
        print(f"{now - self.mark:6.1f} s  {what}", flush=True)
        self.mark = now


def perform(deployment: Deployment, step: Steps) -> None:
    server, hospitals = prepare(deployment, step), [deployment.hospitals[name] for name in deployment.names]
    refuse_digging(server, deployment.method, hospitals)
    step("runs that ask for ages as labels or categories are refused by all silos")
    for name in (IMPOSTOR, *CODES):
        deployment.start_silo(name)
    wait_for("all are online", 120, lambda: deployment.online() == len((*deployment.names, IMPOSTOR, *CODES)))
    deployment.submit()
    began = deployment.counts("the first round", None, -1, 300)
    step(f"round {began} counted, of {len(counted(deployment.run))} silos")
    refuse_codes(lambda: server.said(deployment.number), [(name, deployment.hospitals[name]) for name in CODES])
    step("labels 1 and 2, and 0 to 4, are refused where nobody says what they mean")
    refuse_impostor(deployment)
    step(f"a node with a key of its own that says it is {VICTIM} is refused")
    lose_silo(deployment, step)
    lose_server(deployment, step)
    stop(deployment)
    step("all stopped; no process is left")
    keep_secrets(deployment)
    step("nobody else can read keys, states, runs and what Flower keeps")
    compare(deployment, step)
    search_surnames(deployment.folder, deployment.hospitals[NAMED].folder)
    step(f"none of 60 surnames has left {NAMED}, in no form")
    keep_predictions(deployment.hospitals[NAMED], NAMED)
    step(f"{NAMED} predicts alike with its table sorted, extended and deleted")
    help_the_late(deployment, step)
    if not deployment.secure:
        withstand_a_malicious_silo(deployment, step)


def prepare(deployment: Deployment, step: Steps) -> Machine:
    deployment.install()
    deployment.start_server()
    deployment.register()
    step("server with TLS; eight keys admitted")
    refuse_stranger(deployment)
    step("a silo with a key that is not registered is refused")
    for name in deployment.names:
        deployment.start_silo(name)
    wait_for("the silos are online", 60, lambda: deployment.online() == len(deployment.names))
    step(f"{len(deployment.names)} silos online")
    return deployment.server


def refuse_stranger(deployment: Deployment) -> None:
    deployment.start_silo(STRANGER)
    stranger = deployment.hospitals[STRANGER]
    wait_for("the stranger is refused", 60, lambda: f"{EXPECTED['stranger']}1" in stranger.log("silo").read_text(), 0.2)
    if deployment.online():
        raise Failed("a silo is online, and none of those registered was started")
    stranger.stop("silo")


def refuse_impostor(deployment: Deployment) -> None:
    server, impostor = deployment.server, deployment.hospitals[IMPOSTOR]
    told = f"silo '{VICTIM}' {EXPECTED['impostor']}SHA256:"
    wait_for("the impostor is refused", 60, lambda: told in server.said(deployment.number), 5)
    impostor.stop("silo")
    if list(impostor.folder.glob("state/*/*/ledger.jsonl")):
        raise Failed("the impostor was given work")


def keep_secrets(deployment: Deployment) -> None:
    places = [machine.folder / name for machine in deployment.machines for name in ("keys", "state", "runs")]
    flower = [deployment.server.home / "server", *(deployment.hospitals[name].home for name in deployment.names)]
    certificates = deployment.server.folder / "certificates"
    if found := [path for place in (*places, *flower, certificates) for path in open_to_others(place)]:
        raise Failed(f"others may read {', '.join(map(str, found[:5]))}")


def lose_silo(deployment: Deployment, step: Steps) -> None:
    """Kill a silo's processes but for the script that starts them anew; the federation goes on without it."""
    last = max(deployment.rounds())
    kill(processes(deployment.hospitals[VICTIM].home / VICTIM))
    gone = deployment.counts("a round without the killed silo", None, last + 1, 480)
    missed = deployment.rounds() - deployment.rounds(VICTIM)
    if not missed:
        raise Failed(f"{VICTIM} was killed after round {last} and counted in all of {sorted(deployment.rounds())}")
    step(f"{VICTIM} killed after round {last}; the others went on to round {gone}")
    back = deployment.counts(f"{VICTIM} is back", VICTIM, max(missed), 480)
    missed = deployment.rounds() - deployment.rounds(VICTIM)
    step(f"{VICTIM} is back in round {back}, and has missed {sorted(missed)}")


def lose_server(deployment: Deployment, step: Steps) -> None:
    """Kill the server and the app that runs on it, start it, and submit the same run."""
    deployment.going()
    server = deployment.server
    kill(processes(server.home / "server"))
    server.running.pop("server").wait()
    wait_for("the run ends with its server", 60, lambda: server.ended("run") is not None)
    if not server.ended("run"):
        raise Failed("run.sh ended well, and its server was killed")
    last = max(deployment.rounds())
    if (deployment.run / "summary.json").exists():
        raise Failed("the run was complete before its server was killed")
    step(f"server killed after round {last}")
    table = deployment.table(RELABELED)
    before = flip(table)
    deployment.start_server()
    wait_for("the silos are online", 120, lambda: deployment.online() == len(deployment.names))
    step("server back, and its silos online again")
    deployment.submit()
    log = deployment.hospitals[RELABELED].log("silo")
    wait_for(f"{RELABELED} notices its labels", 240, lambda: EXPECTED["relabeled"] in log.read_text(), 2)
    table.write_text(before)
    step(f"labels of {RELABELED} were flipped in between: it refuses, and its table is put back")
    deployment.counts(f"{VICTIM} has trained in the last round", VICTIM, deployment.last_training - 1, 600)
    deployment.hospitals[VICTIM].stop("silo")
    step(f"{VICTIM} is switched off after the last round of training")
    wait_for("the run is complete", 900, lambda: server.ended("run") is not None)
    if status := server.ended("run"):
        raise Failed(f"the run ended with status {status}; see {server.log('run')}")
    step(f"same run submitted again: complete with round {max(deployment.rounds())}")


def stop(deployment: Deployment) -> None:
    for name in deployment.names:
        if "silo" in deployment.hospitals[name].running:
            deployment.hospitals[name].stop("silo")
    deployment.server.stop("server")
    wait_for("no process is left", 30, lambda: not processes(deployment.folder), 0.5)


def compare(deployment: Deployment, step: Steps) -> None:
    tables = [deployment.table(name) for name in deployment.names]
    reference, states = deployment.folder / "reference", deployment.states()
    if found := differences(deployment.run, states, tables, reference):
        raise Failed(f"other bits than on one machine: {', '.join(found)}")
    step(f"server and {len(states)} private states have the bits of a run on one machine")


def help_the_late(deployment: Deployment, step: Steps) -> None:
    """The hospital that was away in the end gets the model, and one that was never there joins."""
    server, late = deployment.server, [VICTIM] if deployment.secure else [VICTIM, NEWCOMER]
    if list(deployment.hospitals[VICTIM].folder.glob("state/*/*/model/model.json")):
        raise Failed(f"{VICTIM} was switched off before the last message, and has a model")
    deployment.start_server()
    for name in late:
        deployment.start_silo(name)
    deliver(server, deployment.run, late, JOINING)
    for name in late:
        machine, table = deployment.hospitals[name], deployment.table(name)
        right = check_model(machine, deployment.run, name, table, machine.folder / "predicted.csv")
        own = trained(deployment.run, name)
        step(f"{name} has the model after {own} rounds by itself, and is right on {right:.1%} of its table")
    joined = deployment.secure or 1 <= trained(deployment.run, NEWCOMER) <= JOINING
    if not joined or trained(deployment.run, VICTIM):
        raise Failed(f"{NEWCOMER} was to train in 1 to {JOINING} rounds, and {VICTIM} in none")
    for name in late:
        deployment.hospitals[name].stop("silo")
    server.stop("server")


def withstand_a_malicious_silo(deployment: Deployment, step: Steps) -> None:
    """Make new runs with a fourth machine whose silo is malicious."""
    shutil.copy(deployment.data / f"uci_heart_{NAMED}.csv", deployment.table(NAMED))  # which was deleted
    deployment.start_server()
    (deployment.hospitals[MALICIOUS].folder / "attack").write_text("weights")
    for name in (*HOSPITALS, MALICIOUS):
        deployment.start_silo(name)
    wait_for("four silos are online", 180, lambda: deployment.online() == 4)
    for found in attack(deployment.server, deployment.method, deployment.hospitals[MALICIOUS]):
        step(found)
    deployment.hospitals[MALICIOUS].stop("silo")
    step(go_back(deployment.server, deployment.method))
    for name in HOSPITALS:
        deployment.hospitals[name].stop("silo")
    deployment.server.stop("server")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="a new folder")
    parser.add_argument("--data", type=Path, default=os.environ.get("CAVEAT_DATA", "."), help="with uci_heart_*.csv")
    parser.add_argument("--method", choices=("uefl", "fedpn", "both", "fedavg"), default="both")
    parser.add_argument("--port", type=int, help="of the server [a free one]")
    parser.add_argument("--limit", type=int, default=5400, help="seconds for everything")
    given = parser.parse_args()

    def too_long(number: int, frame: object) -> None:
        raise Failed(f"not done within {given.limit} s")

    signal.signal(signal.SIGALRM, too_long)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))
    signal.alarm(given.limit)
    for method in ("uefl", "fedpn") if given.method == "both" else (given.method,):
        print(method, flush=True)
        folder = (given.out / method).absolute()
        deployment = Deployment(folder, given.data.absolute(), method, given.port or free_port())
        atexit.register(deployment.destroy)
        step = Steps()
        try:
            perform(deployment, step)
        except Failed as failure:
            step(f"FAILED: {failure}")
            return 1
        finally:
            deployment.destroy()
    return 0


if __name__ == "__main__":
    sys.exit(main())
