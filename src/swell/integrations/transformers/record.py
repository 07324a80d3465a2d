"""What a trainer knows of a run beyond the job: in the job's checkpoints, and for workers that join or were cut off.

After each step, and at the end of each epoch, every replica runs the same code: callbacks, logs, perhaps an evaluation.
That is one *moment*. It may hold several evaluations, and each is an exchange in which a worker may be lost. Then some
replicas have its result and others not, or are further still. The rules that bring them together:

- what is captured within a moment is the trainer as it was when the moment began, and the results so far: a worker that
  joins there goes through the moment from its start, and finds the results of what is done;
- a replica within the moment keeps its own trainer and takes over the results;
- a replica that finds the others through with the moment takes over their trainer and leaves the moment.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any


class Overtaken(Exception):
    """Other replicas were through with this moment, and this one has their state now."""


class TrainerRecord:
    """Which moments are done, and what the trainer was; ``capture`` and ``restore`` read and set its state."""

    def __init__(self, capture: Callable[[], dict[str, Any]], restore: Callable[[dict[str, Any]], None]) -> None:
        self._capture, self._restore = capture, restore
        self.done = {"start": 0, "step": 0, "epoch": 0}  # the number of the last moment of each kind
        self._moment: tuple[str, int] | None = None  # under way
        self._entry: dict[str, Any] = {}  # the trainer when it began
        self._results: list[Any] = []  # of its evaluations
        self._of: list[Any] | None = None  # the moment these belong to
        self._calls = 0
        self._overtaken = False

    @property
    def in_moment(self) -> bool:
        """Whether a moment is under way."""
        return self._moment is not None

    def at(self, kind: str, number: int, act: Callable[[], Any]) -> None:
        """Go through a moment, unless that was done; every replica calls it with the same arguments."""
        if self.done[kind] >= number:
            return
        if self._of != [kind, number]:
            self._of, self._results = [kind, number], []
        self._moment, self._entry, self._calls, self._overtaken = (kind, number), self._capture(), 0, False
        try:
            act()
        except Overtaken:
            return
        finally:
            self._moment = None
        self.done[kind] = number

    def evaluation(self, together: Callable[[Callable[[], None]], None], compute: Callable[[], Any]) -> Any:
        """The result of ``compute``, in which all replicas exchange something; theirs where they have it already.

        ``together`` runs an exchange, again in another world if a replica is lost in it.
        """
        number, self._calls = self._calls, self._calls + 1
        if number >= len(self._results):
            together(lambda: self._results.append(compute()))
        if self._overtaken:
            raise Overtaken
        return self._results[number]

    def state_dict(self) -> dict[str, Any]:
        """The trainer and the moments that are done."""
        trainer = self._capture() if self._moment is None else self._entry
        return {"trainer": json.dumps(trainer), "done": dict(self.done), "of": self._of, "results": list(self._results)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state, or from that of a replica that is ahead."""
        self._of, self._results = state["of"], list(state["results"])
        if self._moment is not None:
            kind, number = self._moment
            if state["done"][kind] < number:
                return
            self._overtaken = True
        self.done = dict(state["done"])
        self._restore(json.loads(state["trainer"]))
