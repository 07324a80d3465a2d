"""Strike the workers of a run at random, through its control socket, as a spot market or bad luck would."""

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
class Weather:
    """How often workers are struck, and by what."""

    mtbf_s: float  # mean time between failures of the run; the times between them are exponentially distributed
    kinds: tuple[str, ...] = ("kill",)
    seed: int = 0
    duration_s: float | None = None  # after which the run is stopped gracefully; None: it runs to its own end
    max_faults: int | None = None

    def __post_init__(self) -> None:
        unknown = [kind for kind in self.kinds if kind not in STRIKES]
        if unknown or not self.kinds:
            raise ConfigError(f"kinds {unknown} of faults are not known, expected some of {', '.join(STRIKES)}.")
        for name, value in (("mtbf", self.mtbf_s), ("duration", self.duration_s)):
            if value is not None and not value > 0:
                raise ConfigError(f"{name} is {value:g}, expected seconds above 0.")


class Chaos:
    """Strikes one worker after another in a thread of its own while ``with`` lasts; counts the strikes.

    A worker that is given notice leaves for good, so the number of workers is asked for again afterwards. The last
    worker that is allowed to go is killed instead: a notice to it would end the run.
    """

    def __init__(
        self, run_dir: str | Path, weather: Weather, *, say: Callable[[str], None] = lambda line: None
    ) -> None:
        self.strikes: Counter[str] = Counter()
        self.stopped = False  # whether the run was asked to stop since its time was over
        self._run_dir, self._weather, self._say = run_dir, weather, say
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._rage, name="swell-chaos", daemon=True)

    def __enter__(self) -> Chaos:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _rage(self) -> None:
        random, weather = Random(self._weather.seed), self._weather
        began = self._until_training()
        ends = float("inf") if weather.duration_s is None else began + weather.duration_s
        next_at = began + random.expovariate(1 / weather.mtbf_s)
        while not self._over.is_set():
            spent = weather.max_faults is not None and self.strikes.total() >= weather.max_faults
            until = ends if spent else min(next_at, ends)
            if self._over.wait(min(1.0, max(0.0, until - time.monotonic()))):
                return
            if time.monotonic() >= ends:
                self.stopped = self._ask("stop") is not None
                return
            if not spent and time.monotonic() >= next_at:
                self._strike(random)
                next_at = time.monotonic() + random.expovariate(1 / weather.mtbf_s)

    def _until_training(self) -> float:
        while not self._over.wait(0.1):
            status = self._ask("status")
            if status is not None and status["state"] == "training":
                break
        return time.monotonic()

    def _strike(self, random: Random) -> None:
        status = self._ask("status")
        if status is None or not status["members"]:
            return
        kind, rank, wanted = random.choice(self._weather.kinds), random.randrange(len(status["members"])), None
        if kind == "term":
            wanted = status["target"]
            kind = "term" if len(status["members"]) > min(status["allowed"]) else "kill"
        if self._ask("chaos", signal=STRIKES[kind], rank=rank) is not None:
            self.strikes[kind] += 1
            self._say(f"{STRIKES[kind]} to rank {rank} of {len(status['members'])}")
            if kind == "term" and not self._over.wait(0.5):
                self._ask("resize", workers=wanted)

    def _ask(self, word: str, **facts: Any) -> dict[str, Any] | None:
        """The run's answer; None where it has just begun, is ending or refuses."""
        try:
            return ask(self._run_dir, word, **facts)
        except ConfigError:
            return None
