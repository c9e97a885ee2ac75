"""What a silo's operator hears before anything starts, and of a server that is not reached."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from silo_files import authority, key_of, startable

from caveat.core import ConfigurationError
from caveat.federation.project import write_project
from caveat.federation.silo import connection_check
from caveat.federation.silo.start_checks import check_start

SERVER = "fed.example.org:8443"


@pytest.fixture
def silo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    startable(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def start(file: str = "silo.toml", key: str = "keys/va", server: str = SERVER) -> list[str]:
    return check_start(Path(file), Path(key), server)


def test_nothing_is_said_of_what_can_start(silo: Path) -> None:
    assert start() == []
    assert start(server="[2001:db8::7]:8443") == []


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"file": "none.toml"}, "none.toml: cannot be read"),
        ({"file": "keys/va.pub"}, "keys/va.pub"),
        ({"key": "keys/none"}, "keys/none: cannot be read as a private key"),
        ({"key": "keys/va.pub"}, "keys/va.pub: cannot be read as a private key"),
        ({"server": "fed.example.org"}, "'fed.example.org' is not an address: expected HOST:PORT"),
        ({"server": "https://fed.example.org:8443"}, "is not an address"),
        ({"server": "fed.example.org:84430"}, "is not an address"),
        ({"server": "2001:db8::7:8443"}, "is not an address"),
    ],
)
def test_what_cannot_start_is_named(silo: Path, given: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        start(**given)
    assert told in str(error.value)


def test_a_file_with_a_wrong_key_and_a_certificate_that_is_none_are_named(silo: Path) -> None:
    """A node with such a file went online, and every message to it failed."""
    text = (silo / "silo.toml").read_text()
    (silo / "silo.toml").write_text(text.replace("state =", "states ="))
    with pytest.raises(ConfigurationError, match=r"silo.toml: unknown key states"):
        start()
    (silo / "silo.toml").write_text(text)
    (silo / "certificates" / "ca.crt").write_text("nothing")
    with pytest.raises(ConfigurationError, match=r"certificates/ca.crt: cannot be read as a certificate"):
        start()
    (silo / "certificates" / "ca.crt").unlink()
    with pytest.raises(ConfigurationError, match=r"certificates/ca.crt: no such file; expected the server's"):
        start()


def test_a_key_that_is_not_called_as_the_silo_is_said_and_starts(silo: Path) -> None:
    """Where the server has keys, it would refuse the name; where it has none, it would not."""
    key_of(silo / "keys", "vanna")
    (said,) = start(key="keys/vanna")
    assert said.startswith("keys/vanna: the key's name differs from the silo's, 'va' in silo.toml")
    assert "key in va.pub" in said


def test_the_script_ends_with_one_sentence_and_starts_nothing(tmp_path: Path) -> None:
    write_project(tmp_path, 'rounds = 2\n\n[engine]\nname = "flower"\n', None)
    startable(tmp_path)
    (tmp_path / "silo.toml").write_text('silo = "va"\n')
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    for words, told in (
        (("none.toml", "keys/va"), "none.toml: no such file; expected the silo's own copy of silo.toml"),
        (("silo.toml", "keys/none"), "keys/none: no such file; expected the silo's private key"),
        (("silo.toml", "keys/va"), f"{tmp_path / 'silo.toml'}: state is missing"),
    ):
        command = [tmp_path / "silo.sh", *words, SERVER]
        done = subprocess.run(command, env=os.environ | {"PATH": path}, cwd=tmp_path, capture_output=True, text=True,
                              timeout=120)  # fmt: skip
        assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
        assert done.stderr.startswith(told)
    assert not (tmp_path / ".flower").exists()


# A server that is not reached


def test_why_a_server_is_not_reached_is_a_sentence(silo: Path) -> None:
    authority = "certificates/ca.crt"
    assert "cannot resolve 'nowhere.invalid'" in connection_check.obstacle("nowhere.invalid:8443", authority)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"

        def answer() -> None:
            connection = server.accept()[0]
            with connection:
                connection.recv(1000)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        assert "not a TLS server" in connection_check.obstacle(address, authority)
        thread.join()
    assert "connection refused" in connection_check.obstacle(address, authority)


def test_what_is_wrong_with_a_server_s_certificate_is_told_apart(tmp_path: Path) -> None:
    """One that names another host, as where a silo has another name of the server; and another authority's."""
    (tmp_path / "own.pem").write_bytes(b"".join(authority()))
    (tmp_path / "other.crt").write_bytes(authority()[0])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "own.pem")
    with socket.create_server(("127.0.0.1", 0)) as server:
        for file, told in (("own.pem", "does not name '127.0.0.1'"), ("other.crt", "did not sign")):

            def answer() -> None:
                with server.accept()[0] as connection, contextlib.suppress(OSError):
                    context.wrap_socket(connection, server_side=True)

            thread = threading.Thread(target=answer)
            thread.start()
            assert told in connection_check.obstacle(f"127.0.0.1:{server.getsockname()[1]}", str(tmp_path / file))
            thread.join()


def test_it_is_said_once_with_whom_and_why_until_the_node_has_ended(
    silo: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(connection_check, "PAUSE", 0.01)
    monkeypatch.setattr(connection_check.time, "sleep", lambda seconds: None)
    reasons = iter(["a", "a", "b", ""])
    monkeypatch.setattr(connection_check, "obstacle", lambda *_: next(reasons))
    for name in connection_check.PROXIES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setattr(sys, "argv", ["connection_check.py", str(os.getpid()), "va", SERVER, "certificates/ca.crt"])
    connection_check.main()
    told = "va: cannot reach the server at fed.example.org:8443: {}; retrying"
    assert capsys.readouterr().err.splitlines() == [told.format("a"), told.format("b")]
    reasons = iter(["a"])
    monkeypatch.setattr(connection_check, "is_there", lambda process: False)
    connection_check.main()
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    connection_check.main()
