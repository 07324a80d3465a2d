"""Kills processes that save: at every call of the file system in turn, or at random. Run it as a script.

The script is one process that forks the victims, so that torch is imported once.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from swell.checkpoint import AsyncSaver, Store
from swell.checkpoint.disk import ChecksumWriter

CALLS = ["fsync", "rename", "mkdir", "open", "close", "unlink", "rmdir"]


def state_at(step: int) -> dict[str, Any]:
    return {"model": {"weight": torch.full((3000,), float(step))}, "loop": {"step": step, "samples": 10 * step}}


def step_of(state: dict[str, Any]) -> int:
    """The step that a state was saved at; fails if its parts are of different steps."""
    step = state["loop"]["step"]
    assert torch.equal(state["model"]["weight"], torch.full((3000,), float(step)))
    assert state["loop"]["samples"] == 10 * step
    return step


def opened(folder: Path) -> Store:
    return Store(folder, run_id="run", keep=2, on_warning=lambda message: sys.exit(f"unexpected: {message}"))


def in_a_fork(work: Callable[[], None]) -> int:
    """Do the work in a forked process; its exit code: 0, or minus the signal that killed it."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        except BaseException as error:
            print(f"victim failed: {error!r}", file=sys.stderr)
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def call_before_each(act: Callable[[str], None]) -> None:
    """From now on, call ``act`` with a name before each call that changes a file, and before each write."""

    def watched(function: Any, name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            act(name)
            return function(*args, **kwargs)

        return call

    for name in CALLS:
        setattr(os, name, watched(getattr(os, name), name))
    ChecksumWriter.write = watched(ChecksumWriter.write, "write")


def kill_at(count: int) -> Callable[[str], None]:
    remaining = [count]

    def act(name: str) -> None:
        if remaining[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        remaining[0] -= 1

    return act


def kill_everywhere(folder: Path) -> None:
    """Kill a third save before each of its calls in turn, and print the step of the newest checkpoint after each."""
    original = folder / "original"
    for step in (1, 2):
        opened(original).save(state_at(step), samples=10 * step, step=step)
    point, exit_code = 0, -signal.SIGKILL
    while exit_code == -signal.SIGKILL:
        run = folder / str(point)
        shutil.copytree(original, run)

        def victim(run: Path = run, point: int = point) -> None:
            store = opened(run)
            call_before_each(kill_at(point))
            store.save(state_at(3), samples=30, step=3)

        exit_code = in_a_fork(victim)
        loaded = opened(run).load_newest()
        assert loaded is not None
        opened(run).save(state_at(4), samples=40, step=4)
        after = opened(run).load_newest()
        assert after is not None and step_of(after[1]) == 4
        leftovers = [name for name in os.listdir(run / "checkpoints") if name.startswith(".")]
        print(json.dumps({"exit_code": exit_code, "step": step_of(loaded[1]), "leftovers": leftovers}))
        shutil.rmtree(run)
        point += 1


def kill_at_random(folder: Path, rounds: int, seed: int) -> None:
    """Kill processes that save repeatedly, and print for each the last step it reported and the step on the disk."""
    chance = random.Random(seed)
    for _ in range(rounds):
        mine, theirs = os.pipe()
        pid = os.fork()
        if pid == 0:
            save_repeatedly(folder, theirs)
        os.close(theirs)
        reported = b"".join(os.read(mine, 8) for _ in range(chance.randint(2, 4)))  # the first says that it has started
        time.sleep(chance.uniform(0, 0.03))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        while chunk := os.read(mine, 1 << 16):
            reported += chunk
        os.close(mine)
        loaded = opened(folder).load_newest()
        on_disk = step_of(loaded[1]) if loaded is not None else 0
        print(json.dumps({"reported": int(reported[-8:]), "on_disk": on_disk}))


def save_repeatedly(folder: Path, pipe: int) -> None:
    def report(step: int) -> None:
        os.write(pipe, b"%08d" % step)

    store = opened(folder)
    newest = store.newest()
    step = newest.step if newest is not None else 0
    state = state_at(step)
    report(step)
    saver = AsyncSaver(store, on_saved=lambda saved: report(saved.checkpoint.step), on_warning=sys.exit)
    while True:
        step += 1
        # In place, while the last one may still be written: a missing copy would show.
        state["model"]["weight"].fill_(float(step))
        state["loop"].update(step=step, samples=10 * step)
        saver.save_async(state, samples=10 * step, step=step)
        time.sleep(0.001)


if __name__ == "__main__":
    if sys.argv[1] == "everywhere":
        kill_everywhere(Path(sys.argv[2]))
    else:
        kill_at_random(Path(sys.argv[2]), rounds=int(sys.argv[3]), seed=int(sys.argv[4]))
