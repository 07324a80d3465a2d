"""Strike a run at random: its workers, through its control socket, its supervisor, and what is around them."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from swell.core.regular_files import read_regular
from swell.errors import ConfigError
from swell.supervisor.control import ask
from swell.supervisor.process_identity import identity_of, is_running
from swell.supervisor.relaunch import Tap
from swell.supervisor.run_dir import RunDir
from swell.supervisor.strike_signals import STRIKE_SIGNALS
from swell.supervisor.surroundings import NETWORK, SURROUNDINGS, struck

STRIKES = {"kill": "SIGKILL", "term": "SIGTERM", "stop": "SIGSTOP", **STRIKE_SIGNALS}
OF_THE_RUN = {
    "resize": "another number of workers",
    "storm": "eight resizes in a row",
    "supervisor": "SIGKILL to swell run",
    "stale": "SIGSTOP to a worker, SIGKILL to swell run; the worker continues when the run has been resumed",
    "writer": "the script is started a second time on the same folder",
    "cleaner": "the private folder in the temporary directory is removed",
    "terminal": "nobody reads the output for some seconds",
}
RELAUNCHED = ("supervisor", "stale", "terminal")  # these need a supervisor in a process of its own
KINDS = (*STRIKES, *OF_THE_RUN, *SURROUNDINGS)
_HOLD_S = 3.0  # how long a disk stays full, a network bad or a terminal unread
_STORM, _STORM_S = 8, 0.05  # resizes in a storm, and the time between two
_GIVE_UP_S = 120.0  # for a second writer or a stale worker to end
_ANSWER_S = 2.0  # within which the supervisor knows what the last strike did


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosOptions:
    """How often a run is struck, and with which faults; a kind that is named twice comes twice as often."""

    mtbf_s: float  # mean time between strikes, exponentially distributed
    kinds: tuple[str, ...] = ("kill",)
    at_once: int = 1  # most strikes at one moment
    seed: int = 0
    duration_s: float | None = None  # the run is stopped gracefully after this time; None: it runs to its own end
    max_faults: int | None = None
    stop_after: int | None = None  # the run is stopped gracefully after this many strikes

    def __post_init__(self) -> None:
        unknown = [kind for kind in self.kinds if kind not in KINDS]
        if unknown or not self.kinds:
            raise ConfigError(f"kinds is {','.join(self.kinds)!r}; expected some of {','.join(KINDS)}.")
        for name, value in (("mtbf", self.mtbf_s), ("duration", self.duration_s)):
            if value is not None and not value > 0:
                raise ConfigError(f"{name} is {value:g}; expected seconds above 0.")
        for name, number in (("at-once", self.at_once), ("stop-after", self.stop_after)):
            if number is not None and number < 1:
                raise ConfigError(f"{name} is {number}; expected 1 or more.")


class Chaos:
    """Strikes in its own thread, inside its ``with`` block; counts the strikes.

    What lasts for some seconds (a full disk, a second writer) has a thread of its own, so that other strikes come
    meanwhile. A worker that gets notice leaves for good, so the previous number of workers is requested again
    afterwards. Where no more workers may leave, the worker is killed instead, because a notice would end the run.

    ``start_again`` starts the script a second time, for ``writer``; ``tap`` is what reads the output, for ``terminal``.
    """

    def __init__(
        self,
        run_dir: str | Path,
        options: ChaosOptions,
        *,
        write: Callable[[str], None] = lambda line: None,
        start_again: Callable[[], subprocess.Popen[bytes]] | None = None,
        tap: Tap | None = None,
    ) -> None:
        self.strikes: Counter[str] = Counter()
        self.struck_at: list[float] = []  # seconds since the epoch, one for each worker that a strike may end
        self.stopping = False  # whether the run is asked to stop, because its time is over
        self.left_behind = 0  # workers that outlived their run
        self.let_in = 0  # second writers that were not refused
        self._run_dir, self._options, self._write = run_dir, options, write
        self._start_again, self._tap = start_again, tap
        self._random = Random(options.seed)
        self._supervisors: dict[int, list[int]] = {}  # those that were killed, with their workers
        self._lasting: dict[str, threading.Thread] = {}  # strikes that are under way, by what they strike
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="swell-chaos", daemon=True)

    def __enter__(self) -> Chaos:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._end_lasting()

    def struck(self, supervisor: int) -> list[int] | None:
        """The workers of a supervisor that was killed here; None of another one.

        Returns when the disk is as it was, because no run can be resumed before.
        """
        thread = self._lasting.get("disk")
        if thread is not None:
            thread.join()
        return self._supervisors.get(supervisor)

    def _run(self) -> None:
        options = self._options
        self._wait_for_training()
        began_at = time.monotonic()
        end_at = math.inf if options.duration_s is None else began_at + options.duration_s
        next_at = began_at + self._random.expovariate(1 / options.mtbf_s)
        while not self._over.is_set():
            total = self.strikes.total()
            if time.monotonic() >= end_at or (options.stop_after is not None and total >= options.stop_after):
                self._stop()
                return
            spent = options.max_faults is not None and total >= options.max_faults
            until = end_at if spent else min(next_at, end_at)
            if self._over.wait(min(1.0, max(0.0, until - time.monotonic()))):
                return
            if not spent and time.monotonic() >= next_at:
                for _ in range(self._random.randint(1, options.at_once)):
                    self._strike(end_at)
                next_at = time.monotonic() + self._random.expovariate(1 / options.mtbf_s)

    def _stop(self) -> None:
        """Ask the run to stop, once what lasts is over; a supervisor that was killed must be there again first."""
        self._end_lasting()
        self._over.wait(_ANSWER_S)  # a worker that was struck just now has not ended yet
        self._wait_for_training()
        self.stopping = True  # before it hears of it, so that nobody resumes it
        while self._ask("stop") is None and not self._over.wait(0.1):
            pass

    def _wait_for_training(self, end_at: float = math.inf) -> dict[str, Any] | None:
        """The status of the run as soon as it trains; None where it is over before, or at ``end_at``."""
        while time.monotonic() < end_at and not self._over.wait(0.1):
            status = self._ask("status")
            if status is not None and status["state"] == "training" and status["pid"] not in self._supervisors:
                return status
        return None

    def _strike(self, end_at: float) -> None:
        status = self._ask("status")
        if status is None or not status["members"] or status["pid"] in self._supervisors:
            return
        kind = self._random.choice(self._options.kinds)
        if kind in STRIKES:
            self._strike_worker(kind, status)
        elif kind in ("supervisor", "stale"):
            self._strike_supervisor(kind, end_at)
        elif kind == "resize":
            others = [workers for workers in status["allowed"] if workers != status["target"]]
            if others and self._ask("resize", workers=self._random.choice(others)) is not None:
                self._count(kind, workers=max(status["allowed"]) - 1)
        elif kind == "storm":
            self._last("storm", kind, lambda: self._storm(status["allowed"]))
        elif kind == "writer":
            self._last("writer", kind, self._write_too)
        elif kind == "cleaner":
            if status["private_folder"]:
                shutil.rmtree(status["private_folder"], ignore_errors=True)
                self._count(kind)
        elif kind == "terminal":
            self._last("terminal", kind, self._leave_unread)
        else:
            struck_part = "network" if kind in NETWORK else "disk"
            self._last(struck_part, kind, lambda: self._hold(kind), workers=len(status["members"]))

    def _count(self, kind: str, *, workers: int = 0, text: str = "") -> None:
        """Note a strike that may have ended this many workers."""
        self.strikes[kind] += 1
        self.struck_at += [time.time()] * workers
        self._write(f"{kind}: {text or OF_THE_RUN.get(kind) or SURROUNDINGS[kind]}")

    def _last(self, part: str, kind: str, act: Callable[[], None], *, workers: int = 0) -> None:
        """Begin a strike that lasts, unless the same part is being struck."""
        thread = self._lasting.get(part)
        if thread is None or not thread.is_alive():
            self._count(kind, workers=workers)
            self._lasting[part] = threading.Thread(target=act, name=f"swell-chaos-{part}", daemon=True)
            self._lasting[part].start()

    def _end_lasting(self) -> None:
        for thread in self._lasting.values():
            thread.join()

    def _strike_worker(self, kind: str, status: dict[str, Any]) -> None:
        if kind == "term" and len(status["members"]) <= min(status["allowed"]):
            kind = "kill"
        rank = self._random.randrange(len(status["members"]))
        if self._ask("chaos", signal=STRIKES[kind], rank=rank) is not None:
            self._count(kind, workers=1, text=f"{STRIKES[kind]} to rank {rank} of {len(status['members'])}")
            if kind == "term" and not self._over.wait(0.5):
                self._ask("resize", workers=status["target"])

    def _strike_supervisor(self, kind: str, end_at: float) -> None:
        """Kill it as soon as the run trains; whoever runs it starts it again.

        It waits, because a run under many strikes hardly ever trains at the moment of one. A second writer that is
        under way is waited for too: it would be let in.
        """
        writer = self._lasting.get("writer")
        if writer is not None:
            writer.join(None if end_at == math.inf else max(0.0, end_at - time.monotonic()))
        status = self._wait_for_training(end_at)
        if status is None:
            return
        workers = [worker["pid"] for worker in status["workers"]]
        if kind == "stale":
            ranked = [worker["pid"] for worker in status["workers"] if worker["rank"] is not None]
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._random.choice(ranked), signal.SIGSTOP)
        self._supervisors[status["pid"]] = workers
        self._count(kind, workers=len(workers))
        left = {pid: identity_of(pid) or "" for pid in workers}
        with contextlib.suppress(ProcessLookupError):
            os.kill(status["pid"], signal.SIGKILL)
        thread = threading.Thread(target=self._see_off, args=(left,), name="swell-chaos-workers", daemon=True)
        self._lasting[f"workers of {status['pid']}"] = thread
        thread.start()

    def _see_off(self, left: dict[int, str]) -> None:
        """Workers without a supervisor end; those that were stopped continue when their run has been resumed."""
        self._wait_for_training()
        _signal([pid for pid, identity in left.items() if is_running(identity)], signal.SIGCONT)
        deadline = time.monotonic() + _GIVE_UP_S
        while left and time.monotonic() < deadline:
            left = {pid: identity for pid, identity in left.items() if is_running(identity)}
            time.sleep(0.1)
        self.left_behind += len(left)
        _signal(left, signal.SIGKILL)

    def _hold(self, kind: str) -> None:
        with struck(kind, Path(self._run_dir)):
            self._over.wait(_HOLD_S)

    def _leave_unread(self) -> None:
        if self._tap is not None:
            with self._tap.shut():
                self._over.wait(_HOLD_S)

    def _storm(self, allowed: list[int]) -> None:
        random = Random(self.strikes.total())
        for _ in range(_STORM):
            if self._over.wait(_STORM_S):
                return
            if self._ask("resize", workers=random.choice(allowed)) is not None:
                self.struck_at += [time.time()] * (max(allowed) - 1)  # those who are sent away may be the last to know

    def _write_too(self) -> None:
        """Start the script a second time; it must be refused."""
        if self._start_again is None:
            return
        process, deadline = self._start_again(), time.monotonic() + _GIVE_UP_S
        writes = False
        while process.poll() is None and time.monotonic() < deadline and not self._over.wait(0.1):
            writes = writes or self._writer() == process.pid
        if process.poll() is None:  # a slow machine
            process.kill()
        self.let_in += process.wait() == 0 or writes

    def _writer(self) -> int | None:
        """The process that writes the run's folder, as its record says."""
        try:
            return json.loads(read_regular(RunDir(self._run_dir).job_folder / "writer.json", limit=2**16))["pid"]
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _ask(self, word: str, **facts: Any) -> dict[str, Any] | None:
        """The supervisor's answer; None while the run starts or ends, or if it refuses."""
        try:
            return ask(self._run_dir, word, **facts)
        except ConfigError:
            return None


def _signal(processes: Iterable[int], number: int) -> None:
    for pid in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
