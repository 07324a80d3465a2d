"""A notice is a flag: nothing is interrupted, and whoever had the signals gets them back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from swell.errors import ConfigError
from swell.runtime.notices import Notices
from swell.supervisor.notice import Notice


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1", "SIGUSR2", "SIGINT"])
def test_a_signal_becomes_a_notice_with_a_deadline(name: str) -> None:
    with Notices(grace_s=30) as notices:
        assert notices.notice() is None
        os.kill(os.getpid(), getattr(signal, name))
        notice = notices.notice()
    assert notice is not None
    assert (notice.source, notice.leave) == (name, False)
    assert notice.seconds_left(now=notice.time) == pytest.approx(30)


def test_previous_handlers_come_back_even_after_a_notice() -> None:
    before = {name: signal.getsignal(getattr(signal, name)) for name in ("SIGTERM", "SIGUSR1", "SIGUSR2", "SIGINT")}
    with Notices():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
    assert {name: signal.getsignal(getattr(signal, name)) for name in before} == before


def test_the_first_notice_is_kept() -> None:
    with Notices() as notices:
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGTERM)
        notice = notices.notice()
    assert notice is not None
    assert notice.source == "SIGUSR1"


def test_a_file_that_appears_is_a_notice(tmp_path: Path) -> None:
    notices = Notices(signals=(), file=tmp_path / "stop", every_s=0.0)
    assert notices.notice() is None
    (tmp_path / "stop").touch()
    notice = notices.notice()
    assert notice is not None
    assert notice.source == f"file {tmp_path / 'stop'}"


def test_file_and_callable_are_looked_at_no_more_often_than_asked(tmp_path: Path) -> None:
    calls: list[int] = []

    def watch() -> bool:
        calls.append(1)
        return False

    notices = Notices(signals=(), watch=watch, every_s=3600.0)
    for _ in range(100):
        assert notices.notice() is None
    assert len(calls) == 1


def test_a_callable_may_say_yes_or_hand_over_a_notice_of_its_own() -> None:
    def preempted() -> bool:
        return True

    own = Notice(source="engine", time=1.0, deadline=2.0, leave=True)
    said = Notices(signals=(), watch=preempted).notice()
    assert said is not None
    assert said.source == "preempted"
    assert Notices(signals=(), watch=lambda: own).notice() is own


def test_other_threads_cannot_take_signals_but_can_watch() -> None:
    caught: list[ConfigError] = []

    def elsewhere() -> None:
        Notices(signals=()).install()
        try:
            Notices().install()
        except ConfigError as error:
            caught.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert "main thread" in str(caught[0])


def test_signals_that_are_no_notices_are_refused() -> None:
    with pytest.raises(ConfigError, match="SIGKILL"):
        Notices(signals=["SIGKILL"])


def run_script(body: str) -> subprocess.Popen[str]:
    script = textwrap.dedent(body)
    return subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)


def test_the_second_ctrl_c_ends_the_process_at_once() -> None:
    process = run_script("""
        import time
        from swell.runtime.notices import Notices
        with Notices() as notices:
            print("listening", flush=True)
            while notices.notice() is None:
                time.sleep(0.01)
            print(notices.notice().source, flush=True)
            time.sleep(60)
    """)
    assert process.stdout is not None
    assert process.stdout.readline() == "listening\n"
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "SIGINT\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=30) == -signal.SIGINT
    process.stdout.close()


def test_forked_children_keep_their_ways_and_outlive_the_first_ctrl_c() -> None:
    process = run_script("""
        import os, signal, time
        from swell.runtime.notices import Notices
        with Notices() as notices:
            child = os.fork()
            if child == 0:
                print("child", flush=True)
                time.sleep(60)
            time.sleep(0.3)
            os.kill(child, signal.SIGINT)
            time.sleep(0.3)
            print(os.waitpid(child, os.WNOHANG)[0], flush=True)
            os.kill(child, signal.SIGTERM)
            print(os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGTERM, notices.notice(), flush=True)
    """)
    assert process.communicate(timeout=30)[0].split("\n") == ["child", "0", "True None", ""]


def test_a_notice_without_a_deadline_leaves_all_the_time_there_is() -> None:
    assert Notice(source="x", time=time.time()).seconds_left() == float("inf")
