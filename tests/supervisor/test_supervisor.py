"""The supervisor starts, watches, ends and reports; its workers here are scripts without torch."""

from __future__ import annotations

import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from swell.errors import ConfigError
from swell.supervisor.control import ask
from swell.supervisor.run_dir import RunDir
from tests.supervisor.supervised import SupervisedRun, pids

WORKER = str(Path(__file__).with_name("plain_worker.py"))


def formed(run: SupervisedRun, members: list[int]) -> dict[int, int]:
    """Wait until these members train; their process ids."""

    def trains() -> bool:
        status = run.status()
        return (
            status.get("state") == "training"
            and status["members"] == members
            and len(status["workers"]) == len(members)
        )

    run.wait_for(trains)
    return pids(run.status()["workers"])


def test_a_script_that_comes_to_its_end_ends_the_run_with_status_0(tmp_path: Path) -> None:
    with SupervisedRun.of(tmp_path, "--workers", "3", WORKER, "finish") as run:
        assert run.end() == 0


def test_a_script_that_never_joins_may_end_too(tmp_path: Path) -> None:
    with SupervisedRun.of(tmp_path, "--workers", "2", WORKER, "quit") as run:
        assert run.end() == 0


def test_output_goes_to_log_files_and_with_the_rank_to_the_terminal(tmp_path: Path) -> None:
    with SupervisedRun.of(tmp_path, "--workers", "2", WORKER, "train") as run:
        formed(run, [1, 2])
        run.ask("stop")
        assert run.end() == 143
        assert "[0] told to stop by swell stop" in run.terminal()
        assert "[1] told to stop by swell stop" in run.terminal()
        for member in (1, 2):
            log = (run.run_dir / "logs" / f"worker-{member}.log").read_text()
            assert log == f"hello from {member}\ntold to stop by swell stop\n"
        assert "stopping: swell stop" in (run.run_dir / "logs" / "supervisor.log").read_text()


def test_only_the_first_workers_output_is_shown_where_that_is_asked_for(tmp_path: Path) -> None:
    with SupervisedRun.of(tmp_path, "--workers", "2", "--show", "first", WORKER, "train") as run:
        formed(run, [1, 2])
        run.ask("stop")
        assert run.end() == 143
        assert "[0] told" in run.terminal()
        assert "[1] told" not in run.terminal()


def test_a_script_that_fails_uses_up_the_budget_and_its_status_is_the_runs(tmp_path: Path) -> None:
    with SupervisedRun.of(tmp_path, "--workers", "1", "--max-restarts", "2", WORKER, "fail") as run:
        assert run.end() == 7
        assert run.terminal().count("exited with status 7") == 3
        assert "something is wrong" in run.terminal()
        assert "the restart budget is spent" in run.terminal()


def test_a_killed_worker_is_replaced_and_the_others_stay(tmp_path: Path) -> None:
    with SupervisedRun.of(tmp_path, "--workers", "2", WORKER, "train") as run:
        before = formed(run, [1, 2])
        run.ask("chaos", rank=0)
        assert formed(run, [2, 3])[2] == before[2]


def test_a_stopped_process_is_found_by_its_silence(tmp_path: Path) -> None:
    with SupervisedRun.of(tmp_path, "--workers", "2", "--hang-timeout", "1", WORKER, "hang") as run:
        formed(run, [2, 3])
        assert "worker 1 is ended: gave no sign of life for 1 s" in run.terminal()


def test_workers_deaf_to_notices_are_killed_at_the_deadline(tmp_path: Path) -> None:
    with SupervisedRun.of(tmp_path, "--workers", "2", WORKER, "deaf") as run:
        formed(run, [1, 2])
        run.ask("stop", grace_s=0.5)
        assert run.end() == 137  # nothing was saved
        assert run.terminal().count("did not go before its deadline") == 2


def test_resizes_grow_and_shrink_within_what_is_allowed(tmp_path: Path) -> None:
    with SupervisedRun.of(tmp_path, "--workers", "1,3", "--start", "1", WORKER, "train") as run:
        formed(run, [1])
        with pytest.raises(ConfigError, match=r"2.*1, 3"):
            run.ask("resize", workers=2)
        run.ask("resize", workers=3)
        formed(run, [1, 2, 3])
        run.ask("resize", workers=1, kill=True)
        formed(run, [1])
        assert "worker 3 is ended: taken away without notice" in run.terminal()
        assert run.status()["restarts"] == 0


def test_a_trace_is_replayed(tmp_path: Path) -> None:
    (tmp_path / "workers.csv").write_text("time,workers\n100,1\n130,3\n550,2\n")
    line = ("--workers", "1:3", "--trace", str(tmp_path / "workers.csv"), "--trace-speed", "30", WORKER, "train")
    with SupervisedRun.of(tmp_path, *line) as run:
        run.wait_for(lambda: "3 workers" in run.terminal())
        formed(run, [1, 2])
        sizes = [line.split(": ")[1] for line in run.terminal().splitlines() if "generation" in line]
        assert sizes[0] == "1 workers" and sizes[-1] == "2 workers"
        assert "3 workers" in sizes  # perhaps by way of two, where one of the newcomers is ready sooner


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGUSR1", "SIGHUP"])
def test_a_signal_to_the_supervisor_stops_the_run_gracefully(tmp_path: Path, name: str) -> None:
    with SupervisedRun.of(tmp_path, "--workers", "2", WORKER, "train") as run:
        formed(run, [1, 2])
        run.process.send_signal(getattr(signal, name))
        assert run.end() == 143
        assert f"[0] told to stop by {name}" in run.terminal()


def test_a_second_ctrl_c_ends_everything_at_once(tmp_path: Path) -> None:
    with SupervisedRun.of(tmp_path, "--workers", "2", WORKER, "deaf") as run:
        workers = formed(run, [1, 2])
        run.process.send_signal(signal.SIGINT)
        run.wait_for(lambda: "stopping: SIGINT" in run.terminal())
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 130
        for pid in workers.values():
            run.wait_for_end_of_process(pid)


def test_workers_are_ended_together_with_what_they_started(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print('child', child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    with SupervisedRun.of(tmp_path, "--workers", "1", "--max-restarts", "0", str(script)) as run:
        run.wait_for(lambda: "child" in run.terminal())
        child = int(run.terminal().split("child ")[1].split()[0])
        run.ask("chaos", member=1)
        assert run.end() == 137
        run.wait_for_end_of_process(child)


def test_a_run_folder_has_one_supervisor_and_lets_go_of_it_at_the_end(tmp_path: Path) -> None:
    with SupervisedRun.of(tmp_path, "--workers", "1", WORKER, "train") as run:
        formed(run, [1])
        second = [sys.executable, "-m", "swell", "run", "--run-dir", str(run.run_dir), WORKER, "train"]
        refused = subprocess.run(second, capture_output=True, text=True)
        assert refused.returncode == 2
        assert "is in use by another `swell run`" in refused.stderr
        run.ask("stop")
        assert run.end() == 143
    with pytest.raises(ConfigError, match="no run is active"):
        ask(tmp_path / "run", "status")


def test_nobody_but_the_owner_can_reach_the_control_socket(tmp_path: Path) -> None:
    with SupervisedRun.of(tmp_path, "--workers", "1", WORKER, "train") as run:
        formed(run, [1])
        path = RunDir(run.run_dir).find_socket()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE((run.run_dir / "control").stat().st_mode) == 0o700
        for file in (run.run_dir / "control").iterdir():
            assert stat.S_IMODE(file.stat().st_mode) == 0o600, file


def test_nonsense_on_the_control_socket_is_hung_up_on(tmp_path: Path) -> None:
    with SupervisedRun.of(tmp_path, "--workers", "1", WORKER, "train") as run:
        formed(run, [1])
        for nonsense in (b"\xff\xfe\n", b"[]\n", b'{"do": "status"}\n'):
            with socket.socket(socket.AF_UNIX) as end:
                end.connect(str(RunDir(run.run_dir).find_socket()))
                end.sendall(nonsense)
                end.settimeout(30)
                assert end.recv(100) == b""
        with pytest.raises(ConfigError, match="dance"):
            run.ask("dance")
        with pytest.raises(ConfigError, match=r"workers.*two"):
            run.ask("resize", workers="two")
        with pytest.raises(ConfigError, match=r"grace_s.*long"):
            run.ask("stop", grace_s="long")
        with pytest.raises(ConfigError, match="SIGKILL"):
            run.ask("chaos", member=[1])
        with pytest.raises(ConfigError, match="SIGNOTHING"):
            run.ask("chaos", signal="SIGNOTHING", rank=0)
        assert run.status()["state"] == "training"


def test_a_run_in_a_folder_with_a_very_long_name_can_be_controlled(tmp_path: Path) -> None:
    deep = tmp_path / ("long" * 30)
    deep.mkdir()
    with SupervisedRun.of(deep, "--workers", "1", WORKER, "train") as run:
        formed(run, [1])
        assert stat.S_IMODE(RunDir(run.run_dir).find_socket().parent.stat().st_mode) == 0o700


def test_a_terminal_that_goes_away_does_not_take_the_run_with_it(tmp_path: Path) -> None:
    line = [
        sys.executable,
        "-m",
        "swell",
        "run",
        "--run-dir",
        str(tmp_path / "run"),
        "--workers",
        "1",
        WORKER,
        "finish",
    ]
    process = subprocess.Popen(line, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(timeout=60) == 0


def test_a_killed_run_can_be_resumed_with_its_own_command_line(tmp_path: Path) -> None:
    with SupervisedRun.of(tmp_path, "--workers", "1:2", "--start", "2", WORKER, "train") as run:
        formed(run, [1, 2])
        run.process.kill()
        run.process.wait()
    with pytest.raises(ConfigError, match="does not answer"):
        ask(tmp_path / "run", "status")
    line = [sys.executable, "-m", "swell", "resume", str(tmp_path / "run"), "--start", "1"]
    resumed = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                status = ask(tmp_path / "run", "status")
            except ConfigError:
                status = {}
            if status.get("state") == "training":
                break
            time.sleep(0.05)
        assert status["members"] == [1]
        assert status["command"][-2:] == [WORKER, "train"]
        ask(tmp_path / "run", "stop")
        shown, _ = resumed.communicate(timeout=60)
        assert resumed.returncode == 143
        assert "told to stop by swell stop" in shown
    finally:
        resumed.kill()
        resumed.wait()
