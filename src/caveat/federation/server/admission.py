"""What `admit.sh` does: Flower's server is told a silo's key, and the silo's name is bound to it.

Flower knows nodes by number, and does not say whose key a number was given for. So `silos/NAME.node` of the project has
a line for each key that was admitted under a name, the newest last: the node's number, and the key's fingerprint.

    python -P -m caveat.federation.server.admission NAME.pub     in the project's folder
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ...core import CaveatError, ConfigurationError, DataError, RunError, SiloId, check_silo_name
from ...files.writing import write_bytes
from ..name_keys import SILO_KEYS, fingerprint_in

LINK = "deploy"
"""What `server.sh` calls the server in Flower's configuration."""
FILE = ".node"
"""What comes behind a silo's name in the file with its nodes."""
GONE = "unregistered"
"""What Flower says of a node that was excluded. It never takes the key of such a node again."""


class Admitted(NamedTuple):
    """A key that was admitted under a name."""

    silo: SiloId
    node: str
    key: str
    """Its fingerprint."""


def admit(path: Path, folder: Path) -> str:
    """Have the server let the silo in that has a key, and bind the name of the file to it; say what was done.

    A key that is admitted already stays so. Raises ConfigurationError for a file that is no silo's public key, RunError
    where the server does not let it in; then nothing is written to `folder`.
    """
    silo = path.name.removesuffix(".pub")
    try:
        check_silo_name(silo, f"{path}: ")
    except DataError as error:
        raise ConfigurationError(str(error)) from None
    key, before = fingerprint_in(path), list(admitted(folder))
    answer = _flwr("register", str(path))
    if not answer.get("success"):
        return _known_already(answer, path, folder, Admitted(silo, "", key), before)
    node = str(answer["node-id"])
    _bind(path, folder, Admitted(silo, node, key), before)
    former = next((each.node for each in reversed(before) if each.silo == silo), None)
    told = f"{silo} is admitted: its node is {node}"
    if former is not None and _statuses().get(former, GONE) != GONE:
        told += f"\nthe node of its former key is still let in; to exclude it: {excluding(former)}"
    return told


def excluding(node: str) -> str:
    """What to type to have the server let a node in no more."""
    return f". ./environment.sh; flwr supernode unregister {node} {LINK}"


def admitted(folder: Path) -> Iterator[Admitted]:
    """The keys that were admitted, as far as it is written down, the newest of each name last.

    Raises ConfigurationError, naming the file, for one that holds anything else.
    """
    for path in sorted(folder.glob(f"*{FILE}")):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            node, _, key = line.partition(" ")
            if not (node.isascii() and node.isdigit() and key):
                raise ConfigurationError(f"{path}: {line[:80]!r}: expected a node's number and its key's fingerprint")
            yield Admitted(path.name.removesuffix(FILE), node, key)


def _known_already(answer: dict[str, Any], path: Path, folder: Path, asked: Admitted, before: list[Admitted]) -> str:
    """The same of a key that the server has not taken, if it is one that it has already."""
    why = str(answer.get("error-message", ""))
    if "already in use" not in why:
        raise RunError(_told(why))
    silo, statuses = asked.silo, _statuses()
    another = (
        f"a key is used up with that: at the silo, move keys/{silo} and keys/{silo}.pub away, ./key.sh {silo} makes "
        f"another, and ./admit.sh takes the new {silo}.pub"
    )
    if (last := next((each for each in reversed(before) if each.key == asked.key), None)) is not None:
        if statuses.get(last.node, GONE) == GONE:
            raise RunError(f"{silo} is not admitted: node {last.node}, which had this key, was excluded, and {another}")
        if last.silo != silo:
            raise RunError(
                f"{silo} is not admitted: {last.silo} has this key (node {last.node}), and each silo needs its own: "
                f"./key.sh {silo} at the silo makes one"
            )
        _bind(path, folder, last, before)
        return f"{silo} is admitted already: its node is {last.node}"
    if GONE in statuses.values():
        raise RunError(
            f"{silo} is not admitted: the server had this key before, and it is not written down here for which node. "
            f"If that was excluded, {another}; else the silo is let in as it is"
        )
    _bind(path, folder, asked, before)
    return f"{silo} is admitted already; its node's number is not written down here, and the log of a run says it"


def _bind(path: Path, folder: Path, new: Admitted, before: list[Admitted]) -> None:
    """Keep the key as that of its silo's name, and the node that it has."""
    text = path.read_bytes()
    folder.mkdir(exist_ok=True)
    if new.node:
        lines = [each for each in before if each.silo == new.silo and each != new] + [new]
        _write(folder / f"{new.silo}{FILE}", "".join(f"{each.node} {each.key}\n" for each in lines).encode())
    _write(folder / f"{new.silo}.pub", text)


def _write(path: Path, content: bytes) -> None:
    if not path.exists() or path.read_bytes() != content:
        write_bytes(path, content)
    path.chmod(0o644)


def _statuses() -> dict[str, str]:
    """What Flower says of each node, by number. Raises RunError where it says nothing."""
    answer = _flwr("ls")
    if "nodes" not in answer:
        raise RunError(_told(str(answer.get("error-message", ""))))
    return {str(node["node-id"]): str(node["status"]) for node in answer["nodes"]}


def _flwr(*words: str) -> dict[str, Any]:
    """Flower's answer to a command about nodes; one that is none has what it said under "error-message"."""
    command = ["flwr", "supernode", *words, LINK, "--format", "json"]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    except OSError:
        why = "flwr is not on the path: activate the environment with caveat[flower] in it"
        raise ConfigurationError(why) from None
    text = done.stdout[done.stdout.find("{") :]
    try:
        answer = json.loads(text)
    except ValueError:
        answer = {"error-message": done.stderr or done.stdout}
    return answer if isinstance(answer, dict) else {}


def _told(why: str) -> str:
    """In a sentence, why Flower has not done what it was asked."""
    if "not found in the" in why and LINK in why:
        return "this project's server has not been started yet: start ./server.sh first, on this machine"
    if "is unavailable" in why:
        return "the server does not answer: start ./server.sh on this machine"
    lines = [line.strip() for line in why.splitlines() if line.strip()]
    return f"the server does not answer well: {lines[-1] if lines else 'it says nothing'}"


def main() -> int:
    try:
        print(admit(Path(sys.argv[1]), Path(SILO_KEYS)))
    except CaveatError as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, ConfigurationError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
