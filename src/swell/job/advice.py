"""Advice for schedulers: what more or fewer workers would bring, logged now and then."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from swell.core.events import Event, Hinted
from swell.core.goodput import Outlook
from swell.job.peers import Peers

EVERY_S = 30.0  # AdaptDL's agents report as often


class Advice:
    """Logs the speedup on one to twice as many replicas as there are, on the first replica, every half minute."""

    def __init__(
        self, peers: Peers, *, outlook: Callable[[Iterable[int]], dict[int, Outlook]], emit: Callable[[Event], None]
    ) -> None:
        self._peers, self._outlook, self._emit = peers, outlook, emit
        self._next_s = time.monotonic() + EVERY_S

    def after_step(self, step: int) -> None:
        """Log it if it is time."""
        if time.monotonic() < self._next_s or not self._peers.is_first:
            return
        self._next_s = time.monotonic() + EVERY_S
        outlook = self._outlook(range(1, 2 * self._peers.size + 1))
        if outlook:
            speedup = {str(replicas): world.speedup for replicas, world in outlook.items()}
            errors = {str(replicas): world.error for replicas, world in outlook.items()}
            self._emit(Hinted(time=time.time(), step=step, speedup=speedup, errors=errors))
