"""Strike a run at random: its workers, through its control socket, its supervisor, and what is around them."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from swell.errors import ConfigError
from swell.supervisor.control import ask
from swell.supervisor.strike_signals import STRIKE_SIGNALS
from swell.supervisor.surroundings import SURROUNDINGS, struck

STRIKES = {"kill": "SIGKILL", "term": "SIGTERM", "stop": "SIGSTOP", **STRIKE_SIGNALS}
KINDS = (*STRIKES, "supervisor", *SURROUNDINGS)
_HOLD_S = 3.0  # how long a disk stays full, or a network bad


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosOptions:
    """How often workers are struck, and with which faults."""

    mtbf_s: float  # mean time between failures of the run, exponentially distributed
    kinds: tuple[str, ...] = ("kill",)
    seed: int = 0
    duration_s: float | None = None  # the run is stopped gracefully after this time; None: it runs to its own end
    max_faults: int | None = None

    def __post_init__(self) -> None:
        unknown = [kind for kind in self.kinds if kind not in KINDS]
        if unknown or not self.kinds:
            raise ConfigError(f"kinds is {','.join(self.kinds)!r}; expected some of {','.join(KINDS)}.")
        for name, value in (("mtbf", self.mtbf_s), ("duration", self.duration_s)):
            if value is not None and not value > 0:
                raise ConfigError(f"{name} is {value:g}; expected seconds above 0.")


class Chaos:
    """Strikes one worker after another, in its own thread, inside its ``with`` block; counts the strikes.

    A worker that gets notice leaves for good, so the previous number of workers is requested again afterwards. Where
    no more workers may leave, the worker is killed instead, because a notice would end the run.
    """

    def __init__(
        self, run_dir: str | Path, options: ChaosOptions, *, write: Callable[[str], None] = lambda line: None
    ) -> None:
        self.strikes: Counter[str] = Counter()
        self.struck_at: list[float] = []  # seconds since the epoch, one for each strike
        self.stopped = False  # whether the run was asked to stop because its time was over
        self._run_dir, self._options, self._write = run_dir, options, write
        self._supervisors: dict[int, list[int]] = {}  # those that were killed, with their workers
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="swell-chaos", daemon=True)

    def __enter__(self) -> Chaos:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def struck(self, supervisor: int) -> list[int] | None:
        """The workers of a supervisor that was killed here; None of another one."""
        return self._supervisors.get(supervisor)

    def _run(self) -> None:
        random, options = Random(self._options.seed), self._options
        began_at = self._wait_for_training()
        end_at = float("inf") if options.duration_s is None else began_at + options.duration_s
        next_at = began_at + random.expovariate(1 / options.mtbf_s)
        while not self._over.is_set():
            spent = options.max_faults is not None and self.strikes.total() >= options.max_faults
            until = end_at if spent else min(next_at, end_at)
            if self._over.wait(min(1.0, max(0.0, until - time.monotonic()))):
                return
            if time.monotonic() >= end_at:
                self.stopped = self._ask("stop") is not None
                return
            if not spent and time.monotonic() >= next_at:
                self._strike(random)
                next_at = time.monotonic() + random.expovariate(1 / options.mtbf_s)

    def _wait_for_training(self) -> float:
        while not self._over.wait(0.1):
            status = self._ask("status")
            if status is not None and status["state"] == "training":
                break
        return time.monotonic()

    def _strike(self, random: Random) -> None:
        status = self._ask("status")
        if status is None or not status["members"]:
            return
        kind, rank, target = random.choice(self._options.kinds), random.randrange(len(status["members"])), None
        if kind == "term":
            target = status["target"]
            kind = "term" if len(status["members"]) > min(status["allowed"]) else "kill"
        now = time.time()
        if kind == "supervisor":
            self._strike_supervisor(status)
        elif kind in SURROUNDINGS:
            self.strikes[kind] += 1
            self.struck_at += [now] * len(status["members"])
            self._write(f"{kind}: {SURROUNDINGS[kind]}")
            with struck(kind, Path(self._run_dir)):
                self._over.wait(_HOLD_S)
        elif self._ask("chaos", signal=STRIKES[kind], rank=rank) is not None:
            self.strikes[kind] += 1
            self._write(f"{kind} ({STRIKES[kind]}) to rank {rank} of {len(status['members'])}")
            self.struck_at.append(now)
            if kind == "term" and not self._over.wait(0.5):
                self._ask("resize", workers=target)

    def _strike_supervisor(self, status: dict[str, Any]) -> None:
        """Kill it, once training has begun; whoever runs it starts it again."""
        if status["state"] == "training":
            self._supervisors[status["pid"]] = [worker["pid"] for worker in status["workers"]]
            self.strikes["supervisor"] += 1
            self.struck_at += [time.time()] * len(status["workers"])
            self._write("supervisor: SIGKILL to swell run")
            os.kill(status["pid"], signal.SIGKILL)
            self._wait_for_training()

    def _ask(self, word: str, **facts: Any) -> dict[str, Any] | None:
        """The supervisor's answer; None while the run starts or ends, or if it refuses."""
        try:
            return ask(self._run_dir, word, **facts)
        except ConfigError:
            return None
