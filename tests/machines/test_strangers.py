"""Who has no token gets nothing, be it an agent, a worker or an owner, as another user or from another address."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from swell.supervisor.secure_channel import new_run_key, read_run_key, write_run_key
from tests.machines.cluster import TRAINING, Cluster, Namespaces, environment, why_no_namespaces

OTHER_USER = ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups")
STRANGER = 2  # the machine that no agent runs on

# What a worker and an agent say first, and what an owner asks, without a proof: in clear, and over TLS.
SPEAK = """
import json, socket, ssl, sys
host, port, secured = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "tls"
answers = []
for words in ({"say": "ready"}, {"say": "agent", "name": "x", "slots": 9, "version": sys.argv[4], "pid": 1},
              {"say": "status"}, {"say": "stop"}, {"say": "state link", "ticket": "0" * 32}):
    try:
        with socket.create_connection((host, port), timeout=5) as end:
            if secured:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
                end = context.wrap_socket(end)
            end.sendall(b"+" + json.dumps(words).encode() + b"\\n")
            end.settimeout(2)
            answer = b"".join(iter(lambda: end.recv(1000), b""))
    except OSError as error:
        answer = b""
    answers.append(answer.decode(errors="replace"))
print(json.dumps(answers))
"""

# How many bytes each of these ports gives to who connects and says something.
KNOCK = """
import json, socket, sys
found = {}
for port in sys.argv[2:]:
    try:
        with socket.create_connection((sys.argv[1], int(port)), timeout=1) as end:
            end.settimeout(1)
            end.sendall(bytes(64))
            found[port] = len(end.recv(1000))
    except OSError:
        found[port] = 0
print(json.dumps(found))
"""


@functools.cache
def why_not() -> str:
    if why_no_namespaces() or shutil.which("setpriv") is None:
        return why_no_namespaces() or "needs setpriv"
    line = [*OTHER_USER, sys.executable, "-c", "import swell.cli"]
    done = subprocess.run(line, env=environment(), cwd="/", capture_output=True, check=False)
    return "" if done.returncode == 0 else "another user cannot read this Python or swell"


pytestmark = [
    pytest.mark.distributed,
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "there are strangers"),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A run on two machines; the third one belongs to strangers."""
    folder = tmp_path_factory.mktemp("run")
    script = (str(TRAINING), str(folder), "100000", "0.05")
    with Namespaces(3) as machines, Cluster(folder, machines, script) as cluster:
        cluster.begin("--show", "none", "--grace", "5")
        cluster.join(1)
        cluster.wait_for_world(2)
        cluster.wait_for_steps(2, replicas=2)
        yield cluster


@pytest.fixture(autouse=True)
def undisturbed(run: Cluster) -> Iterator[None]:
    """Whatever strangers do, the same workers train on in the same world."""
    before = run.wait_for_world(2)
    yield
    run.wait_for_steps(2, replicas=2)
    after = run.wait_for_world(2)
    for name in ("generation", "members", "machines", "restarts"):
        assert after[name] == before[name]


def on(
    run: Cluster, machine: int, *line: str, user: bool = False, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a command on a machine, as another user if asked for."""
    whole = run.machines.line(machine, *(OTHER_USER if user else ()), *line)
    given = {name: value for name, value in environment().items() if not name.startswith("SWELL_TOKEN")}
    return subprocess.run(
        whole, env={**given, **variables}, cwd="/", capture_output=True, text=True, timeout=120, check=False
    )


WHO = [(STRANGER, False), (STRANGER, True), (0, True)]
who = pytest.mark.parametrize(("machine", "user"), WHO, ids=["address", "address and user", "user"])


@who
def test_an_agent_without_the_token_gets_nothing(run: Cluster, machine: int, user: bool) -> None:
    agent = (sys.executable, "-m", "swell", "agent", run.address, "--slots", "4", "--wait", "0")
    none = on(run, machine, *agent, user=user)
    assert none.returncode == 2 and "token of the run is missing" in none.stderr
    other = on(run, machine, *agent, user=user, SWELL_TOKEN=new_run_key().hex())
    assert other.returncode == 2 and "no supervisor answers" in other.stderr
    assert "did not prove" in other.stdout


@pytest.mark.parametrize("machine", [0, STRANGER])
def test_another_user_cannot_use_the_runs_own_token(run: Cluster, machine: int) -> None:
    token = run.run_dir / "control" / "token"
    agent = (sys.executable, "-m", "swell", "agent", run.address, "--wait", "0", "--token-file", str(token))
    refused = on(run, machine, *agent, user=True)
    assert refused.returncode == 2 and "cannot be read" in refused.stderr
    for word in ("status", "stop"):
        asked = on(run, machine, sys.executable, "-m", "swell", word, str(run.run_dir), user=True)
        assert asked.returncode == 2, asked.stdout


def test_a_token_that_others_can_read_is_refused_even_by_its_owner(run: Cluster, tmp_path: Path) -> None:
    write_run_key(tmp_path / "token", read_run_key(run.run_dir / "control" / "token"))
    (tmp_path / "token").chmod(0o644)
    agent = (
        sys.executable,
        "-m",
        "swell",
        "agent",
        run.address,
        "--wait",
        "0",
        "--token-file",
        str(tmp_path / "token"),
    )
    refused = on(run, STRANGER, *agent)
    assert refused.returncode == 2 and "other users" in refused.stderr


@who
@pytest.mark.parametrize("how", ["clear", "tls"])
def test_nobody_is_answered_before_the_proof(run: Cluster, machine: int, user: bool, how: str) -> None:
    from swell.version import __version__

    host, _, port = run.address.rpartition(":")
    said = on(run, machine, sys.executable, "-c", SPEAK, host, port, how, __version__, user=user)
    answers = json.loads(said.stdout)
    assert len(answers) == 5, said.stderr
    for answer in answers:
        assert "{" not in answer and "ok" not in answer, "no reply, no terms, no state"


@who
def test_a_stranger_gets_not_a_byte_from_the_ports_of_workers(run: Cluster, machine: int, user: bool) -> None:
    for place in (0, 1):
        ports = {port for pid in run.pids_on(place) for port in listening(run, place, pid)}
        head = {int(run.address.rpartition(":")[2])}
        host = run.machines.address(place)
        line = (sys.executable, "-c", KNOCK, host, *map(str, sorted(ports - head)))
        knocked = on(run, machine, *line, user=user)
        assert not any(json.loads(knocked.stdout).values()), knocked.stdout
        assert ports - head, "workers listen for one another, or this test looks at nothing"


def test_the_control_socket_is_closed_to_other_users(run: Cluster) -> None:
    code = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])"
    for path in run.run_dir.rglob("socket"):
        refused = on(run, 0, sys.executable, "-c", code, os.path.relpath(path, "/"), user=True)
        assert "PermissionError" in refused.stderr


def listening(run: Cluster, machine: int, pid: int) -> set[int]:
    """The TCP ports on which a process of a machine listens."""
    inodes = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            text = os.readlink(entry)
            inodes |= {text[8:-1]} if text.startswith("socket:[") else set()
    rows: list[list[str]] = []
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            rows += [line.split() for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]]
    return {int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A" and row[9] in inodes}
