"""Report why a silo cannot reach the server, while Flower retries without a message.

It runs as a script next to each node, needs only Python's standard library, and exits when the server is reached or the
node has exited.

    python -IS connection_check.py NODE NAME HOST:PORT CERTIFICATE     NODE is the process ID of the node
"""

import os
import socket
import ssl
import sys
import time

PAUSE = 10.0
"""Seconds between two attempts."""
PATIENCE = 10.0
"""Seconds to wait for an answer of the server."""
OTHER_NAME = (62, 64)
"""OpenSSL's codes for a certificate with other names or addresses."""
PROXIES = ("https_proxy", "all_proxy")
"""Environment variables that make Flower connect differently from this check."""


def obstacle(server: str, authority: str) -> str:
    """Return why there is no connection to a server whose certificate an authority signed; "" if there is one."""
    host, _, port = server.rpartition(":")
    name = host.strip("[]")
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(authority)
        with socket.create_connection((name, int(port)), timeout=PATIENCE) as plain:
            context.wrap_socket(plain, server_hostname=name).close()
    except socket.gaierror as error:
        return f"cannot resolve {name!r} ({error.strerror}); check the spelling"
    except ConnectionRefusedError:
        return "connection refused: the server is not running, or uses another port"
    except TimeoutError:
        return f"no answer within {PATIENCE:.0f} s: the machine is off, or a firewall blocks the connection"
    except ssl.SSLCertVerificationError as error:
        if error.verify_code in OTHER_NAME:
            return f"its certificate does not name {name!r}; run ./certificates.sh {name} at the server"
        return f"{authority} did not sign its certificate, or the certificate has expired ({error.verify_message})"
    except ssl.SSLError as error:
        return f"not a TLS server such as Flower's ({error.reason})"
    except (OSError, ValueError) as error:
        return str(error)
    return ""


def is_there(process: int) -> bool:
    try:
        os.kill(process, 0)
    except OSError:
        return False
    return True


def main() -> None:
    node, name, server, authority = int(sys.argv[1]), *sys.argv[2:]
    if any(os.environ.get(variable) or os.environ.get(variable.upper()) for variable in PROXIES):
        return
    said = ""
    while why := obstacle(server, authority):
        if why != said:
            said = why
            told = f"{name}: cannot reach the server at {server}: {why}; retrying"
            print(told, file=sys.stderr, flush=True)
        end = time.monotonic() + PAUSE
        while time.monotonic() < end:
            if not is_there(node):
                return
            time.sleep(0.5)


if __name__ == "__main__":
    main()
