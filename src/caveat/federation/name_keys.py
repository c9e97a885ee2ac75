"""The keys that silos' names are bound to: a greeting is signed, and nobody greets under a name with another's key.

A silo signs with the key by which Flower's server knows its node (`key.sh`). The server finds whose key that is in the
project's `silos/NAME.pub`, where its operator puts them. Where there are no such files, the first key that greets under
a name is bound to it for the run.
"""

import base64
import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_ssh_private_key,
    load_ssh_public_key,
)

from ..core import ConfigurationError, DataError, SiloId
from ..engines.flower_messages import Words

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
