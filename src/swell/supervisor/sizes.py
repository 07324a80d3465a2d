"""Which numbers of workers a run may have."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from swell.errors import ConfigError

_MOST = 100_000


@dataclass(frozen=True, slots=True)
class WorldSizes:
    """The allowed numbers of workers, in rising order."""

    allowed: tuple[int, ...]

    @property
    def smallest(self) -> int:
        return self.allowed[0]

    @property
    def largest(self) -> int:
        return self.allowed[-1]

    def floor(self, workers: float) -> int | None:
        """The largest allowed number up to ``workers``; None if every allowed number is larger.

        >>> parse_sizes("2,4,8").floor(7)
        4
        """
        fitting = bisect_right(self.allowed, workers)
        return self.allowed[fitting - 1] if fitting else None

    def nearest_below(self, workers: float) -> int:
        """``floor``, or the smallest allowed number if there is none."""
        return self.floor(workers) or self.smallest

    def require(self, workers: int) -> int:
        """``workers`` if it is allowed, else a ``ConfigError`` that lists the allowed numbers."""
        if workers not in self.allowed:
            raise ConfigError(f"the number of workers is {workers}; expected {self}. Ask for one of those.")
        return workers

    def only(self, sizes: Iterable[int]) -> WorldSizes:
        """The allowed numbers that are also in ``sizes``; a ``ConfigError`` if there is none."""
        possible = tuple(sorted(set(sizes)))
        both = tuple(sorted(set(self.allowed).intersection(possible)))
        if not both:
            raise ConfigError(
                f"the run allows {self} workers; expected one of {WorldSizes(possible) if possible else 'none'}, on "
                f"which the job can be laid out. Change --workers, or the global batch and the bounds on micro-batches."
            )
        return WorldSizes(both)

    def __str__(self) -> str:
        low, high = self.smallest, self.largest
        if len(self.allowed) > 2 and self.allowed == tuple(range(low, high + 1)):
            return f"{low} to {high}"
        return ", ".join(map(str, self.allowed))


def parse_sizes(text: str) -> WorldSizes:
    """Allowed numbers of workers: ``4``, a range ``1:8``, every second ``2:16:2``, or a list ``2,4,8``.

    >>> parse_sizes("2:8:2").allowed
    (2, 4, 6, 8)
    """
    sizes: set[int] = set()
    for part in text.split(","):
        try:
            numbers = [int(number) for number in part.split(":")]
        except ValueError:
            numbers = []
        low, high, step = {1: (numbers * 2 + [1])[:3], 2: [*numbers, 1], 3: numbers}.get(len(numbers), [0, 0, 0])
        if not (1 <= low <= high <= _MOST and step >= 1):
            raise ConfigError(
                f"workers is {text!r}, with {part!r} in it; expected a number (4), a range from at least 1 (1:8), a "
                f"range with a step (2:16:2), or a list of these (2,4,8)."
            )
        sizes.update(range(low, high + 1, step))
    return WorldSizes(tuple(sorted(sizes)))


def to_runs(sizes: Iterable[int]) -> list[list[int]]:
    """Numbers as runs of neighbours, which are few however many numbers there are.

    >>> to_runs([1, 2, 3, 4, 8])
    [[1, 4], [8, 8]]
    """
    runs: list[list[int]] = []
    for size in sorted(set(sizes)):
        if runs and runs[-1][1] == size - 1:
            runs[-1][1] = size
        else:
            runs.append([size, size])
    return runs


def from_runs(runs: Iterable[Sequence[int]]) -> list[int]:
    """The numbers of ``to_runs``.

    >>> from_runs([[1, 4], [8, 8]])
    [1, 2, 3, 4, 8]
    """
    return [size for low, high in runs for size in range(low, min(high, _MOST) + 1)]
