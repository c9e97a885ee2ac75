"""The project of a federation: what Flower hands out, what stays, and scripts that end as what they start does."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import shutil
import signal
import socket
import ssl
import stat
import subprocess
import sys
import threading
import time
import tomllib
import zipfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
from silo_files import startable

from caveat.core import ConfigurationError
from caveat.federation.project import write_project

CONFIG = 'rounds = 2\n\n[engine]\nname = "flower"\n'
FLOWER = Path(sys.executable).parent


@pytest.fixture
def project(tmp_path: Path) -> Path:
    write_project(tmp_path / "project", CONFIG, 3)
    return tmp_path / "project"


class Commands:
    """Stands in for commands on the path: shell scripts, and a file that they may write to."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.said = folder / "bin", folder / "said"
        self.folder.mkdir()
        self.said.touch()
        self.environment = os.environ | {
            # An environment's commands are on the path, as docs/how-to/federation.md asks for.
            "PATH": f"{self.folder}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "SAID": str(self.said), "TMPDIR": str(folder / "tmp"),
            "HTTPS_PROXY": "http://127.0.0.1:9",  # by which silo.sh looks for no server
        }  # fmt: skip
        (folder / "tmp").mkdir()

    def put(self, name: str, script: str) -> None:
        (self.folder / name).write_text(f"#!/usr/bin/env bash\n{script}\n")
        (self.folder / name).chmod(0o755)

    def run(self, *command: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, env=self.environment, cwd=cwd, capture_output=True, text=True, timeout=60)


@pytest.fixture
def commands(tmp_path: Path) -> Commands:
    return Commands(tmp_path)


def test_files_are_those_returned_and_scripts_can_be_started(tmp_path: Path) -> None:
    files = write_project(tmp_path / "a" / "b", CONFIG, None)
    assert sorted(files) == sorted(path for path in (tmp_path / "a" / "b").rglob("*") if path.is_file())
    assert (tmp_path / "a" / "b" / "config.toml").read_text() == CONFIG
    for path in files:
        assert os.access(path, os.X_OK) == path.read_text().startswith("#!"), path.name
        if path.suffix == ".sh":
            assert subprocess.run(["bash", "-n", path]).returncode == 0, path.name


def test_what_is_there_is_not_overwritten(project: Path, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in project.rglob("*") if path.is_file()}
    with pytest.raises(ConfigurationError, match=r"project exists and is not empty"):
        write_project(project, "rounds = 9\n", 3)
    assert before == {path: path.read_bytes() for path in project.rglob("*") if path.is_file()}
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="file exists"):
        write_project(tmp_path / "file", CONFIG, 3)
    with pytest.raises(ConfigurationError, match="cannot write"):
        write_project(tmp_path / "file" / "below", CONFIG, 3)
    (tmp_path / "empty").mkdir()
    assert write_project(tmp_path / "empty", CONFIG, 3)


def test_the_apps_are_where_flower_looks_for_them(project: Path) -> None:
    app = tomllib.loads((project / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    assert app["config"] == {"run": "runs/federation", "set": "", "deliver": "", "rounds": ""}
    for component in app["components"].values():
        module, _, name = component.partition(":")
        tree = ast.parse((project / f"{module.replace('.', '/')}.py").read_text())
        assert name in {n.id for node in tree.body if isinstance(node, ast.Assign)
                        for n in node.targets if isinstance(n, ast.Name)}  # fmt: skip


def test_the_app_of_a_project_starts_from_where_flower_runs_it(project: Path, tmp_path: Path) -> None:
    """Elsewhere than in the library, which its imports must not lean on; paths of it stand in every deployed app."""
    code = (
        "from federation import client_app, server_app as s; print(type(s.app).__name__, type(client_app.app).__name__)"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(project), *sys.path]), "FLWR_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], cwd=project, env=environment, text=True, capture_output=True)
    assert done.stdout == "ServerApp ClientApp\n", done.stderr


def test_flower_hands_out_the_app_and_its_configuration_and_nothing_else(project: Path, commands: Commands) -> None:
    deep = "runs/" + "/".join("abcdefghijk") + "/deep.json"
    for private in ("table.csv", "cleveland.toml", "keys/key.toml", "state/x.json", "certificates/notes.md", deep):
        (project / private).parent.mkdir(parents=True, exist_ok=True)
        (project / private).write_text("{}")
    built = commands.run("bash", "-c", '. ./environment.sh && "$0" build', FLOWER / "flwr", cwd=project)
    assert built.returncode == 0, built.stdout + built.stderr
    assert "recommended" not in built.stdout
    with zipfile.ZipFile(next(project.glob("*.fab"))) as bundle:
        names = {name for name in bundle.namelist() if not name.startswith(".info/")}
        assert names == {
            "pyproject.toml", "LICENSE", "config.toml", "federation/__init__.py", "federation/server_app.py",
            "federation/client_app.py",
        }  # fmt: skip
        assert bundle.read("config.toml").decode() == CONFIG


def test_the_app_is_of_flower_s_newest_format_and_says_with_which_flower_it_was_made(project: Path) -> None:
    about = tomllib.loads((project / "pyproject.toml").read_text())
    app = about["tool"]["flwr"]["app"]
    assert (app["fab-format-version"], app["flwr-version-target"]) == (1, version("flwr"))
    assert about["project"]["license"] == {"file": "LICENSE"}
    least = next(each for each in about["project"]["dependencies"] if each.startswith("flwr>="))
    extra = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert least in [each.split(",")[0] for each in extra["project"]["optional-dependencies"]["flower"]]


def test_nothing_calls_home(project: Path, commands: Commands) -> None:
    script = ". ./environment.sh; python3 -c 'import json, os; print(json.dumps(dict(os.environ)))'"
    there = json.loads(commands.run("bash", "-c", script, cwd=project).stdout)
    assert there["FLWR_TELEMETRY_ENABLED"] == there["RAY_USAGE_STATS_ENABLED"] == "0"
    assert there["FLWR_DISABLE_UPDATE_CHECK"] == there["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"
    assert there["FLWR_HOME"] == str(project / ".flower")
    assert there["OMP_NUM_THREADS"] == "1"


# Certificates and keys


@pytest.fixture
def certified(project: Path, commands: Commands) -> Path:
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl")
    made = commands.run(project / "certificates.sh", "fed.example.org", "192.0.2.7", "2001:db8::7")
    assert made.returncode == 0, made.stderr
    return project / "certificates"


@pytest.fixture
def listening(certified: Path) -> Iterator[int]:
    """The port of a server with the certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certified / "server.pem", certified / "server.key")
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection = server.accept()[0]
                except OSError:
                    return
                with connection:
                    try:
                        context.wrap_socket(connection, server_side=True).close()
                    except (ssl.SSLError, OSError):
                        continue

        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
    thread.join(5)


def greet(port: int, name: str, authority: Path) -> None:
    context = ssl.create_default_context(cafile=str(authority))
    with socket.create_connection(("127.0.0.1", port), timeout=5) as plain:
        context.wrap_socket(plain, server_hostname=name).close()


def test_the_server_is_who_its_certificate_names(listening: int, certified: Path) -> None:
    for name in ("fed.example.org", "192.0.2.7", "2001:db8::7", "localhost", "127.0.0.1"):
        greet(listening, name, certified / "ca.crt")
    with pytest.raises(ssl.SSLCertVerificationError, match=r"other\.example\.org"):
        greet(listening, "other.example.org", certified / "ca.crt")


def test_a_renewed_certificate_needs_no_new_authority(certified: Path, commands: Commands) -> None:
    before = {path.name: path.read_bytes() for path in certified.iterdir()}
    assert commands.run(certified.parent / "certificates.sh", "new.example.org").returncode == 0
    after = {path.name: path.read_bytes() for path in certified.iterdir()}
    assert {name for name in before if before[name] != after[name]} >= {"server.key", "server.pem"}
    assert [before[name] == after[name] for name in ("ca.key", "ca.crt")] == [True, True]


def test_private_keys_are_their_owners_alone(certified: Path, commands: Commands) -> None:
    project = certified.parent
    if shutil.which("ssh-keygen") is None:
        pytest.skip("needs ssh-keygen")
    (project / "keys").mkdir(mode=0o755)
    assert commands.run(project / "key.sh", "cleveland").returncode == 0
    for path in (certified / "ca.key", certified / "server.key", project / "keys" / "cleveland"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path.name
    assert stat.S_IMODE((project / "keys").stat().st_mode) == 0o700
    assert (project / "keys" / "cleveland.pub").read_text().startswith("ecdsa-sha2-nistp384 ")
    before = (project / "keys" / "cleveland").read_bytes()
    again = commands.run(project / "key.sh", "cleveland")
    assert (again.returncode, again.stderr) == (2, "keys/cleveland exists\n")
    assert (project / "keys" / "cleveland").read_bytes() == before


# Scripts around Flower's commands


def test_the_server_asks_for_keys_over_tls_and_installs_nothing(project: Path, commands: Commands) -> None:
    commands.put("flower-superlink", 'echo "$@" >"$SAID"; touch "${@: -1}"')
    start = "umask 022; exec ./server.sh 0.0.0.0 8123"
    assert commands.run("bash", "-c", start, cwd=project).returncode == 0
    said = commands.said.read_text().split()
    assert {
        "--enable-supernode-auth",
        "--disable-runtime-dependency-installation",
        "--ssl-certfile",
        "--database",
    } <= set(said)
    assert "--insecure" not in said
    assert said[:4] == ["--host", "0.0.0.0", "--port", "8123"]
    link = tomllib.loads((project / ".flower" / "config.toml").read_text())["superlink"]
    assert link["deploy"] == {"address": "127.0.0.1:8123", "root-certificates": str(project / "certificates/ca.crt")}
    assert said[-1] == str(project / ".flower" / "server" / "state.db")
    assert stat.S_IMODE(Path(said[-1]).stat().st_mode) == 0o600
    assert [stat.S_IMODE((project / ".flower" / name).stat().st_mode) & 0o077 for name in ("server", ".")] == [0, 0o055]
    commands.run(project / "server.sh")
    assert commands.said.read_text().split()[1] == "127.0.0.1", "other machines only reach it if told so"


def test_a_silo_tries_again_until_it_is_stopped(project: Path, commands: Commands) -> None:
    commands.put(
        "flower-supernode", 'echo "$@" >>"$SAID"; [[ $(wc -l <"$SAID") -lt 3 ]] || exec tail -f /dev/null; exit 1'
    )
    commands.put("sleep", "exit 0")
    key = startable(project, "va", "a silo.toml")
    silo = subprocess.Popen(
        [project / "silo.sh", project / "a silo.toml", "keys/va", "fed.example.org:8443"],
        env=commands.environment, cwd=project, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        until = time.monotonic() + 90
        while len(commands.said.read_text().splitlines()) < 3:
            assert time.monotonic() < until, "not started three times"
            time.sleep(0.05)
        silo.send_signal(signal.SIGTERM)
        assert silo.wait(10) == 0
        with pytest.raises(ProcessLookupError):
            os.killpg(silo.pid, 0)
    finally:
        if silo.poll() is None:
            os.killpg(silo.pid, signal.SIGKILL)
        assert silo.stderr is not None
        said = silo.stderr.read()
        silo.stderr.close()
        silo.wait()
    assert said.count("va: exited with status 1; restarting in 10 s") == 2
    first = commands.said.read_text().splitlines()[0]
    assert f'--node-config silo="{project}/a silo.toml" key="{key}"' in first
    assert "--superlink fed.example.org:8443 --root-certificates certificates/ca.crt" in first
    assert f"--auth-supernode-private-key {key}" in first


FLWR = """
case $1 in
    run) [[ -z ${REFUSED:-} ]] || { echo '{"success": false}'; exit 1; }
         echo "$@" >>"$SAID"; cat "$5" >>"$SAID"
         echo 'Started'; echo '{"success": true, "run-id": "7"}' ;;
    ls) [[ $STATUS != gone ]] || exit 1; echo "{\\"runs\\": [{\\"status\\": \\"$STATUS\\"}]}" ;;
    log) echo "the log of $2" ;;
esac
"""


@pytest.mark.parametrize(("status", "expected"), [("finished:completed", 0), ("finished:failed", 1), ("gone", 1)])
def test_a_run_ends_as_the_federation_does(project: Path, commands: Commands, status: str, expected: int) -> None:
    commands.put("flwr", FLWR.replace("$STATUS", status))
    done = commands.run(project / "run.sh", 'runs/"a"', "rounds=3", 'method.name="uefl"')
    assert done.returncode == expected
    assert ("the log of 7" in done.stderr) == (status == "finished:failed")
    assert ("no longer answers" in done.stderr) == (status == "gone")
    command, *settings = commands.said.read_text().splitlines()
    assert command.startswith("run . deploy --run-config ")
    assert tomllib.loads("\n".join(settings)) == {"run": 'runs/"a"', "set": 'rounds=3;method.name="uefl"'}
    assert not list((commands.folder.parent / "tmp").iterdir())


GONE = """
echo '{"success": false, "error-message": "Using x\\n\\nConnection to the SuperLink is unavailable. Check"}'
"""


def test_a_server_that_is_not_there_is_a_sentence(project: Path, commands: Commands) -> None:
    """Flower's command ends well then, and says so in its answer."""
    commands.put("flwr", GONE)
    done = commands.run(project / "run.sh", "runs/a")
    told = "the server does not answer: start ./server.sh on this machine\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", told)
    commands.put("flwr", FLWR.replace("ls)", f"ls) {GONE} ;; other)"))
    done = commands.run(project / "run.sh", "runs/a")
    told = "run 7: the server no longer answers; start ./server.sh, then repeat the command to continue the run\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", told)
    missing = GONE.replace("Connection to the SuperLink is unavailable. Check", "connection 'deploy' not found in x")
    commands.put("flwr", f'cat <<"END"\n{missing.strip().removeprefix("echo ").strip(chr(39))}\nEND')
    done = commands.run(project / "run.sh", "runs/a")
    told = "this project's server has not been started yet: start ./server.sh on this machine first\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", told)
    refusal = '{"success": false, "error-message": "Using\\n\\nThe app is too large."}'
    commands.put("flwr", f"echo '{refusal}'")
    assert commands.run(project / "run.sh", "runs/a").stderr == "The app is too large.\n"


def test_a_run_shows_what_the_server_says_of_it_from_now_on(project: Path, commands: Commands) -> None:
    (project / "runs").mkdir()
    (project / "runs" / ".a.log").write_text("of another time\n")
    commands.put(
        "flwr",
        FLWR.replace("run)", "run) echo 'step 1: a asked' >>runs/.a.log ;").replace("$STATUS", "finished:completed"),
    )
    said = commands.run(project / "run.sh", "runs/a").stdout
    assert "step 1: a asked\n" in said
    assert "of another time" not in said


def test_why_a_run_failed_is_said_once(project: Path, commands: Commands) -> None:
    """By its own log, which is shown as it is written; Flower's has all of it again, and a traceback."""
    (project / "runs").mkdir()
    failing = "run) echo '2026-01-01 00:00:00 the run has failed: 3 silos are needed' >>runs/.a.log ;"
    commands.put("flwr", FLWR.replace("run)", failing).replace("$STATUS", "finished:failed"))
    done = commands.run(project / "run.sh", "runs/a")
    assert done.returncode == 1
    assert (done.stdout + done.stderr).count("3 silos are needed") == 1
    assert "the log of 7" not in done.stderr
    assert "flwr log 7 deploy --show" in done.stderr
    # what failed at an earlier start is no reason
    commands.put("flwr", FLWR.replace("$STATUS", "finished:failed"))
    assert "the log of 7" in commands.run(project / "run.sh", "runs/a").stderr
    commands.put("flwr", FLWR.replace("$STATUS", "finished:stopped"))
    done = commands.run(project / "run.sh", "runs/a")
    assert (done.returncode, done.stderr) == (1, "run 7 was stopped; repeat the command to continue it\n")


PYTHON = """
case $* in
    *caveat.federation.silo.fork_server*) exec tail -f --pid="${@: -1}" /dev/null ;;
    *) exec REAL "$@" ;;
esac
"""
"""Stands in for a resident process, which ends with the process whose number it is given."""


def in_session(leader: int) -> list[str]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, _, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(session) == leader and state != "Z":
                found.append((entry / "cmdline").read_text().replace("\0", " "))
    return found


@pytest.mark.long
def test_what_a_node_started_ends_with_it_though_nobody_is_left_to_end_it(project: Path, commands: Commands) -> None:
    commands.put("flower-supernode", 'echo $$ >>"$SAID"; exec tail -f /dev/null')
    commands.put("python3", PYTHON.replace("REAL", sys.executable))
    startable(project)
    silo = subprocess.Popen(
        [project / "silo.sh", "silo.toml", "keys/va", "fed.example.org:8443"],
        env=commands.environment, cwd=project, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    try:
        until = time.monotonic() + 90
        while not any("--pid=" in command for command in in_session(silo.pid)) or not commands.said.read_text():
            assert time.monotonic() < until, "no resident process"
            time.sleep(0.05)
        (node,) = commands.said.read_text().split()
        assert [command for command in in_session(silo.pid) if f"--pid={node} " in command]
        silo.kill()
        silo.wait()
        os.kill(int(node), signal.SIGKILL)
        while found := in_session(silo.pid):
            assert time.monotonic() < until, found
            time.sleep(0.05)
    finally:
        silo.kill()
        silo.wait()


def test_a_silo_without_flower_s_commands_says_so(project: Path, commands: Commands) -> None:
    startable(project)
    commands.environment["PATH"] = "/usr/bin:/bin"
    done = commands.run(project / "silo.sh", "silo.toml", "keys/va", "fed.example.org:8443", cwd=project)
    assert done.returncode == 1
    assert done.stderr.startswith("flwr-clientapp is not on the path: ")


REFUSED = """
echo "$@" >>"$SAID"
case $(wc -l <"$SAID") in
    1 | 3) echo "[code: 2004] Failed to activate SuperNode."; exit 1 ;;
    2) echo "INFO: SuperNode ID: 7"; exit 1 ;;
    4) exit 1 ;;
    *) exec tail -f /dev/null ;;
esac
"""


def test_a_silo_says_whether_its_key_is_not_known_or_has_to_wait(project: Path, commands: Commands) -> None:
    """Flower says the same of both: what differs is whether the key was ever let in."""
    commands.put("flower-supernode", REFUSED)
    commands.put("sleep", "exec python3 -S -c 'import time; time.sleep(0.1)'")
    startable(project)
    silo = subprocess.Popen(
        [project / "silo.sh", "silo.toml", "keys/va", "fed.example.org:8443"],
        env=commands.environment, cwd=project, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        until = time.monotonic() + 90
        while len(commands.said.read_text().splitlines()) < 5:
            assert time.monotonic() < until, "not started five times"
            time.sleep(0.05)
        silo.send_signal(signal.SIGTERM)
        assert silo.wait(10) == 0
    finally:
        if silo.poll() is None:
            os.killpg(silo.pid, signal.SIGKILL)
        assert silo.stderr is not None
        said = [line for line in silo.stderr.read().splitlines() if line.startswith("va: ")]
        silo.stderr.close()
        silo.wait()
    again = "va: exited with status 1; restarting in 10 s"
    assert said[0] == "va: the server does not know this key: register it there with ./admit.sh va.pub"
    assert said[3].startswith("va: the server knows this key, and considers its last node connected")
    assert [said[k] for k in (1, 2, 4, 5)] == [again] * 4


def test_silos_that_are_late_are_named_to_the_app(project: Path, commands: Commands) -> None:
    commands.put("flwr", FLWR.replace("$STATUS", "finished:completed"))
    script = project / "run.sh"
    assert commands.run(script, "--deliver", "va,zürich", "--rounds", "5", "runs/a", "rounds=3").returncode == 0
    _, *settings = commands.said.read_text().splitlines()
    said = {"run": "runs/a", "set": "rounds=3", "deliver": "va,zürich", "rounds": "5"}
    assert tomllib.loads("\n".join(settings)) == said
    assert commands.run(script, "--deliver").returncode == 2


def test_a_run_that_is_not_accepted_or_not_asked_for_well_fails(project: Path, commands: Commands) -> None:
    commands.put("flwr", "REFUSED=1\n" + FLWR)
    assert commands.run(project / "run.sh", "runs/a").returncode == 1
    for arguments in ((), ("--simulation",)):
        commands.put("flower-superlink", "exit 1")
        wrong = commands.run(project / "run.sh", *arguments)
        assert wrong.returncode == 2, wrong.stderr
        assert "usage: run.sh" in wrong.stderr


def test_silos_with_data_of_their_own_are_not_simulated(tmp_path: Path, commands: Commands) -> None:
    write_project(tmp_path / "own", CONFIG, None)
    done = commands.run(tmp_path / "own" / "run.sh", "--simulation", "runs/a")
    assert (done.returncode, done.stderr) == (2, 'data.source = "on_site" has no data to simulate with\n')
