"""The log keeps every event through kills, torn lines and full disks, and never stands in the way of training."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swell.core.events import Stepped, Warned
from swell.errors import ConfigError
from swell.telemetry import LOG_NAME, EventLog, read_events
from swell.telemetry.log import MOST_HELD
from tests.telemetry.runs import a_run, stepped

MESSAGES = st.lists(st.text() | st.just("two\nlines"), max_size=8)


def warned(message: object) -> Warned:
    return Warned(time=0.0, message=str(message))


def fresh(folder: Path) -> Path:
    path = folder / LOG_NAME
    path.unlink(missing_ok=True)
    return path


def write(path: Path, *messages: object) -> None:
    log = EventLog(path)
    for message in messages:
        log.emit(warned(message))
    log.close()


def messages(path: Path) -> list[str]:
    return [event.message for event in read_events(path) if isinstance(event, Warned)]


def test_a_run_reads_back_as_it_was_told(tmp_path):
    log = EventLog(tmp_path / "deep" / "folder" / LOG_NAME)
    for event in a_run():
        log.emit(event)
    log.flush()
    assert list(read_events(log.path)) == a_run()  # before it is closed
    log.close()


@given(first=MESSAGES, second=MESSAGES)
def test_a_log_that_is_opened_again_goes_on(tmp_path_factory, first, second):
    path = fresh(tmp_path_factory.getbasetemp())
    write(path, *first)
    write(path, *second)
    assert messages(path) == first + second


@given(first=st.lists(st.text(), min_size=1, max_size=5), second=MESSAGES, data=st.data())
def test_wherever_a_line_is_torn_the_whole_ones_before_and_after_it_are_read(tmp_path_factory, first, second, data):
    path = fresh(tmp_path_factory.getbasetemp())
    write(path, *first)
    whole = path.read_bytes()
    cut = data.draw(st.integers(0, len(whole)))
    path.write_bytes(whole[:cut])
    ends = [i for i in range(len(whole)) if whole[i : i + 1] == b"\n"]
    kept = first[: sum(end <= cut for end in ends)]  # a line without its newline is whole as well
    assert messages(path) == kept
    write(path, *second)
    assert messages(path) == kept + second


def test_blocks_of_zeros_after_a_power_cut_are_passed_over(tmp_path):
    path = tmp_path / LOG_NAME
    write(path, "before")
    with path.open("ab") as file:
        file.write(b"\0" * 100)
    write(path, "after")
    assert messages(path) == ["before", "after"]


STEPS = """
import os, signal, sys, time
from swell.core.events import Stepped, Warned
from swell.telemetry import EventLog
from tests.telemetry.runs import stepped
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background
log = EventLog(sys.argv[1], small=True)
def step(first, last):
    for number in range(first, last): log.emit(stepped(time=number / 10, step=number, samples=64 * number))
"""


def run(code: str, path: Path) -> tuple[int, list[int | str]]:
    """The exit status of a process that writes a log, and the steps and messages that are in it afterwards."""
    done = subprocess.run([sys.executable, "-c", STEPS + code, str(path)], stderr=subprocess.DEVNULL, timeout=60)
    return done.returncode, what_is_in(path)


def what_is_in(path: Path) -> list[int | str]:
    events = read_events(path)
    return [event.step if isinstance(event, Stepped) else getattr(event, "message", "") for event in events]


def test_a_killed_process_loses_no_line_but_the_steps_that_are_held(tmp_path):
    code = (
        "step(1, 4)\n"
        "for number in range(20): log.emit(Warned(time=0.0, message=str(number)))\n"
        "step(4, 7)\n"
        "log.flush()\n"
        "step(7, 9)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    status, found = run(code, tmp_path / LOG_NAME)
    assert status == -signal.SIGKILL
    held = [[], [7], [7, 8]]  # the thread may have written them
    assert found in [[1, 2, 3, *map(str, range(20)), 4, 5, 6, *more] for more in held]


def test_a_log_that_is_written_at_once_holds_no_step(tmp_path):
    code = "log = EventLog(sys.argv[1], at_once=True)\nstep(1, 4)\nos.kill(os.getpid(), signal.SIGKILL)\n"
    assert run(code, tmp_path / LOG_NAME) == (-signal.SIGKILL, [1, 2, 3])


def test_steps_are_in_the_file_soon_though_nothing_else_happens(tmp_path):
    log, path = EventLog(tmp_path / LOG_NAME, small=True), tmp_path / LOG_NAME
    give_up_at, written = time.monotonic() + 30, 0
    for number in range(1, 4):
        log.emit(stepped(time=number / 10, step=number, samples=64 * number))
        while written < number and time.monotonic() < give_up_at:
            time.sleep(0.01)
            written = len(what_is_in(path))
    assert what_is_in(path) == [1, 2, 3]
    log.close()


@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("", 0),
        ("raise RuntimeError", 1),
        ("sys.exit(3)", 3),
        ("signal.raise_signal(signal.SIGINT)", -signal.SIGINT),
        ("signal.signal(signal.SIGTERM, lambda *_: sys.exit(143)); signal.raise_signal(signal.SIGTERM)", 143),
    ],
)
def test_a_process_that_ends_by_itself_or_by_an_error_loses_no_step(tmp_path, end, status):
    assert run(f"step(1, 9)\n{end}\n", tmp_path / LOG_NAME) == (status, list(range(1, 9)))


def test_a_forked_process_writes_its_own_events_and_none_of_its_parent(tmp_path):
    code = (
        "step(1, 9)\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    step(100, 103)\n"
        "    sys.exit()\n"
        "os.waitpid(child, 0)\n"
        "step(9, 12)\n"
    )
    status, found = run(code, tmp_path / LOG_NAME)
    assert status == 0
    assert sorted(map(int, found)) == [*range(1, 12), *range(100, 103)]
    assert [step for step in found if int(step) < 100] == list(range(1, 12))


@given(st.lists(st.booleans(), max_size=600))
def test_events_are_in_the_log_in_their_order_whenever_steps_are_written(tmp_path_factory, kinds):
    path = fresh(tmp_path_factory.getbasetemp())
    log, told = EventLog(path, small=True), []
    for number, is_step in enumerate(kinds, start=1):
        told.append(number if is_step else str(number))
        log.emit(stepped(time=number / 10, step=number, samples=64 * number) if is_step else warned(number))
    log.close()
    assert what_is_in(path) == told


def test_a_log_that_another_process_writes_now_takes_none_of_the_steps_that_were_held(tmp_path, caplog):
    mine = [True]
    log = EventLog(tmp_path / LOG_NAME, small=True, may_write=lambda: mine[0])
    log.emit(stepped(step=1, samples=64))
    log.flush()
    log.emit(stepped(step=2, samples=128))
    mine[0] = False  # this process was stopped, and continues when its run has another writer
    log.emit(warned("too late"))
    log.close()
    assert what_is_in(log.path) in ([1], [1, 2])  # the thread may have written the second in time
    assert "another process writes this run's folder" in caplog.text


def test_a_full_disk_keeps_no_steps_in_memory_and_the_next_one_is_whole(tmp_path, monkeypatch, caplog):
    log = EventLog(tmp_path / LOG_NAME, small=True)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", _no_room)
        for number in range(1, 2 * MOST_HELD):
            log.emit(stepped(time=number / 10, step=number, samples=64 * number))
        log.flush()
    log.emit(stepped(time=1000.0, step=1000, samples=64_000))
    log.close()
    assert what_is_in(log.path) == [1000]
    assert len(caplog.records) == 1 and "No space left" in caplog.text


def _no_room(file: int, data: bytes) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full, a disk that is always full")
def test_a_full_disk_costs_one_warning_and_not_the_run(caplog, monkeypatch, tmp_path):
    monkeypatch.setattr("swell.telemetry.log_file.open_regular", lambda path, flags: os.open("/dev/full", os.O_RDWR))
    log = EventLog(tmp_path / "events.jsonl")
    for number in range(5):
        log.emit(warned(number))
    log.close()
    assert len(caplog.records) == 1
    assert caplog.records[0].levelno == logging.WARNING
    assert "No space left" in caplog.text and "training goes on" in caplog.text


def test_a_disk_that_fills_up_in_a_line_and_is_freed_loses_only_that_line(tmp_path, monkeypatch, caplog):
    log = EventLog(tmp_path / LOG_NAME)
    log.emit(warned("before"))
    room = [10]
    real = os.write

    def a_disk_with_little_room(file, data):
        if not room[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken = real(file, data[: room[0]])
        room[0] -= taken
        return taken

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", a_disk_with_little_room)
        log.emit(warned("torn"))
        log.emit(warned("lost"))
    log.emit(warned("after"))
    log.close()
    assert messages(log.path) == ["before", "after"]
    assert len(caplog.records) == 1


def test_a_folder_that_vanishes_costs_one_warning_and_the_log_goes_on_when_it_is_back(tmp_path, caplog):
    log = EventLog(tmp_path / "run" / LOG_NAME)
    log.emit(warned("before"))
    shutil.rmtree(tmp_path / "run")
    log.emit(warned("lost"))
    log.emit(warned("lost as well"))
    assert len(caplog.records) == 1 and "cannot be written" in caplog.text
    (tmp_path / "run").mkdir()
    log.emit(warned("after"))
    log.close()
    assert messages(log.path) == ["after"]
    assert len(caplog.records) == 1


def test_a_folder_that_cannot_be_made_costs_one_warning(tmp_path, caplog):
    (tmp_path / "file").write_text("not a folder")
    log = EventLog(tmp_path / "file" / LOG_NAME)
    log.emit(warned("lost"))
    log.close()
    assert len(caplog.records) == 1


def test_closing_twice_is_harmless(tmp_path):
    log = EventLog(tmp_path / LOG_NAME)
    log.close()
    log.close()


def test_a_file_that_is_no_log_is_refused_with_the_line(tmp_path):
    path = tmp_path / LOG_NAME
    write(path, "fine")
    with path.open("a") as file:
        file.write('{"event": "dream", "time": 0.0}\n')
    with pytest.raises(ConfigError, match=rf"{LOG_NAME}, line 2"):
        list(read_events(path))
    with pytest.raises(ConfigError, match=r"nowhere\.jsonl"):
        list(read_events(tmp_path / "nowhere.jsonl"))
