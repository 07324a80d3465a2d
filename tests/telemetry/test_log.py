"""The log keeps every event through kills, torn lines and full disks, and never stands in the way of training."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swell.core.events import Warned
from swell.errors import ConfigError
from swell.telemetry import LOG_NAME, EventLog, read_events
from tests.telemetry.runs import a_run

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
    assert list(read_events(log.path)) == a_run()  # before it is closed: every line is there at once
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


def test_a_killed_process_loses_no_line(tmp_path):
    path = tmp_path / LOG_NAME
    code = (
        "import os, signal, sys\n"
        "from swell.core.events import Warned\n"
        "from swell.telemetry import EventLog\n"
        "log = EventLog(sys.argv[1])\n"
        "for number in range(100): log.emit(Warned(time=0.0, message=str(number)))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(path)])
    assert killed.returncode == -signal.SIGKILL
    assert messages(path) == [str(number) for number in range(100)]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full, a disk that is always full")
def test_a_full_disk_costs_one_warning_and_not_the_run(caplog, monkeypatch, tmp_path):
    monkeypatch.setattr("swell.telemetry.log.open_regular", lambda path, flags: os.open("/dev/full", os.O_RDWR))
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
