"""What `silo.sh` looks at before it starts: a silo's file, its key, and a certificate of the server's authority."""

from __future__ import annotations

import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import NameOID

SILO = """
silo = "{name}"
state = "state"
[data]
source = "csv:table.csv"
target = "outcome"
"""


def key_of(folder: Path, name: str) -> Path:
    """A private key as `key.sh` makes it, and NAME.pub beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP384R1())
    (folder / name).write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    (folder / f"{name}.pub").write_bytes(public + b" " + name.encode() + b"\n")
    return folder / name


def authority() -> tuple[bytes, bytes]:
    """A certificate that signs itself and names nobody, and its key."""
    key, name = ec.generate_private_key(ec.SECP384R1()), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    now = datetime.datetime.now(datetime.UTC)
    made = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now,
                                   now + datetime.timedelta(days=1))  # fmt: skip
    made = made.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return made.sign(key, SHA384()).public_bytes(Encoding.PEM), private


def startable(project: Path, name: str = "va", file: str = "silo.toml") -> Path:
    """Have a silo's copy of the project hold all that it takes to start `silo.sh FILE keys/NAME`; return the key."""
    (project / file).write_text(SILO.format(name=name))
    (project / "certificates").mkdir(exist_ok=True)
    (project / "certificates" / "ca.crt").write_bytes(authority()[0])
    return key_of(project / "keys", name)
