"""Random plans for the tests of this folder: which spans a replica asks for, and which it foresees."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hypothesis import strategies as st

from swell.data.span import Span

N = 240  # samples of an epoch


@dataclass(frozen=True)
class Phase:
    """How steps are laid out for a while: equal shares of equal micro-batches, which is enough to move every border."""

    steps: int
    rank: int
    replicas: int
    micro: int
    accumulation: int

    @property
    def share(self) -> int:
        return self.micro * self.accumulation

    def spans(self, epoch: int, position: int) -> Iterator[tuple[Span, int]]:
        """This replica's spans from ``position`` to the epoch's end, each with the end of its step."""
        while position < N:
            stop = min(N, position + self.share * self.replicas)
            first = position + self.rank * self.share
            for start in range(first, min(first + self.share, stop), self.micro):
                yield Span(epoch, start, min(start + self.micro, first + self.share, stop)), stop
            position = stop


PHASES = st.builds(
    lambda steps, rank, more, micro, accumulation: Phase(steps, rank, rank + more, micro, accumulation),
    st.integers(1, 4),
    st.integers(0, 3),
    st.integers(1, 3),
    st.integers(1, 24),
    st.integers(1, 3),
)


def asked_for(phases: list[Phase], *, epoch: int = 0) -> Iterator[tuple[Span, list[Span]]]:
    """The spans asked for in an epoch whose plan changes from phase to phase, each with what was foreseen then."""
    position, at = 0, 0
    while position < N:
        phase = phases[at % len(phases)]
        at += 1
        foreseen = list(phase.spans(epoch, position))
        limit = position + phase.steps * phase.share * phase.replicas
        for i, (span, stop) in enumerate(foreseen):
            if stop > limit:
                break
            yield span, [later for later, _ in foreseen[i + 1 :]]
        position = min(N, limit)


SPANS = st.builds(
    lambda epoch, start, size: Span(epoch, start, min(N, start + size)),
    st.integers(0, 2),
    st.integers(0, N - 1),
    st.integers(1, 40),
)
"""Any span: back and forth, again and again."""

WILD = st.lists(st.tuples(SPANS, st.lists(SPANS, max_size=8)), max_size=12)
"""Spans in no order, each with expectations that are wrong."""
