"""A span: the positions of one micro-batch in an epoch's order."""

from __future__ import annotations

from dataclasses import dataclass

from swell.errors import ConfigError


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """Positions ``start`` to ``stop`` (not included) of an epoch's order, in samples.

    Two replicas that have the same order and read disjoint spans read disjoint samples. Spans sort by where they begin.
    ``other in span`` says whether another span lies within it. Raises ``ConfigError`` if the span is empty or begins
    below 0.

    >>> span = Span(epoch=0, start=64, stop=96)
    >>> span.size
    32
    """

    epoch: int
    start: int
    stop: int

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.stop or self.epoch < 0:
            raise ConfigError(
                f"the span is {self.start} to {self.stop} of epoch {self.epoch}; expected 0 <= start < stop and an "
                "epoch of at least 0. Ask for no span if a replica has no sample in a step."
            )

    @property
    def size(self) -> int:
        """The number of its samples."""
        return self.stop - self.start

    def __contains__(self, other: Span) -> bool:
        return self.epoch == other.epoch and self.start <= other.start and other.stop <= self.stop
