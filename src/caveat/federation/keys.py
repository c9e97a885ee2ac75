"""The keys of silos: signed greetings, the binding of names to keys, and registration by `admit.sh`.

A silo signs its greeting with the key by which Flower's server knows its node (`key.sh`). The server looks up the key's
owner in the project's `silos/NAME.pub`, which `admit.sh` writes. Without such files, a name is bound to the first key
that signs a greeting with it, for the whole run.

Flower identifies nodes by number and does not record their keys. So `silos/NAME.node` has one line for each key that
was registered under a name, the newest last: the node's number and the key's fingerprint.

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
from ..files import write_bytes

SILO_KEYS = "silos"
"""The folder of a project with the silos' public keys, NAME.pub."""
PURPOSE = "caveat greeting 1"
"""The beginning of a signed text, so signatures made for other purposes are not valid here."""
KEY, SIGNATURE = "key", "signature"
"""The keys of a greeting that its signature does not cover."""
LONGEST = 1000
"""Maximum length of a key or a signature; the largest curve needs fewer than 300 characters."""
UNSIGNED = ""
"""The fingerprint if a greeting has no key."""


class NameRefused(DataError):
    """A greeting with a name that is not the sender's. `told`, the text for the sender, reveals nothing about other
    silos."""

    def __init__(self, text: str, told: str) -> None:
        super().__init__(text)
        self.told = told


@dataclass(frozen=True)
class Asked:
    """The question that a greeting answers. A signature covers the whole question, so no signature can be reused."""

    federation: str
    question: str
    nonce: str
    """Drawn by the server for this question."""
    node: int

    def signed_text(self, words: Words) -> bytes:
        """Return the text to sign for an answer with this content."""
        said = {word: value for word, value in sorted(words.items()) if word not in (KEY, SIGNATURE)}
        return json.dumps([PURPOSE, self.federation, self.question, self.nonce, self.node, said]).encode()


def signed(words: Words, asked: Asked, key: Path) -> Words:
    """Return an answer with its signature. Raises ConfigurationError for a file without a private key from `key.sh`."""
    public, signature = key_and_signature(key, asked.signed_text(words))
    return {**words, KEY: public, SIGNATURE: signature}


def key_and_signature(path: Path, text: bytes) -> tuple[str, str]:
    """Return the public key of a private key's file, and the private key's signature of a text, both hexadecimal.
    Raises ConfigurationError, naming the file, if the file is invalid."""
    private = private_key_in(path)
    public = private.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return public.decode(), private.sign(text, ec.ECDSA(SHA384())).hex()


def signer(key: str, signature: str, text: bytes) -> str:
    """Return the fingerprint of the public key that signed a text. Raises DataError for an invalid signature."""
    try:
        if max(len(key), len(signature)) > LONGEST:
            raise ValueError(f"more than {LONGEST} characters")
        public = public_key(key.encode())
        public.verify(bytes.fromhex(signature), text, ec.ECDSA(SHA384()))
    except (ValueError, UnsupportedAlgorithm, InvalidSignature) as error:
        raise DataError(str(error) or type(error).__name__) from None
    return fingerprint(public)


def private_key_in(path: Path) -> ec.EllipticCurvePrivateKey:
    """Read a private key from `key.sh`. Raises ConfigurationError, naming the file, for any other file."""
    try:
        private = load_ssh_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigurationError(f"{path}: cannot be read as a private key ({error})") from None
    if not isinstance(private, ec.EllipticCurvePrivateKey):
        raise ConfigurationError(f"{path}: expected an ECDSA key without a passphrase, made by key.sh")
    return private


@dataclass
class NameKeys:
    """The keys to which silo names are bound, by fingerprints as `ssh-keygen -lf NAME.pub` prints them."""

    folder: Path | None = None
    """The folder with NAME.pub for each silo, which is read for each greeting, so the operator can replace a key."""
    bound: dict[SiloId, str] = field(default_factory=dict)
    """The key of each silo's last greeting."""

    def given(self) -> dict[SiloId, str]:
        """Return the keys in the operator's folder. Raises ConfigurationError, naming the file, for an invalid key."""
        return {silo: fingerprint_in(path) for silo, path in self._files().items()}

    def given_to(self, silo: SiloId) -> str | None:
        """Return the operator's key for a name, regardless of other files; None without a file."""
        path = self._files().get(silo)
        return None if path is None else fingerprint_in(path)

    def _files(self) -> dict[SiloId, Path]:
        paths = [] if self.folder is None else sorted(self.folder.glob("*.pub"))
        return {path.name.removesuffix(".pub"): path for path in paths}

    def check(self, silo: SiloId, words: Words, asked: Asked) -> str:
        """Return the key with which a greeting is signed; UNSIGNED if there is none and the name is not bound. Raises
        NameRefused for an invalid signature, and for a name that is bound to another key or unknown."""
        expected = self.given_to(silo) or self.bound.get(silo)
        if self._files() and not expected:
            told = f"the server has no key for the name {silo!r}: register it with ./admit.sh {silo}.pub"
            raise NameRefused(f"silo {silo!r}: there is no {silo}.pub in {self.folder}", told)
        key = _signer(silo, words, asked)
        if expected and key != expected:
            greets = f"sent a greeting with key {key}" if key else "sent a greeting without a signature"
            raise NameRefused(
                f"silo {silo!r} {greets}, but its name is bound to key {expected}; if this key is "
                f"lost, put the new key into {silo}.pub in the project's folder silos",
                f"at the server, the name {silo!r} is not bound to key {key or 'none'}: if the other key is lost, "
                f"register the new key with ./admit.sh {silo}.pub; otherwise silo.toml has another silo's name",
            )
        return key

    def replaced(self, silo: SiloId, key: str) -> bool:
        """Return whether the operator has replaced the key of a name's last greeting."""
        return self.given_to(silo) == key != self.bound.get(silo)


def _signer(silo: SiloId, words: Words, asked: Asked) -> str:
    """Return the fingerprint of the key that signed. Raises NameRefused for an invalid signature."""
    if KEY not in words and SIGNATURE not in words:
        return UNSIGNED
    try:
        return signer(str(words.get(KEY, "")), str(words.get(SIGNATURE, "")), asked.signed_text(words))
    except DataError as error:
        told = f"the signature under the name {silo!r} is invalid"
        raise NameRefused(f"silo {silo!r}: its signature is invalid ({error})", told) from None


def public_key(line: bytes) -> ec.EllipticCurvePublicKey:
    """Read an elliptic-curve public key. Raises ValueError or UnsupportedAlgorithm for any other text."""
    key = load_ssh_public_key(line)
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise ValueError("expected an ECDSA key, made by key.sh")
    return key


def fingerprint_in(path: Path) -> str:
    """Return the fingerprint of a public key's file. Raises ConfigurationError, naming the file, if it is invalid."""
    try:
        return fingerprint(public_key(path.read_bytes()))
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise ConfigurationError(f"{path}: cannot be read as a silo's public key ({error})") from None


def fingerprint(key: ec.EllipticCurvePublicKey) -> str:
    """Return a key's fingerprint as `ssh-keygen -lf` prints it."""
    blob = base64.b64decode(key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).split()[1])
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


LINK = "deploy"
"""The server's name in Flower's configuration, written by `server.sh`."""
FILE = ".node"
"""Suffix of the file with a silo's nodes."""
GONE = "unregistered"
"""Flower's status of an excluded node, whose key it never accepts again."""


class Admitted(NamedTuple):
    """A key that was registered under a name."""

    silo: SiloId
    node: str
    key: str
    """The key's fingerprint."""


def admit(path: Path, folder: Path) -> str:
    """Register a silo's key at the server, and bind the file's name to it; return a report.

    A key may already be registered. Raises ConfigurationError for a file that is not a silo's public key,
    RunError if the server rejects it; then nothing is written to `folder`.
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
    told = f"{silo} is registered: its node is {node}"
    if former is not None and _statuses().get(former, GONE) != GONE:
        told += "\nthe node of its former key is still registered; to exclude this node, run: "
        told += f". ./environment.sh; flwr supernode unregister {former} {LINK}"
    return told


def admitted(folder: Path) -> Iterator[Admitted]:
    """Yield the recorded registered keys, the newest of each name last. Raises ConfigurationError, naming the file, for
    invalid content."""
    for path in sorted(folder.glob(f"*{FILE}")):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            node, _, key = line.partition(" ")
            if not (node.isascii() and node.isdigit() and key):
                told = "expected a node's number and the fingerprint of its key"
                raise ConfigurationError(f"{path}: invalid line {line[:80]!r}, {told}")
            yield Admitted(path.name.removesuffix(FILE), node, key)


def _known_already(answer: dict[str, Any], path: Path, folder: Path, asked: Admitted, before: list[Admitted]) -> str:
    """Return the report for a key that the server rejected because it is already registered."""
    why = str(answer.get("error-message", ""))
    if "already in use" not in why:
        raise RunError(_told(why))
    silo, statuses = asked.silo, _statuses()
    another = (
        f"its key cannot be used again: at the silo, remove keys/{silo} and keys/{silo}.pub, make another key with "
        f"./key.sh {silo}, and register the new {silo}.pub with ./admit.sh"
    )
    if (last := next((each for each in reversed(before) if each.key == asked.key), None)) is not None:
        if statuses.get(last.node, GONE) == GONE:
            raise RunError(f"{silo} is not registered: node {last.node}, which had this key, was excluded; {another}")
        if last.silo != silo:
            raise RunError(
                f"{silo} is not registered: {last.silo} has this key (node {last.node}), but each silo needs its own "
                f"key; make one with ./key.sh {silo} at the silo"
            )
        _bind(path, folder, last, before)
        return f"{silo} is already registered: its node is {last.node}"
    if GONE in statuses.values():
        raise RunError(
            f"{silo} is not registered: the server already knows this key, but its node is not recorded here. If the "
            f"node was excluded, {another}; otherwise the silo can connect"
        )
    _bind(path, folder, asked, before)
    return f"{silo} is already registered; its node's number is not recorded here, but in the log of a run"


def _bind(path: Path, folder: Path, new: Admitted, before: list[Admitted]) -> None:
    """Record the key and the node for a silo's name."""
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
    """Return Flower's status of each node, by number. Raises RunError without an answer."""
    answer = _flwr("ls")
    if "nodes" not in answer:
        raise RunError(_told(str(answer.get("error-message", ""))))
    return {str(node["node-id"]): str(node["status"]) for node in answer["nodes"]}


def _flwr(*words: str) -> dict[str, Any]:
    """Return Flower's answer to a command about nodes; unparsed output is under "error-message"."""
    command = ["flwr", "supernode", *words, LINK, "--format", "json"]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    except OSError:
        why = "flwr is not on the path: activate the environment with caveat[flower]"
        raise ConfigurationError(why) from None
    text = done.stdout[done.stdout.find("{") :]
    try:
        answer = json.loads(text)
    except ValueError:
        answer = {"error-message": done.stderr or done.stdout}
    return answer if isinstance(answer, dict) else {}


def _told(why: str) -> str:
    """Return a sentence on why Flower did not run a command."""
    if "not found in the" in why and LINK in why:
        return "this project's server has not been started yet: start ./server.sh on this machine first"
    if "is unavailable" in why:
        return "the server does not answer: start ./server.sh on this machine"
    lines = [line.strip() for line in why.splitlines() if line.strip()]
    return f"unexpected answer of the server: {lines[-1] if lines else 'nothing'}"


def main() -> int:
    try:
        print(admit(Path(sys.argv[1]), Path(SILO_KEYS)))
    except CaveatError as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, ConfigurationError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
