"""A span: the positions of one micro-batch in an epoch's order."""

from __future__ import annotations

from dataclasses import dataclass

from swell.errors import ConfigError


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """Positions ``start`` to ``stop`` (not included) of an epoch's order, in samples.

    Two replicas that hold the same order and are given disjoint spans read disjoint samples, whatever else they do.
    Spans sort by where they begin. Raises ``ConfigError`` where the span is empty or begins below 0.

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
                f"span of epoch {self.epoch} from {self.start} to {self.stop}: expected 0 <= start < stop and an epoch "
                "of at least 0. A replica that has no sample in a step asks for no span."
            )

    @property
    def size(self) -> int:
        """How many samples it holds."""
        return self.stop - self.start
