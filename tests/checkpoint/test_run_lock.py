from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from swell.checkpoint import Store
from swell.checkpoint.run_lock import RunLock
from swell.checkpoint.set_aside import set_aside
from swell.checkpoint.writer_record import FILE_NAME, WriterRecord, read_record, write_record
from swell.errors import CheckpointError, RunFolderError
from swell.supervisor.process_identity import identity_of, own_identity
from swell.supervisor.run_dir import RunDir
from swell.supervisor.supervision import Supervision

HOLDER = """
import os, sys, time
from swell.checkpoint.run_lock import RunLock
from swell.supervisor.process_identity import own_identity
from swell.supervisor.run_dir import RunDir
from swell.supervisor.supervision import Supervision

folder, kind = sys.argv[1:3]
supervision = None
if kind == "supervised":
    import fcntl
    descriptor = os.open(sys.argv[3], os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    supervision = Supervision(identity=own_identity(), lock=sys.argv[3])
lock = RunLock(folder, supervision=supervision)
lock.acquire(generation=1)
if kind == "parent" and os.fork() == 0:
    time.sleep(60)
print(lock.token, flush=True)
time.sleep(60)
"""


@contextmanager
def holder(folder: Path, kind: str = "script", *more: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder), kind, *more],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None and process.stdout.readline().strip().isdecimal()
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def lock_of(folder: Path, **options: Any) -> RunLock:
    return RunLock(folder, wait_s=0.2, **options)


def test_every_writer_has_a_higher_token_and_only_the_newest_may_write(tmp_path: Path) -> None:
    locks = [lock_of(tmp_path) for _ in range(4)]
    for number, lock in enumerate(locks, start=1):
        lock.acquire()
        lock.acquire()  # again does nothing
        assert lock.token == number
        assert [each.holds() for each in locks] == [each is lock for each in locks]
    for lost in locks[:-1]:
        with pytest.raises(RunFolderError, match=rf"taken over by process {os.getpid()} .* token 4"):
            lost.require()
    locks[-1].require()
    locks[-1].release()
    assert not locks[-1].holds()
    record = read_record(tmp_path / FILE_NAME)
    assert record is not None and record.released and record.token == 4


def test_a_second_process_is_refused_with_who_holds_the_folder(tmp_path: Path) -> None:
    with holder(tmp_path) as process:
        with pytest.raises(RunFolderError, match=rf"written by process {process.pid} on .*script.*kill {process.pid}"):
            lock_of(tmp_path).acquire()
        os.kill(process.pid, signal.SIGSTOP)  # it lives: it may continue at any time
        with pytest.raises(RunFolderError, match=f"process {process.pid}"):
            lock_of(tmp_path).acquire()


@pytest.mark.parametrize("kind", ["script", "parent"])
def test_a_dead_holder_does_not_block_even_if_its_loading_processes_live_on(tmp_path: Path, kind: str) -> None:
    with holder(tmp_path, kind) as process:
        os.kill(process.pid, signal.SIGKILL)  # not its child
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        lock = lock_of(tmp_path)
        lock.acquire()
        assert lock.token == 2 and lock.holds()


def test_a_script_is_refused_beside_a_living_supervisor_and_not_beside_a_dead_one(tmp_path: Path) -> None:
    with holder(tmp_path, "supervised", str(tmp_path / "control")) as process:
        with pytest.raises(RunFolderError, match=rf"process {process.pid} .*worker of `swell run`"):
            lock_of(tmp_path).acquire()
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        lock_of(tmp_path).acquire()


@pytest.mark.parametrize("before", ["nobody", "a run that ended in order"])
def test_a_script_is_refused_while_the_workers_of_a_supervisor_only_start(tmp_path: Path, before: str) -> None:
    if before != "nobody":
        record_of(tmp_path, supervisor="1-2-3", supervisor_lock=str(RunDir(tmp_path).lock_file), released=True)
    with RunDir(tmp_path).lock():
        with pytest.raises(RunFolderError, match=r"being written by an active `swell run`.*Stop that run"):
            lock_of(tmp_path).acquire()
        worker = lock_of(tmp_path, supervision=Supervision(identity=own_identity(), lock="x"))
        worker.acquire(generation=1)
        worker.release()
        lock_of(tmp_path, supervised=True).acquire()
    lock_of(tmp_path).acquire()


def test_a_worker_is_refused_beside_a_living_script(tmp_path: Path) -> None:
    with holder(tmp_path) as process, pytest.raises(RunFolderError, match=f"process {process.pid}"):
        lock_of(tmp_path, supervision=Supervision(identity=own_identity(), lock="x")).acquire(generation=1)


def record_of(path: Path, **fields: Any) -> None:
    """Stand in for a writer of another machine or another time."""
    values: dict[str, Any] = {"token": 7, "process": "1-2-3", "pid": 1, "supervisor": "", **fields}
    os.close(write_record(path / FILE_NAME, WriterRecord(**values)))


def test_workers_of_one_supervisor_follow_one_another_in_newer_generations_only(tmp_path: Path) -> None:
    mine = Supervision(identity=own_identity(), lock=str(tmp_path / "control"))
    record_of(tmp_path, supervisor=mine.identity, supervisor_lock=mine.lock, generation=5)
    for generation in (4, 5):
        with pytest.raises(RunFolderError, match="taken over"):
            lock_of(tmp_path, supervision=mine).acquire(generation=generation)
    lock = lock_of(tmp_path, supervision=mine)
    lock.acquire(generation=6)
    assert lock.token == 8 and not lock.begins
    record_of(tmp_path, token=9, supervisor=mine.identity, supervisor_lock=mine.lock, generation=7)
    with pytest.raises(RunFolderError, match="taken over"):
        lock.require()


@pytest.mark.parametrize("ended", [False, True])
def test_a_resumed_run_takes_over_from_the_workers_of_its_dead_supervisor_and_never_the_other_way(
    tmp_path: Path, ended: bool
) -> None:
    control = str(tmp_path / "control")
    record_of(tmp_path, supervisor="1-2-3", supervisor_lock=control, generation=90)
    lock = lock_of(tmp_path, supervision=Supervision(identity=own_identity(), lock=control))
    lock.acquire(generation=1)
    assert lock.token == 8 and lock.begins
    lock.release()
    mine = {"supervisor": own_identity(), "supervisor_lock": control, "generation": 1, "released": ended}
    record_of(tmp_path, token=9, process="4-5-6", **mine)  # a worker of the resumed run
    stale = lock_of(tmp_path, supervision=Supervision(identity="1-2-3", lock=control))  # it was stopped all the while
    with pytest.raises(RunFolderError, match="taken over"):
        stale.acquire(generation=91)
    record = read_record(tmp_path / FILE_NAME)
    assert record is not None and record.token == 9


def test_another_machine_on_a_shared_disk_is_recognised_by_its_signs_of_life(tmp_path: Path) -> None:
    def shared(path: Path) -> bool:
        return True

    record_of(tmp_path, host="elsewhere")
    lock = lock_of(tmp_path, is_shared=shared, beat_s=0.1)
    lock.acquire()  # no sign of life came
    assert lock.token == 8
    lock.release()
    record_of(tmp_path, host="elsewhere")
    over = threading.Event()

    def live() -> None:
        while not over.wait(0.05):
            os.utime(tmp_path / FILE_NAME)

    thread = threading.Thread(target=live)
    thread.start()
    try:
        with pytest.raises(RunFolderError, match="process 1 on elsewhere"):
            lock_of(tmp_path, is_shared=shared, beat_s=0.5).acquire()
    finally:
        over.set()
        thread.join()


def test_a_writer_on_a_shared_disk_gives_signs_of_life_and_no_other_does(tmp_path: Path) -> None:
    lock = lock_of(tmp_path, is_shared=lambda path: True, beat_s=0.05)
    lock.acquire()
    before = os.stat(tmp_path / FILE_NAME).st_mtime_ns
    deadline = time.monotonic() + 10
    while os.stat(tmp_path / FILE_NAME).st_mtime_ns == before:
        assert time.monotonic() < deadline, "no sign of life"
        time.sleep(0.01)
    lock.release()
    assert not [thread for thread in threading.enumerate() if thread.name == "swell-heartbeat"]


def test_without_locks_the_record_alone_decides_and_the_user_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    record_of(tmp_path, process="1-2-3")  # of this machine, and dead
    messages: list[str] = []
    lock = lock_of(tmp_path, on_warning=messages.append, beat_s=60.0)
    lock.acquire()
    assert len(messages) == 1 and "without locks" in messages[0]
    record_of(tmp_path, process=identity_of(os.getppid()), pid=os.getppid())  # of this machine, and alive
    with pytest.raises(RunFolderError, match=f"process {os.getppid()}"):
        lock_of(tmp_path).acquire()
    lock.release()


def test_a_record_that_was_deleted_is_written_again_and_a_folder_that_was_deleted_is_not(tmp_path: Path) -> None:
    lock = lock_of(tmp_path / "run")
    lock.acquire()
    (tmp_path / "run" / FILE_NAME).unlink()
    assert not lock.holds()
    lock.require()
    assert lock.holds()
    os.rename(tmp_path / "run", tmp_path / "gone")
    with pytest.raises(FileNotFoundError):
        lock.require()
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"token": "x"}', '{"token": Infinity}', '{"token": 1, "host": 3}', "\0"]
)
def test_a_damaged_record_does_not_stop_a_run(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE_NAME).write_text(text)
    lock = lock_of(tmp_path)
    lock.acquire()
    assert lock.holds()


def test_a_folder_that_cannot_be_written_is_asked_for_again(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("in the way")
    lock = lock_of(tmp_path / "run")
    with pytest.raises(OSError):
        lock.acquire()
    assert not lock.may_write()
    (tmp_path / "run").unlink()
    assert lock.may_write() and lock.token == 1


STATE = {"model": {"weight": torch.ones(3)}}


@pytest.mark.parametrize("point", ["begun", "part model", "manifest", "synced"])
def test_a_save_that_loses_the_folder_at_any_point_is_not_published(tmp_path: Path, point: str) -> None:
    newer = RunLock(tmp_path)
    newer_store = Store(tmp_path, run_id="run", before_commit=newer.require)
    newer.on_taken = newer_store.take_over

    def lose(reached: str) -> None:
        if reached == point and not newer.token:
            newer.acquire()  # as if this process had been stopped here
            newer_store.save(STATE, samples=140, step=140)

    older = RunLock(tmp_path)
    store = Store(tmp_path, run_id="run", before_commit=older.require, on_point=lose)
    older.on_taken = store.take_over
    older.acquire()
    with pytest.raises(RunFolderError, match="taken over"):
        store.save(STATE, samples=41, step=41)
    assert [checkpoint.step for checkpoint in newer_store.all()] == [140]
    with pytest.raises(RunFolderError, match="taken over"):
        store.save(STATE, samples=42, step=42)
    assert not [name for name in os.listdir(store.root) if name.startswith(".")], "no draft is left"


def test_a_process_that_is_stopped_between_its_last_look_and_its_rename_publishes_nothing(tmp_path: Path) -> None:
    newer = Store(tmp_path, run_id="run")

    def lose(reached: str) -> None:
        if reached == "synced":
            newer.take_over()

    store = Store(tmp_path, run_id="run", on_point=lose)  # it looks nowhere: only the folder that is gone stops it
    with pytest.raises(CheckpointError):
        store.save(STATE, samples=41, step=41)
    assert newer.all() == []


def test_what_is_set_aside_is_complete_and_never_overwritten(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        Store(tmp_path, run_id="run").save(STATE, samples=number, step=number)
        moved = set_aside([tmp_path / "checkpoints", tmp_path / "events.jsonl"], folder=tmp_path)
        assert moved is not None and moved.name == f"set-aside-{number}"
    assert [Store(tmp_path / f"set-aside-{n}", run_id="run").newest().step for n in (1, 2, 3)] == [1, 2, 3]  # type: ignore[union-attr]
    assert set_aside([tmp_path / "checkpoints"], folder=tmp_path) is None


def test_the_record_says_in_plain_json_who_writes(tmp_path: Path) -> None:
    lock = lock_of(tmp_path)
    lock.acquire()
    record = json.loads((tmp_path / FILE_NAME).read_text())
    assert (record["pid"], record["token"], record["released"]) == (os.getpid(), 1, False)


def test_where_the_disk_takes_nothing_a_run_may_be_written_about_elsewhere_until_another_takes_over(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "run"
    folder.touch()  # no folder can be made here
    lock = RunLock(folder)
    assert not lock.may_write() and lock.may_write_elsewhere()
    folder.unlink()
    assert lock.may_write() and lock.may_write_elsewhere()
    newer = RunLock(folder)  # in the same process it takes over
    newer.acquire()
    assert not lock.may_write() and not lock.may_write_elsewhere()
    newer.release()
