"""What replicas were given by ``job.share``, kept as long as a worker that joins or resumes may ask for it again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

START = "start"  # before the pass over the data
Place = tuple[int, str, int]  # the epoch, where in it, and which call there


class SharedValues:
    """Values by the place of the call: the same on every replica, and part of every checkpoint.

    A worker that joins in the middle of an epoch, or resumes there, runs the code before the loop over the loader again
    and must find there what the others trained on. What was shared between two steps is kept until the next one, for a
    replica that missed its end.

    >>> shared = SharedValues()
    >>> shared.keep((0, START, 0), [1, 2], position="0")
    >>> shared.keep((0, "64", 0), [3], position="64")
    >>> (0, START, 0) in shared, shared.get((0, "64", 0))
    (True, [3])
    >>> shared.keep((1, START, 0), [4], position="128")
    >>> (0, START, 0) in shared
    False
    """

    def __init__(self) -> None:
        self._values: dict[Place, Any] = {}

    def __contains__(self, place: Place) -> bool:
        return place in self._values

    def get(self, place: Place) -> Any:
        """What was shared there."""
        return self._values[place]

    def keep(self, place: Place, value: Any, *, position: str) -> None:
        """Remember a value; those that nobody can ask for any more are forgotten."""
        self._forget(epoch=place[0], position=position)
        self._values[place] = value

    def state_dict(self, *, epoch: int, position: str) -> list[Any]:
        """What can still be asked for, as values that a checkpoint holds."""
        self._forget(epoch=epoch, position=position)
        return [[*place, value] for place, value in self._values.items()]

    def load_state_dict(self, state: list[Any] | Mapping[str, Any]) -> None:
        """Continue from a saved state."""
        self._values = {(int(epoch), str(where), int(number)): value for epoch, where, number, value in state}

    def _forget(self, *, epoch: int, position: str) -> None:
        kept = {p: value for p, value in self._values.items() if p[0] == epoch and p[1] in (START, position)}
        self._values = kept
