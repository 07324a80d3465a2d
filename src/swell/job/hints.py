"""Advice for schedulers: what more or fewer workers would bring, told in the log now and then."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from swell.core.events import Hinted

if TYPE_CHECKING:
    from swell.job.job import Job

EVERY_S = 30.0  # AdaptDL's agents report as often


class Hints:
    """Tells the speedup on one to twice as many replicas as there are, on the first replica, every half minute."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._next_s = time.monotonic() + EVERY_S

    def tell(self) -> None:
        """After a step: tell if it is time."""
        job = self._job
        if time.monotonic() < self._next_s or not job.is_main:
            return
        self._next_s = time.monotonic() + EVERY_S
        found = job._outlook(range(1, 2 * job.replicas + 1))
        if found:
            speedup = {str(replicas): there.speedup for replicas, there in found.items()}
            errors = {str(replicas): there.error for replicas, there in found.items()}
            job._emit(Hinted(time=time.time(), step=job.steps, speedup=speedup, errors=errors))
