"""What is around a run may fail: descriptors, logs, the terminal, folders, the supervisor itself. The run goes on."""

from __future__ import annotations

import contextlib
import os
import pty
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from swell.errors import ConfigError
from swell.supervisor.control import ask
from swell.supervisor.private_folder import PrivateFolder, remove_leftovers
from swell.supervisor.process_identity import identity_of
from swell.supervisor.terminal import Terminal
from tests.supervisor.supervised import SupervisedRun
from tests.supervisor.test_supervisor import WORKER, formed


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="needs to limit another process")
def test_a_resize_for_which_there_are_no_descriptors_is_refused_and_the_run_goes_on(tmp_path: Path) -> None:
    with SupervisedRun.of(tmp_path, "--workers", "1:3", "--start", "1", WORKER, "train") as run:
        before = formed(run, [1])
        limits = resource.prlimit(run.process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(run.process.pid, resource.RLIMIT_NOFILE, (descriptors(run.process.pid), limits[1]))
        with pytest.raises(
            ConfigError, match=r"workers is 3; expected a number that this machine can start.*open file"
        ):
            run.ask("resize", workers=3)
        assert run.status()["target"] == 1
        resource.prlimit(run.process.pid, resource.RLIMIT_NOFILE, limits)
        run.ask("resize", workers=2)
        run.wait_for(lambda: len(run.status()["members"]) == 2 and run.status()["state"] == "training")
        assert {worker["pid"] for worker in run.status()["workers"]} > set(before.values())


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="needs to limit another process")
def test_a_lost_worker_that_cannot_be_replaced_is_replaced_when_it_can_be(tmp_path: Path) -> None:
    with SupervisedRun.of(tmp_path, "--workers", "1:2", "--start", "2", WORKER, "train") as run:
        before = formed(run, [1, 2])
        limits = resource.prlimit(run.process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(run.process.pid, resource.RLIMIT_NOFILE, (6, limits[1]))
        os.kill(before[1], signal.SIGKILL)
        run.wait_for(lambda: "it is tried again, and the others go on" in run.terminal())
        resource.prlimit(run.process.pid, resource.RLIMIT_NOFILE, limits)
        run.wait_for(lambda: len(run.status().get("members", [])) == 2 and run.status()["state"] == "training")
        assert before[2] in {worker["pid"] for worker in run.status()["workers"]}


def test_workers_are_started_without_logs_where_none_can_be_written(tmp_path: Path) -> None:
    with SupervisedRun.of(tmp_path, "--workers", "2", WORKER, "train") as run:
        before = formed(run, [1, 2])
        shutil.rmtree(run.run_dir / "logs")
        (run.run_dir / "logs").touch()
        run.ask("chaos", rank=0)
        assert formed(run, [2, 3])[2] == before[2]
        assert "worker 3 has no log" in run.terminal()


def test_a_command_that_cannot_be_started_at_all_ends_the_run_with_the_reason(tmp_path: Path) -> None:
    line = "import sys; sys.executable = '/nowhere/python'; from swell.cli import main; sys.exit(main(sys.argv[1:]))"
    args = [sys.executable, "-c", line, "run", "--workers", "2", "--run-dir", str(tmp_path / "run"), WORKER, "train"]
    done = subprocess.run(args, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "no worker can be started" in done.stdout and "/nowhere/python" in done.stdout


def test_where_the_supervisor_itself_fails_its_workers_save_first(tmp_path: Path) -> None:
    code = (
        "import os, sys\n"
        "from swell.supervisor.membership import Membership\n"
        "tick = Membership.tick\n"
        "def fail(self, now):\n"
        f"    if os.path.exists({str(tmp_path / 'now')!r}): raise RuntimeError('out of order')\n"
        "    return tick(self, now)\n"
        "Membership.tick = fail\n"
        "from swell.cli import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    line = ["run", "--workers", "2", "--run-dir", str(tmp_path / "run"), WORKER, "train"]
    process = subprocess.Popen([sys.executable, "-c", code, *line], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    workers = wait_for_training(tmp_path / "run", 2)
    (tmp_path / "now").touch()
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 1 and b"the supervisor failed (RuntimeError: out of order)" in output
    for member in (1, 2):
        log = (tmp_path / "run" / "logs" / f"worker-{member}.log").read_text()
        assert "told to stop by supervisor lost" in log
    assert not [pid for pid in workers if Path(f"/proc/{pid}").exists()]


def wait_for_training(run_dir: Path, workers: int) -> list[int]:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with contextlib.suppress(ConfigError):
            status = ask(run_dir, "status")
            if status["state"] == "training" and len(status["members"]) == workers:
                return [worker["pid"] for worker in status["workers"]]
        time.sleep(0.05)
    raise AssertionError("the run does not train")


@contextlib.contextmanager
def unread(kind: str) -> Iterator[int]:
    """The writing end of an output that nobody reads."""
    if kind == "pipe":
        reader, writer = os.pipe()
    else:
        reader, writer = pty.openpty()
        os.write(reader, b"\x13")  # Ctrl-S
    yield writer
    os.close(reader)


@pytest.mark.parametrize("kind", ["pipe", "terminal"])
def test_output_that_nobody_reads_does_not_keep_the_supervisor_from_its_work(kind: str, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with unread(kind) as output:
        line = [sys.executable, "-m", "swell", "run", "--run-dir", str(run_dir), "--workers", "2", WORKER, "chatter"]
        process = subprocess.Popen(line, stdout=output, stderr=subprocess.DEVNULL, start_new_session=True)
        os.close(output)
        try:
            first = wait_for_training(run_dir, 2)
            deadline = time.monotonic() + 60
            while not ask(run_dir, "status")["lines_not_shown"]:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            os.kill(first[0], signal.SIGKILL)
            while first[0] in wait_for_training(run_dir, 2):
                assert time.monotonic() < deadline
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=60) == 143
        finally:
            process.kill()
            process.wait()


def test_lines_that_find_the_buffer_full_are_dropped_and_counted() -> None:
    shown: list[str] = []
    with contextlib.ExitStack() as stack:
        gate = stack.enter_context(Gate())

        def write(line: str) -> None:
            gate.wait()
            shown.append(line)

        terminal = Terminal(write, most=100)
        for number in range(50):
            terminal.show(f"line {number:05}")  # ten characters
        dropped = terminal.dropped
        assert 39 <= dropped <= 40
        gate.open()
        terminal.close()
    assert shown[: 50 - dropped] == [f"line {number:05}" for number in range(50 - dropped)]
    assert shown[-1] == f"[swell] {dropped} lines are not shown here, because nobody read the output"


def test_a_terminal_that_never_takes_a_line_does_not_hold_up_the_end() -> None:
    with Gate() as gate:
        terminal = Terminal(lambda line: gate.wait())
        terminal.show("nobody reads this")
        terminal.close(last_s=0.05)


class Gate:
    """Closed until it is opened, or until the end of its block."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()

    def wait(self) -> None:
        os.read(self._read, 1)

    def open(self) -> None:
        os.write(self._write, bytes(1000))

    def __enter__(self) -> Gate:
        return self

    def __exit__(self, *_: object) -> None:
        self.open()


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_change_nothing(closed: str, tmp_path: Path) -> None:
    line = f'exec "$0" -m swell run --workers 2 --run-dir {tmp_path / "run"} {WORKER} finish {closed}'
    assert subprocess.run(["sh", "-c", line, sys.executable], timeout=60).returncode == 0
    for member in (1, 2):
        assert (tmp_path / "run" / "logs" / f"worker-{member}.log").read_text() == f"hello from {member}\n"


def test_long_paths_of_run_folder_and_temporary_directory_are_no_obstacle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("long" * 30)
    deep.mkdir()
    monkeypatch.setenv("TMPDIR", str(deep))
    with SupervisedRun.of(deep, "--workers", "1", WORKER, "train") as run:
        formed(run, [1])


def test_a_control_socket_that_is_removed_is_there_again(tmp_path: Path) -> None:
    with SupervisedRun.of(tmp_path, "--workers", "1", WORKER, "train") as run:
        formed(run, [1])
        (run.run_dir / "control" / "socket").unlink()
        formed(run, [1])


@pytest.mark.distributed
def test_a_private_folder_that_is_removed_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    with SupervisedRun(tmp_path, "--workers", "1:2", "--start", "1") as run:
        run.training([1])
        for folder in temporary.glob("swell-*"):
            shutil.rmtree(folder)
        run.ask("resize", workers=2)
        run.training([1, 2])
        run.ask("stop")
        assert run.end() == 143
    assert not list(temporary.glob("swell-*"))


@pytest.mark.distributed
def test_a_folder_that_workers_made_after_their_supervisor_and_its_folder_were_gone_is_removed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    with SupervisedRun(tmp_path, "--workers", "2", "--grace", "4") as run:
        run.training([1, 2])
        workers = {worker["member"]: worker["pid"] for worker in run.status()["workers"]}
        shutil.rmtree(run.status()["private_folder"])
        os.kill(workers[2], signal.SIGSTOP)
        run.process.kill()
        run.process.wait()
        deadline = time.monotonic() + 60
        while identity_of(workers[1]) is not None:  # it goes on alone after half the grace time, and ends
            assert time.monotonic() < deadline
            time.sleep(0.05)
        os.killpg(workers[2], signal.SIGKILL)
        assert list(temporary.glob("swell-*/alone-*"))
    (tmp_path / "other").mkdir()
    with SupervisedRun.of(tmp_path / "other", "--workers", "1", WORKER, "train") as run:
        formed(run, [1])
        assert not list(temporary.glob("swell-*/alone-*"))


@pytest.mark.distributed
def test_a_worker_that_was_stopped_while_its_run_was_resumed_does_not_go_on_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    with SupervisedRun(tmp_path, "--workers", "2", "--grace", "4") as run:
        run.training([1, 2])
        workers = {worker["member"]: worker["pid"] for worker in run.status()["workers"]}
        os.kill(workers[2], signal.SIGSTOP)
        run.process.kill()
        run.process.wait()
        run.wait_for_end_of_process(workers[1], timeout_s=60)
        try:
            with SupervisedRun(tmp_path, "--workers", "1") as resumed:
                formed(resumed, [1])
                os.kill(workers[2], signal.SIGCONT)
                run.wait_for_end_of_process(workers[2], timeout_s=60)
                assert len(list(temporary.glob("swell-*"))) == 1, "the private folder of the present supervisor"
                assert not list(temporary.glob("swell-*/alone-*"))
                resumed.ask("stop")
                assert resumed.end() == 143
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(workers[2], signal.SIGKILL)


def test_what_a_killed_supervisor_left_behind_is_removed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    (temporary / "swell-of-somebody").mkdir(parents=True)
    monkeypatch.setenv("TMPDIR", str(temporary))
    (tmp_path / "other").mkdir()
    with SupervisedRun.of(tmp_path, "--workers", "1", WORKER, "train") as run:
        formed(run, [1])
        run.process.kill()
        run.process.wait()
        (left,) = [folder for folder in temporary.iterdir() if (folder / "lock").exists()]
    with SupervisedRun.of(tmp_path / "other", "--workers", "1", WORKER, "train") as run:
        formed(run, [1])
        assert not left.exists() and (temporary / "swell-of-somebody").exists()
        assert len(list(temporary.glob("swell-*/lock"))) == 1


def test_the_folder_of_a_living_supervisor_is_no_left_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    private = PrivateFolder(tmp_path)
    path = private.path()
    assert remove_leftovers() == [] and private.path() == path
    shutil.rmtree(path)
    again = private.path()
    assert again.is_dir() and (again / "lock").exists()
    private.close()
    assert not list(tmp_path.iterdir())


def test_a_private_folder_is_in_the_run_folder_where_there_is_no_temporary_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    private = PrivateFolder(tmp_path)
    assert private.path().parent == tmp_path
    private.close()
