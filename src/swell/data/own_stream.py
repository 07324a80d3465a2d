"""Batches of an iterable data set that gives each replica a stream of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from swell.data.span import Span
from swell.data.window import Window


class OwnStream:
    """Hands out as many of this replica's own samples as a span holds.

    The data set shares itself out: it knows which samples are this replica's, and each worker's (``num_workers`` may be
    any number). Every step takes exactly as many samples from each replica's stream as the plan says, and a step that
    is done again takes the same ones. What it cannot promise: which samples a replica gets after a change of the world,
    and so that each comes once in such an epoch; that is the data set's affair. Replicas may run dry at different
    times: before a step they must agree whether each of them has its share.

    The arguments are those of ``DataLoader``. Batches are collated and pinned in the main process.

    >>> from torch.utils.data import IterableDataset
    >>> class Odd(IterableDataset):
    ...     def __iter__(self):
    ...         return iter([1, 3, 5, 7, 9])
    >>> stream = OwnStream(Odd())
    >>> stream.available(0, 0, 2), stream.fetch(Span(epoch=0, start=2, stop=4))
    (2, tensor([1, 3]))
    >>> stream.available(0, 4, 2), stream.fetch(Span(epoch=0, start=6, stop=8))
    (2, tensor([5, 7]))
    """

    shared = False
    """Each replica reads a stream of its own, and knows only what is available of that."""

    def __init__(self, dataset: Any, **loader_arguments: Any) -> None:
        self._window = Window(dataset, **loader_arguments)
        self._step: tuple[int, int] | None = None  # epoch and first position of the step under way, over all replicas
        self._begin = 0  # where it begins in this replica's stream
        self._taken = 0  # samples taken for it from there

    def available(self, epoch: int, position: int, at_least: int) -> int:
        """How many of this replica's samples there are for the step at ``position``, up to ``at_least``.

        Ask once before every step, with the first position that is not committed. Another position than before says
        that the step before was committed, so its samples are forgotten; the same one, that it is done again with them.
        """
        if self._step is not None and epoch != self._step[0]:
            self._begin = 0
        elif self._step is not None and position != self._step[1]:
            self._begin += self._taken
        self._step, self._taken = (epoch, position), 0
        return self._window.ahead(epoch, self._begin, at_least)

    def fetch(self, span: Span, upcoming: Callable[[], Iterator[Span]] = lambda: iter(())) -> Any:
        """A batch of the next ``span.size`` samples of this replica; ``upcoming`` lets a stream stand in for a feed.

        Raises ``DataError`` where the stream ends before, ``LoadError`` where reading or collating fails; the span can
        then be asked for again.
        """
        start = self._begin + self._taken
        batch = self._window.batch(Span(span.epoch, start, start + span.size))
        self._taken += span.size
        return batch

    def state_dict(self) -> dict[str, Any]:
        """Where this replica's stream stands; each replica keeps its own."""
        epoch, position = self._step or (0, 0)
        return {
            "epoch": epoch,
            "position": position,
            "begin": self._begin,
            "taken": self._taken,
            "window": self._window.state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from the state of this replica in a world of the same size."""
        self._window.restore(state["window"])
        self._step = (state["epoch"], state["position"])
        self._begin, self._taken = state["begin"], state["taken"]

    def close(self) -> None:
        """Stop the workers and forget what was read; a later call reads it again."""
        self._window.close()
