"""What a training loader needs of the place its batches come from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from swell.data.span import Span


def nothing_upcoming() -> Iterator[Span]:
    """No span is expected."""
    return iter(())


class BatchSource(Protocol):
    """Batches of an epoch's samples by position: of a data set (``Feed``) or a stream (``Stream``, ``OwnStream``)."""

    @property
    def shared(self) -> bool:
        """Whether all replicas read the same samples in one order; if not, each has samples of its own.

        If so, ``available`` and ``state_dict`` are the same on every replica, and one replica's state serves all.
        """
        ...

    def length(self, epoch: int) -> int | None:
        """The number of samples of an epoch; None if it is not known before its end."""
        ...

    def available(self, epoch: int, position: int, count: int) -> int:
        """How many samples there are from ``position`` on, at most ``count``; 0 at the epoch's end.

        Call it once before each step, with the first position that is not committed. ``count`` is the global batch if
        the source is ``shared``, else this replica's share of it.
        """
        ...

    def fetch(self, span: Span, upcoming: Callable[[], Iterator[Span]] = nothing_upcoming) -> Any:
        """The batch of exactly the span's samples; ``upcoming`` gives the spans to expect after it.

        Raises ``LoadError`` if loading fails. The same span can then be fetched again.
        """
        ...

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs besides the position; empty if that is enough."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state."""
        ...

    def close(self) -> None:
        """Stop the workers and drop what was fetched ahead; a later ``fetch`` starts them again."""
        ...
