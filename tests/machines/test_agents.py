"""Agents offer machines to a run, leave, die and lose it; the workers here are scripts without torch."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from swell.errors import ConfigError
from swell.supervisor.control import ask
from swell.supervisor.secure_channel import new_run_key, write_run_key
from tests.machines.cluster import Cluster, Loopback

WORKER = str(Path(__file__).parents[1] / "supervisor" / "plain_worker.py")


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, Loopback(), (WORKER, "train")) as cluster:
        yield cluster


def test_a_run_grows_to_the_machines_there_are_and_shrinks_with_them(run: Cluster) -> None:
    run.begin(workers="1:8")
    first = run.wait_for_world(1)["workers"][0]["pid"]
    run.join(1, slots=2)
    status = run.wait_for_world(3)
    assert [worker["slot"] for worker in status["workers"]] == [0, 0, 1]
    assert [machine["slots"] for machine in status["machines"]] == [1, 2]
    run.agents[1].send_signal(signal.SIGTERM)  # a notice: its workers leave, and then the agent
    assert run.wait_for_world(1)["workers"][0]["pid"] == first
    assert run.agents[1].wait(30) == 143
    run.join(2)
    run.wait_for_world(2)
    run.agents[2].kill()
    assert run.wait_for_world(1)["workers"][0]["pid"] == first
    assert run.status()["restarts"] == 0, "neither is a fault"


def test_workers_die_with_their_agent(run: Cluster) -> None:
    run.begin()
    run.join(1)
    run.wait_for_world(2)
    pid = run.pids_on(1)[0]
    run.agents[1].kill()
    run.wait_for(lambda: not Path(f"/proc/{pid}").exists() or " Z " in Path(f"/proc/{pid}/stat").read_text())


def test_an_agent_on_a_leash_leaves_when_its_standard_input_ends(run: Cluster) -> None:
    run.begin()
    run.wait_for_world(1)
    token = run.run_dir / "control" / "token"
    line = [sys.executable, "-m", "swell", "agent", run.address, "--slots", "1", "--token-file", str(token)]
    line += ["--leave-with-stdin", "--machine", "rack 7"]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as agent:
        assert run.wait_for_world(2)["machines"][1]["host"] == "rack 7"
        agent.communicate(b"the rack is moved", timeout=60)
    assert agent.returncode == 143
    run.wait_for_world(1)
    log = (run.run_dir / "logs" / "supervisor.log").read_text()
    assert "was asked to leave (the rack is moved)" in log and "restarts" not in log


def test_a_worker_that_dies_elsewhere_is_replaced_there(run: Cluster) -> None:
    run.begin()
    run.join(1)
    run.wait_for_world(2)
    run_before = run.pids_on(1)
    os.kill(run_before[0], signal.SIGKILL)
    run.wait_for(lambda: run.pids_on(1) and run.pids_on(1) != run_before and run.wait_for_world(2))
    assert run.status()["restarts"] == 1


def test_when_the_head_is_killed_all_workers_stop_and_agents_come_back_to_the_resumed_run(run: Cluster) -> None:
    run.begin()
    run.join(1)
    run.wait_for_world(2)
    assert run.head is not None
    run.head.kill()
    run.head.wait()
    told = [run.run_dir / "logs" / f"worker-{member}.log" for member in (1, 2)]
    run.wait_for(lambda: all("told to stop by supervisor lost" in log.read_text() for log in told))
    assert run.agents[1].poll() is None
    run.resume()
    run.wait_for_world(2)
    run.join(2)
    run.wait_for_world(3)
    ask(run.run_dir, "stop")
    assert run.end() == 143
    assert [run.agents[machine].wait(30) for machine in (1, 2)] == [143, 143], "agents end as the run does"


def test_more_workers_than_there_is_room_for_are_waited_for(run: Cluster) -> None:
    run.begin(workers="2:4", slots=1)
    run.wait_for(lambda: any(worker["phase"] == "ready" for worker in run.status().get("workers", [])))
    assert run.status()["state"] == "starting"
    run.join(1)
    run.wait_for_world(2)
    reply = ask(run.run_dir, "resize", workers=4)
    assert (reply["target"], reply["wanted"], reply["room"]) == (2, 4, 2)
    run.join(2, slots=5)
    run.wait_for_world(4)
    ask(run.run_dir, "resize", workers=3)
    run.wait_for_world(3)
    assert run.status()["restarts"] == 0


def test_when_the_last_machines_are_asked_to_leave_the_run_stops_and_saves(run: Cluster) -> None:
    run.begin(workers="1:4", slots=0)
    run.join(1)
    run.wait_for_world(1)
    run.agents[1].send_signal(signal.SIGTERM)
    assert run.end() == 143
    assert run.agents[1].wait(30) == 143
    assert "told to stop by SIGTERM" in (run.run_dir / "logs" / "worker-1.log").read_text()


def test_a_run_is_controlled_from_any_machine_that_has_the_token(run: Cluster, tmp_path: Path) -> None:
    run.begin()
    run.join(1)
    run.wait_for_world(2)
    token = run.run_dir / "control" / "token"
    line = [sys.executable, "-m", "swell"]
    shown = subprocess.run(
        [*line, "status", run.address, "--token-file", str(token)], capture_output=True, text=True, cwd="/"
    )
    assert "machine 1" in shown.stdout and shown.returncode == 0, shown.stderr
    environ = {**os.environ, "SWELL_TOKEN": token.read_text()}
    done = subprocess.run([*line, "resize", run.address, "1"], env=environ, capture_output=True, text=True, cwd="/")
    assert done.returncode == 0, done.stderr
    run.wait_for_world(1)
    (run.run_dir / "control" / "socket").unlink()  # a machine that only shares the folder has no use for this socket
    assert ask(run.run_dir, "status")["target"] == 1
    assert ask(run.address, "stop", token_file=str(token)) == {"stopping": True}
    assert run.end() == 143


def test_whoever_has_another_token_or_none_gets_nothing(run: Cluster, tmp_path: Path) -> None:
    run.begin()
    run.wait_for_world(1)
    write_run_key(tmp_path / "other", new_run_key())
    with pytest.raises(ConfigError, match="did not prove"):
        ask(run.address, "status", token_file=str(tmp_path / "other"))
    with pytest.raises(ConfigError, match="SWELL_TOKEN"):
        ask(run.address, "status")
    agent = [sys.executable, "-m", "swell", "agent", run.address, "--wait", "0"]
    refused = subprocess.run([*agent, "--token-file", str(tmp_path / "other")], capture_output=True, text=True)
    assert refused.returncode == 2 and "token" in refused.stderr
    host, _, port = run.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=30) as stranger:
        stranger.sendall(b'{"say": "status"}\n')
        with contextlib.suppress(ConnectionResetError):
            assert b"target" not in stranger.recv(1000)
    assert [machine["machine"] for machine in run.status()["machines"]] == [0]


def test_silent_strangers_do_not_keep_an_agent_out(run: Cluster) -> None:
    run.begin()
    run.wait_for_world(1)
    host, _, port = run.address.rpartition(":")
    strangers = [socket.create_connection((host, int(port)), timeout=30) for _ in range(40)]
    run.join(1)
    run.wait_for_world(2)
    for stranger in strangers:
        stranger.close()


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to act as another user")
def test_another_user_cannot_read_the_token(run: Cluster) -> None:
    run.begin()
    run.wait_for_world(1)
    token = run.run_dir / "control" / "token"
    code = "import os, sys; os.setgid(65534); os.setuid(65534); open(sys.argv[1])"
    read = subprocess.run([sys.executable, "-c", code, str(token)], capture_output=True, text=True)
    assert "PermissionError" in read.stderr
    assert token.stat().st_mode & 0o077 == 0


def test_no_worker_has_the_token_in_its_environment(run: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWELL_TOKEN", new_run_key().hex())
    run.begin()
    run.join(1)
    status = run.wait_for_world(2)
    for worker in status["workers"]:
        assert b"SWELL_TOKEN" not in Path(f"/proc/{worker['pid']}/environ").read_bytes()


def test_an_agent_without_the_scripts_folder_says_so(run: Cluster) -> None:
    run.begin()
    token = run.run_dir / "control" / "token"
    line = [sys.executable, "-m", "swell", "agent", run.address, "--token-file", str(token), "--folder", "/nowhere"]
    refused = subprocess.run(line, capture_output=True, text=True)
    assert refused.returncode == 2 and "--folder" in refused.stderr


def test_an_address_that_cannot_be_listened_on_is_named(tmp_path: Path) -> None:
    line = [sys.executable, "-m", "swell", "run", "--run-dir", str(tmp_path / "run")]
    for listen, words in (("192.0.2.1:0", "address of this machine"), ("0.0.0.0", "every interface"), ("a:b", "port")):
        refused = subprocess.run([*line, "--listen", listen, WORKER, "train"], capture_output=True, text=True)
        assert refused.returncode == 2 and words in refused.stderr, refused.stderr
