"""A run that only measures: the user's script as it is, its weights left alone, ended when enough is known."""

from __future__ import annotations

import json
import math
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from swell.core.layout_times import LayoutTimes
from swell.core.protocols import Policy
from swell.core.types import Layout, Observation, StepTimes
from swell.errors import ConfigError
from swell.loop.statistics import Statistics

if TYPE_CHECKING:
    from swell.job.job import Job

Micro = int | tuple[int | None, int | None] | None
# Why measuring came to its end: by the figures, the clock or the script; or nothing was to be measured.
Ended = Literal["sure", "time", "script", "asked"]

EVERYTHING = 1e9  # base batches, or parts: nothing is forgotten
WARM_UP = 2  # steps of each turn that are not timed
SO_FAR = 20  # steps after which findings are written, in case the script ends before enough is known


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearse:
    """What to measure and when to stop; travels to the script's process as JSON."""

    out: str  # where the findings go
    seconds: float = 60.0  # no longer than this, but every layout once
    after: int = 0  # steps to train before measuring
    layouts: tuple[tuple[int, int], ...] = ()  # (global batch, micro-batch) to go through; none: as the script says
    repeats: int = 3  # measured steps of each, at a turn
    ask: bool = False  # measure nothing: only say what the script has, its base batch and the largest it allows

    @property
    def turn(self) -> int:
        """Steps of one layout before it is another's turn."""
        return self.repeats + WARM_UP

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Rehearse:
        """What was meant."""
        try:
            given = json.loads(text)
            return cls(**{**given, "layouts": tuple(map(tuple, given.get("layouts", ())))})
        except (ValueError, TypeError) as error:
            raise ConfigError(
                f"SWELL_REHEARSE is {text!r}, which `swell noise` or `swell tune` did not write."
            ) from error


@dataclass(frozen=True)
class RoundOfLayouts:
    """A policy that goes through given layouts, several steps of each, and then round again."""

    inner: Policy
    layouts: tuple[tuple[int, int], ...]
    turn: int  # steps of each
    after: int

    @property
    def base(self) -> int:
        return self.inner.base

    def layout(self, seen: Observation) -> Layout:
        """The layout whose turn it is."""
        turn = max(0, seen.step - self.after) // self.turn
        batch, micro = self.layouts[turn % len(self.layouts)]
        return Layout(global_batch=batch, micro_batch=micro)

    def batch(self, seen: Observation) -> int:
        return self.layout(seen).global_batch


class Rehearsal:
    """Watches a job's steps and ends the script with its findings."""

    def __init__(self, wanted: Rehearse) -> None:
        self._wanted, self._began = wanted, time.monotonic()
        self._times = LayoutTimes()
        self._taken: StepTimes | None = None  # the time that was taken in last
        self._own: Policy | None = None

    def policy(self, policy: Policy) -> Policy:
        """The script's own policy, or one that goes through the layouts that are asked for."""
        wanted, self._own = self._wanted, policy
        if not wanted.layouts:
            return policy
        return RoundOfLayouts(policy, wanted.layouts, wanted.turn, wanted.after)

    def bounds(self, micro: Micro, constant: bool) -> tuple[Micro, bool]:
        """The script's bounds on micro-batches; none where layouts are asked for, which were chosen within others."""
        return (None, False) if self._wanted.layouts else (micro, constant)

    def statistics(self, given: Statistics | None) -> Statistics | None:
        """Where noise is all that is asked for, every step is measured, and split if it must be."""
        if self._wanted.layouts:
            if given is None or given.split_every != 1:
                return given
            return replace(given, split_every=2)  # steps that are split tell no time
        return replace(given or Statistics(), every=1, alone="split", split_every=1, window=EVERYTHING)

    def trains(self, step: int) -> bool:
        """Whether the weights still move at this step."""
        return step < self._wanted.after

    def after_step(self, job: Job) -> None:
        """End the script once enough is known or the time is over."""
        measured = job.steps - self._wanted.after
        for average in (average for t in job._trainees for average in (t.noise, t.preconditioned_noise)):
            average.share = EVERYTHING  # the weights stand still, so no figure is older than another
            if measured == 0:
                average.reset()
        if self._wanted.ask:
            ended: Ended | None = "asked"
        else:
            ended = self._after_layout(job, measured) if self._wanted.layouts else self._after_noise(job, measured)
        if ended is None:
            return
        self._tell(job, ended)
        job.close()
        raise SystemExit(0)

    def _after_noise(self, job: Job, measured: int) -> Ended | None:
        noise = job.noise
        if noise is not None and measured > 0 and measured % SO_FAR == 0:
            self._tell(job)
        if noise is not None and noise.sure and measured >= 50:
            return "sure"
        return "time" if self._time_is_over(job) else None

    def _after_layout(self, job: Job, measured: int) -> Ended | None:
        """Rounds go on until all times and the noise are sure, or the time is over; there is at least one."""
        layouts, turn = self._wanted.layouts, self._wanted.turn
        timed = job._pace.latest_times  # the step before the latest, whose time the replicas have just agreed upon
        if timed is not None and timed is not self._taken:
            self._taken = timed
            number, place = divmod(measured - 2, turn)
            if number >= 0 and place >= WARM_UP:
                self._times.add(timed, batch=layouts[number % len(layouts)][0], turn=number)
        if measured <= len(layouts) * turn or (measured - 1) % turn:  # a turn's last step is timed in the next one
            return None
        self._tell(job)  # so far: the script may come to its end before us
        if self._times.sure(len(layouts)) and (job.noise is None or job.noise.sure):
            return "sure"
        return "time" if self._time_is_over(job) else None

    def _time_is_over(self, job: Job) -> bool:
        """On any replica: all of them end after the same step."""
        over = time.monotonic() - self._began >= self._wanted.seconds
        return any(row[0] for row in job.collective.gather_numbers([float(over)]))

    def _tell(self, job: Job, ended: Ended = "script") -> None:
        if job.is_main:
            Path(self._wanted.out).write_text(json.dumps({**self._findings(job), "ended": ended}))

    def _findings(self, job: Job) -> dict[str, Any]:
        noise = job.noise
        return {
            "base": job._pace.base,
            "max": getattr(self._own, "max", None),
            "epoch_size": job._training.epoch_size,
            "max_micro": job._pace.max_micro,  # where memory ran out
            "replicas": job.replicas,
            "steps": job.steps,
            "noise": None
            if noise is None
            else {
                "signal": noise.total.signal,
                "noise": noise.total.noise,
                "interval": [_plain(end) for end in noise.interval],
                "observations": noise.observations,
                "sure": noise.sure,
            },
            "profile": self._profile(job),
        }

    def _profile(self, job: Job) -> list[dict[str, Any]]:
        if not self._wanted.layouts:
            return [asdict(summary) for summary in job._pace.profile.summaries()]
        found = self._times.measured()
        return [{**asdict(one.summary), "batch": one.batch, "error": _plain(one.error)} for one in found]


def _plain(value: float) -> float | None:
    return value if math.isfinite(value) else None
