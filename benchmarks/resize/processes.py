"""Runs that are started, watched through what their workers note, and never left behind."""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from model import read_notes

from swell.supervisor.sizes import parse_sizes
from swell.supervisor.torchrun import torchrun_command, torchrun_environment

HERE = Path(__file__).parent
PATIENCE_S = 240.0


def about(began: str, loads: Sequence[float]) -> dict[str, Any]:
    """When and where something was measured, and how busy the machine was."""
    return {
        "date": began,
        "torch": torch.__version__,
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "load": {"least": round(min(loads), 1), "most": round(max(loads), 1)},
    }


@contextmanager
def started(
    command: Sequence[str], folder: Path, environ: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen]:
    """A process with its output in ``folder/terminal.txt``; it and all whose work is noted there end with the block."""
    with (folder / "terminal.txt").open("ab") as output:
        environ = {**os.environ, "OMP_NUM_THREADS": "1", **(environ or {})}
        process = subprocess.Popen(command, env=environ, stdout=output, stderr=subprocess.STDOUT, cwd=HERE)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for pid in {int(path.stem.partition("-")[2]) for path in folder.glob("steps-*.jsonl")}:
            with contextlib.suppress(ProcessLookupError, OSError):
                if str(folder) in Path(f"/proc/{pid}/cmdline").read_text():  # ours, and not a number used again
                    os.kill(pid, signal.SIGKILL)


def swell_run(folder: Path, *options: str, script: Sequence[str] = ()) -> list[str]:
    """The line that starts ``train.py`` under ``swell run``."""
    line = [sys.executable, "-m", "swell", "run", "--run-dir", str(folder), "--show", "none", "--max-restarts", "99"]
    return [*line, *options, str(HERE / "train.py"), str(folder), *script]


def torchrun(sizes: str, *, per_node: int, port: int, script: Sequence[str]) -> list[str]:
    """torchrun's line with the settings that were found best, those of ``swell run --engine torchrun``."""
    return torchrun_command(
        list(script),
        sizes=parse_sizes(sizes),
        per_node=per_node,
        rendezvous=f"127.0.0.1:{port}",
        max_restarts=99,
    )


def torchrun_variables() -> dict[str, str]:
    return torchrun_environment(os.environ)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for(folder: Path, reached: Callable[[list[dict[str, Any]]], Any]) -> Any:
    """The first true value of ``reached(notes)``."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        value = reached(read_notes(folder))
        if value:
            return value
        time.sleep(0.2)
    raise TimeoutError(
        f"waited in vain; see {folder / 'terminal.txt'}:\n{(folder / 'terminal.txt').read_text()[-2000:]}"
    )


def usual(notes: list[dict[str, Any]]) -> float:
    """The median time from step to step of the process that noted most."""
    pids = [note["pid"] for note in notes]
    most = max(set(pids), key=pids.count)
    times = [note["time"] for note in notes if note["pid"] == most]
    return statistics.median(b - a for a, b in pairwise(times))


def kill(folder: Path, pid: int, where: str) -> float:
    """Have a worker killed ``between`` steps or in the middle of a ``reduce``; when that was."""
    aside = folder / "kill~"
    aside.write_text(f"{pid} {where}")
    aside.replace(folder / "kill")
    return wait_for(folder, lambda notes: (folder / f"killed-{pid}").exists()) and float(
        (folder / f"killed-{pid}").read_text()
    )


def lull_of_survivors(notes: list[dict[str, Any]], *, since: float, before: int, after: int) -> dict[str, float] | None:
    """How long those that stayed did no step when the world changed from ``before`` to ``after`` workers.

    The time between their last step in the old world and their first in the new one, less a usual step; of several
    survivors the longest. None while nobody has come to a step of the new world.
    """
    found = []
    for pid in {note["pid"] for note in notes}:
        own = [note for note in notes if note["pid"] == pid]
        for last, first in pairwise(own):
            if first["time"] > since and (last["replicas"], first["replicas"]) == (before, after):
                found.append((first["time"] - last["time"], first["time"] - since))
                break
    if len(found) < min(before, after):
        return None
    return {"stood_still_s": max(gap for gap, _ in found) - usual(notes), "event_to_step_s": max(s for _, s in found)}


def lull_of_restart(notes: list[dict[str, Any]], *, since: float) -> dict[str, float] | None:
    """How long nobody did a step when all workers were started again; None while none of the new ones has.

    The time between the last step of the old processes and the first of the new ones, less a usual step.
    """
    old = {note["pid"] for note in notes if note["time"] <= since}
    new = [note for note in notes if note["pid"] not in old]
    if not new:
        return None
    last = max(note["time"] for note in notes if note["pid"] in old and note["time"] <= new[0]["time"])
    return {"stood_still_s": new[0]["time"] - last - usual(notes), "event_to_step_s": new[0]["time"] - since}
