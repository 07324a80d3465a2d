"""Members of a generation find what the others wrote, whole, whoever is killed on the way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path

import pytest

from swell.runtime.rendezvous import RendezvousStore, SupersededError


def store(folder: Path, *, give_up: bool = False, timeout_s: float = 20.0) -> RendezvousStore:
    return RendezvousStore(str(folder / "generation-1"), give_up=lambda: give_up, timeout_s=timeout_s)


def test_every_member_reads_what_another_wrote(tmp_path: Path) -> None:
    one, other = store(tmp_path), store(tmp_path)
    one.set("prefix/a key, of any length " + "x" * 500, b"\x00\xff")
    one.set("text", "größe")
    assert other.get("prefix/a key, of any length " + "x" * 500) == b"\x00\xff"
    assert other.get("text") == "größe".encode() and not other.check(["text", "another"])
    one.set("text", "new")
    assert other.get("text") == b"new"
    assert other.delete_key("text") and not one.check(["text"]) and not one.delete_key("text")


def test_no_addition_is_lost(tmp_path: Path) -> None:
    def add() -> None:
        mine = store(tmp_path)
        for _ in range(50):
            mine.add("count", 2)

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store(tmp_path).add("count", 0) == 400


def test_a_wait_ends_when_a_newer_generation_comes_or_after_its_time(tmp_path: Path) -> None:
    with pytest.raises(SupersededError):
        store(tmp_path, give_up=True).get("missing")
    with pytest.raises(TimeoutError, match="missing"):
        store(tmp_path, timeout_s=0.01).wait(["missing"], timedelta(seconds=99))


def test_a_member_that_is_killed_while_it_writes_leaves_nothing_that_holds_up_the_others(tmp_path: Path) -> None:
    script = (
        "import sys\nfrom swell.runtime.rendezvous import RendezvousStore\n"
        "store = RendezvousStore(sys.argv[1], give_up=lambda: False, timeout_s=9.0)\n"
        "print('ready', flush=True)\n"
        "while True:\n    store.add('count', 1)\n    store.set('value', b'x' * 100_000)\n"
    )
    line = [sys.executable, "-c", script, str(tmp_path / "generation-1")]
    with subprocess.Popen(line, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        mine = store(tmp_path)
        for _ in range(50):
            assert mine.get("value") == b"x" * 100_000
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert mine.get("value") == b"x" * 100_000
    assert mine.add("count", 1) > 1
