"""What `silo.sh` looks at before it starts anything: the silo's file, its key, the certificate, the server's address.

python -P -m caveat.federation.silo_start SILO.toml KEY SERVER:PORT     in the project's folder
"""

from __future__ import annotations

import ssl
import sys
from pathlib import Path

from ..core import CaveatError, ConfigurationError
from .name_keys import private_key_in
from .silo_file import read_silo_file

AUTHORITY = Path("certificates/ca.crt")


def check_start(file: Path, key: Path, server: str) -> list[str]:
    """What is worth a line before a silo starts. Raises ConfigurationError, naming the file, for what cannot work."""
    silo = read_silo_file(file).silo
    private_key_in(key)
    _check_authority(AUTHORITY)
    _check_address(server)
    if key.name == silo:
        return []
    return [
        f"{key}: the key is not called as the silo, {silo!r} in {file}: where the server has keys of silos, it looks "
        f"for this silo's under {silo}.pub, and would refuse the name"
    ]


def _check_authority(path: Path) -> None:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except FileNotFoundError:
        raise ConfigurationError(
            f"{path.absolute()}: no such file; expected the server's certificates/ca.crt, by which the silo knows it"
        ) from None
    except OSError as error:
        raise ConfigurationError(f"{path.absolute()}: cannot be read as a certificate: {error}") from None


def _check_address(server: str) -> None:
    host, colon, port = server.rpartition(":")
    numbered = port.isascii() and port.isdigit() and 0 < int(port) < 65536
    if not (colon and host and numbered) or "/" in host or (":" in host and not host.startswith("[")):
        raise ConfigurationError(f"{server!r} is no address of a server: expected HOST:PORT, as fed.example.org:8443")


def main() -> int:
    file, key, server = sys.argv[1:]
    try:
        for line in check_start(Path(file), Path(key), server):
            print(line, file=sys.stderr)
    except CaveatError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
