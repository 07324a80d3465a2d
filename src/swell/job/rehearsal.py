"""A run that only measures: the user's script as it is, its weights left alone, ended when enough is known."""

from __future__ import annotations

import json
import math
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swell.core.protocols import Policy
from swell.core.types import Layout, Observation
from swell.errors import ConfigError
from swell.job.statistics import Statistics

if TYPE_CHECKING:
    from swell.job.job import Job

EVERYTHING = 1e9  # base batches, or parts: nothing is forgotten
SO_FAR = 20  # steps after which findings are written, in case the script ends before enough is known


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearse:
    """What to measure and when to stop; travels to the script's process as JSON."""

    out: str  # where the findings go
    seconds: float = 60.0
    after: int = 0  # steps to train before measuring
    layouts: tuple[tuple[int, int], ...] = ()  # (global batch, micro-batch) to go through; none: as the script says
    repeats: int = 5  # measured steps of each

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
    repeats: int
    after: int

    @property
    def base(self) -> int:
        return self.inner.base

    def layout(self, seen: Observation) -> Layout:
        """The layout whose turn it is."""
        turn = max(0, seen.step - self.after) // (self.repeats + 2)  # two steps to warm up
        batch, micro = self.layouts[turn % len(self.layouts)]
        return Layout(global_batch=batch, micro_batch=micro)

    def batch(self, seen: Observation) -> int:
        return self.layout(seen).global_batch


class Rehearsal:
    """Watches a job's steps and ends the script with its findings."""

    def __init__(self, wanted: Rehearse) -> None:
        self._wanted, self._began = wanted, time.monotonic()

    def policy(self, policy: Policy) -> Policy:
        """The script's own policy, or one that goes through the layouts that are asked for."""
        wanted = self._wanted
        if not wanted.layouts:
            return policy
        return RoundOfLayouts(policy, wanted.layouts, wanted.repeats, wanted.after)

    def statistics(self, given: Statistics | None) -> Statistics | None:
        """Where noise is all that is asked for, every step is measured, and split if it must be."""
        if self._wanted.layouts:
            return given
        return replace(given or Statistics(), every=1, alone="split", split_every=1, window=EVERYTHING)

    def trains(self, step: int) -> bool:
        """Whether the weights still move at this step."""
        return step < self._wanted.after

    def after_step(self, job: Job) -> None:
        """End the script once enough is known or the time is over."""
        wanted, noise = self._wanted, job.noise
        measured = job.steps - wanted.after
        for average in (average for t in job._trainees for average in (t.noise, t.preconditioned_noise)):
            average.share = EVERYTHING  # the weights stand still, so no figure is older than another
            if measured == 0:
                average.reset()
        rounds = len(wanted.layouts) * (wanted.repeats + 2)
        enough = measured >= 2 * rounds if wanted.layouts else noise is not None and noise.sure and measured >= 50
        going_on = not enough and time.monotonic() - self._began < wanted.seconds
        so_far = not wanted.layouts and noise is not None and measured > 0 and measured % SO_FAR == 0
        if job.is_main and (so_far or not going_on):
            Path(wanted.out).write_text(json.dumps(self._findings(job)))
        if going_on:
            return
        job.close()
        raise SystemExit(0)

    @staticmethod
    def _findings(job: Job) -> dict[str, Any]:
        noise = job.noise
        return {
            "base": job._pace.base,
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
            "profile": [asdict(summary) for summary in job._pace.profile.summaries()],
        }


def _plain(value: float) -> float | None:
    return value if math.isfinite(value) else None
