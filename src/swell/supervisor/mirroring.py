"""Bringing the states of a run to a place outside its machines, beside training."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from swell.errors import SwellError
from swell.supervisor.saved_state import SavedState, StateFolder

_AGAIN_S = 10.0  # from an attempt that failed to the next


class Mirror(Protocol):
    """A place that has the states of a run too, such as an object store."""

    url: str

    def update(self, folder: StateFolder) -> None:
        """Bring it up to what the folder has; ``SwellError`` if that fails."""
        ...


class Mirroring:
    """Updates the mirror in a thread whenever the states on this machine's disk have changed; one update at a time."""

    def __init__(self, mirror: Mirror, folder: StateFolder, *, trouble: Callable[[str, str], None]) -> None:
        self._mirror, self._folder, self._trouble = mirror, folder, trouble
        self.newest = ""  # the name of the last state that is there
        self._there: list[SavedState] | None = None  # what this machine had when the mirror was last brought up
        self._under_way: list[SavedState] | None = None
        self._done: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._retry_at = 0.0

    def follow(self, states: Sequence[SavedState], now: float) -> None:
        """This machine has these states now."""
        if self._under_way is not None and not self._done.empty():
            error, states_then = self._done.get(), self._under_way
            self._under_way = None
            if error:
                self._retry_at = now + _AGAIN_S
                self._trouble("mirror", f"the states are not in {self._mirror.url}: {error}")
            else:
                self._there, self.newest = states_then, states_then[-1].name if states_then else ""
                self._trouble("mirror", "")
        if self._under_way is None and list(states) != self._there and now >= self._retry_at:
            self._under_way = list(states)
            threading.Thread(target=self._update, name="swell-mirror", daemon=True).start()

    def settled(self, states: Sequence[SavedState]) -> bool:
        """Whether the mirror has what this machine has."""
        return self._under_way is None and list(states) == self._there

    def _update(self) -> None:
        error = ""
        try:
            self._mirror.update(self._folder)
        except (SwellError, OSError) as failure:
            error = str(failure)
        self._done.put(error)
