"""Says why a silo does not reach the server, while Flower tries again and again without a word of whom or why.

It is started as a file, with nothing but Python's own library, beside each node, and ends once the server is reached or
the node has ended.

    python -IS connection_check.py NODE NAME HOST:PORT CERTIFICATE     NODE is the number of the node's process
"""

import os
import socket
import ssl
import sys
import time

PAUSE = 10.0
"""Seconds between two tries."""
PATIENCE = 10.0
"""Seconds that a server has to answer one."""
OTHER_NAME = (62, 64)
"""What OpenSSL says of a certificate that is for other names, or other addresses."""
PROXIES = ("https_proxy", "all_proxy")
"""With these in the environment Flower goes another way than this does."""


def obstacle(server: str, authority: str) -> str:
    """In words, why there is no connection to a server that has a certificate of an authority's; empty if there is."""
    host, _, port = server.rpartition(":")
    name = host.strip("[]")
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(authority)
        with socket.create_connection((name, int(port)), timeout=PATIENCE) as plain:
            context.wrap_socket(plain, server_hostname=name).close()
    except socket.gaierror as error:
        return f"no address is known of {name!r} ({error.strerror}), or it is written wrongly"
    except ConnectionRefusedError:
        return "nothing listens there, as the server is not running, or is reached by another port"
    except TimeoutError:
        return f"no answer within {PATIENCE:.0f} s, as the machine is off, or a firewall is in between"
    except ssl.SSLCertVerificationError as error:
        if error.verify_code in OTHER_NAME:
            return f"its certificate is for other names than {name!r}: ./certificates.sh {name} at the server makes one"
        return f"{authority} is not the authority of its certificate, or that has expired ({error.verify_message})"
    except ssl.SSLError as error:
        return f"what answers there does not speak TLS as Flower's server does ({error.reason})"
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
            told = f"{name}: the server at {server} is not reached: {why}; it goes on trying"
            print(told, file=sys.stderr, flush=True)
        end = time.monotonic() + PAUSE
        while time.monotonic() < end:
            if not is_there(node):
                return
            time.sleep(0.5)


if __name__ == "__main__":
    main()
