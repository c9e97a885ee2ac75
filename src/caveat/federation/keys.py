"""The keys that silo names are bound to: signed greetings, and what `admit.sh` does.

A silo signs its greeting with the key by which Flower's server knows its node (`key.sh`). The server looks up the key's
owner in the project's `silos/NAME.pub`, which `admit.sh` writes. Without such files, the first key that greets under a
name is bound to it for the run.

Flower identifies nodes by number and does not record the key of a number. So `silos/NAME.node` has one line for each
key that was registered under a name, the newest last: the node's number and the key's fingerprint.

    python -P -m caveat.federation.keys NAME.pub     in the project's folder
"""

import base64
import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_ssh_private_key,
    load_ssh_public_key,
)

from ..core import CaveatError, ConfigurationError, DataError, RunError, SiloId, check_silo_name
from ..engines.flower_messages import Words
from ..files.writing import write_bytes

SILO_KEYS = "silos"
"""The folder of a project in which its operator keeps the silos' public keys, NAME.pub."""
PURPOSE = "caveat greeting 1"
"""What a signature of this kind begins with, so that none that the key gives for anything else is one."""
KEY, SIGNATURE = "key", "signature"
"""The words of a greeting that its signature is not of."""
LONGEST = 1000
"""Characters of a key or a signature: those of the largest curve have fewer than 300."""
UNSIGNED = ""
"""Stands for the fingerprint of a greeting's key where it has none."""


class NameRefused(DataError):
    """A greeting under a name that is not the greeter's. `told` is what it may know of that: nothing of others."""

    def __init__(self, text: str, told: str) -> None:
        super().__init__(text)
        self.told = told


@dataclass(frozen=True)
class Asked:
    """What a greeting answers. A signature is of all of it, so that it is of no use anywhere or at any time else."""

    federation: str
    question: str
    nonce: str
    """Drawn by the server for this question."""
    node: int

    def signed_text(self, words: Words) -> bytes:
        """What is signed, of an answer in these words."""
        said = {word: value for word, value in sorted(words.items()) if word not in (KEY, SIGNATURE)}
        return json.dumps([PURPOSE, self.federation, self.question, self.nonce, self.node, said]).encode()


def signed(words: Words, asked: Asked, key: Path) -> Words:
    """An answer with its signature. Raises ConfigurationError for a file that holds no private key of `key.sh`."""
    private = private_key_in(key)
    signature = private.sign(asked.signed_text(words), ec.ECDSA(SHA384()))
    public = private.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return {**words, KEY: public.decode(), SIGNATURE: signature.hex()}


def private_key_in(path: Path) -> ec.EllipticCurvePrivateKey:
    """Raises ConfigurationError, naming the file, for one that holds no private key of `key.sh`."""
    try:
        private = load_ssh_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigurationError(f"{path}: cannot be read as a private key: {error}") from None
    if not isinstance(private, ec.EllipticCurvePrivateKey):
        raise ConfigurationError(f"{path}: expected an ECDSA key without a passphrase, as key.sh makes it")
    return private


@dataclass
class NameKeys:
    """Which key a silo's name belongs to, by fingerprints as `ssh-keygen -lf NAME.pub` prints them."""

    folder: Path | None = None
    """Where the operator keeps NAME.pub for each silo; read for each greeting, so that a key can be replaced."""
    bound: dict[SiloId, str] = field(default_factory=dict)
    """The key that each silo greeted with last."""

    def given(self) -> dict[SiloId, str]:
        """The keys in the operator's folder. Raises ConfigurationError, naming the file, for one that is none."""
        return {silo: fingerprint_in(path) for silo, path in self._files().items()}

    def given_to(self, silo: SiloId) -> str | None:
        """The key that the operator gives a name, whatever the files of others hold; None without a file."""
        path = self._files().get(silo)
        return None if path is None else fingerprint_in(path)

    def _files(self) -> dict[SiloId, Path]:
        paths = [] if self.folder is None else sorted(self.folder.glob("*.pub"))
        return {path.name.removesuffix(".pub"): path for path in paths}

    def check(self, silo: SiloId, words: Words, asked: Asked) -> str:
        """The key that a greeting is signed with; UNSIGNED for one without, where nothing binds the name.

        Raises NameRefused for a signature that does not fit, and for a name that belongs to another key or to none.
        """
        expected = self.given_to(silo) or self.bound.get(silo)
        if self._files() and not expected:
            told = f"the server has no key for the name {silo!r}: it needs ./admit.sh {silo}.pub"
            raise NameRefused(f"silo {silo!r}: there is no {silo}.pub in {self.folder}", told)
        key = _signer(silo, words, asked)
        if expected and key != expected:
            greets = f"greets with key {key}" if key else "greets without a signature"
            raise NameRefused(
                f"silo {silo!r} {greets}, but its name is bound to key {expected}; if that one is "
                f"lost, put the new one into {silo}.pub in the project's folder silos",
                f"the server has another key for the name {silo!r} than {key or 'none'}: if that one is lost, it needs "
                f"./admit.sh {silo}.pub with the new one; else the name in silo.toml is not this silo's",
            )
        return key

    def replaced(self, silo: SiloId, key: str) -> bool:
        """Whether the operator has given a name a key that it did not greet with last."""
        return self.given_to(silo) == key != self.bound.get(silo)


def _signer(silo: SiloId, words: Words, asked: Asked) -> str:
    """The fingerprint of the key that has signed. Raises NameRefused for a signature that is not the key's."""
    if KEY not in words and SIGNATURE not in words:
        return UNSIGNED
    line, signature = str(words.get(KEY, "")), str(words.get(SIGNATURE, ""))
    try:
        if max(len(line), len(signature)) > LONGEST:
            raise ValueError(f"more than {LONGEST} characters")
        public = _public_key(line.encode())
        public.verify(bytes.fromhex(signature), asked.signed_text(words), ec.ECDSA(SHA384()))
    except (ValueError, UnsupportedAlgorithm, InvalidSignature) as error:
        why = str(error) or type(error).__name__
        told = f"the signature under the name {silo!r} does not fit"
        raise NameRefused(f"silo {silo!r}: its signature does not fit: {why}", told) from None
    return fingerprint(public)


def _public_key(line: bytes) -> ec.EllipticCurvePublicKey:
    """Raises ValueError or UnsupportedAlgorithm for a text that is no public key of an elliptic curve."""
    key = load_ssh_public_key(line)
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise ValueError("expected an ECDSA key, as key.sh makes it")
    return key


def fingerprint_in(path: Path) -> str:
    """Of the public key in a file. Raises ConfigurationError, naming the file, for one that holds none of `key.sh`."""
    try:
        return fingerprint(_public_key(path.read_bytes()))
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise ConfigurationError(f"{path}: cannot be read as a silo's public key: {error}") from None


def fingerprint(key: ec.EllipticCurvePublicKey) -> str:
    """As `ssh-keygen -lf` prints it."""
    blob = base64.b64decode(key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).split()[1])
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


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
