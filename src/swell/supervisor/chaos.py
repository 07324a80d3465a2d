"""Strike the workers of a run at random, through its control socket, as a spot market would."""

from __future__ import annotations

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

STRIKES = {"kill": "SIGKILL", "term": "SIGTERM", "stop": "SIGSTOP"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosOptions:
    """How often workers are struck, and with which faults."""

    mtbf_s: float  # mean time between failures of the run, exponentially distributed
    kinds: tuple[str, ...] = ("kill",)
    seed: int = 0
    duration_s: float | None = None  # the run is stopped gracefully after this time; None: it runs to its own end
    max_faults: int | None = None

    def __post_init__(self) -> None:
        unknown = [kind for kind in self.kinds if kind not in STRIKES]
        if unknown or not self.kinds:
            raise ConfigError(f"kinds is {','.join(self.kinds)!r}; expected some of {','.join(STRIKES)}.")
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
        self.stopped = False  # whether the run was asked to stop because its time was over
        self._run_dir, self._options, self._write = run_dir, options, write
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="swell-chaos", daemon=True)

    def __enter__(self) -> Chaos:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

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
        if self._ask("chaos", signal=STRIKES[kind], rank=rank) is not None:
            self.strikes[kind] += 1
            self._write(f"{STRIKES[kind]} to rank {rank} of {len(status['members'])}")
            if kind == "term" and not self._over.wait(0.5):
                self._ask("resize", workers=target)

    def _ask(self, word: str, **facts: Any) -> dict[str, Any] | None:
        """The supervisor's answer; None while the run starts or ends, or if it refuses."""
        try:
            return ask(self._run_dir, word, **facts)
        except ConfigError:
            return None
