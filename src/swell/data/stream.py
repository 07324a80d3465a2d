"""Batches of an iterable data set that every replica reads as a whole: exactly once, in one order, at that price."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from swell.data.span import Span
from swell.data.window import Window
from swell.errors import ConfigError


class Stream:
    """Hands out the batch of any span of a stream, and knows a step ahead where the stream ends.

    Every replica iterates the same stream, keeps the samples of its own spans and passes over the others. So every
    sample is used exactly once and in one order, for any sequence of worlds, batches and resumes. The price: every
    replica reads everything, and holds the samples of one global batch.

    It relies on the data set in two things. In every pass over an epoch it yields the same samples in the same order
    (``set_epoch`` is called where it has one). And it does not share itself out by rank or by worker; so
    ``num_workers`` is 0 or 1. Where it does share itself out, take :class:`swell.data.own_stream.OwnStream`.

    Before each step ask ``available`` how much of it there is; every replica gets the same answer without talking to
    the others. After a resume, a data set that has ``state_dict`` and ``load_state_dict``, or ``skip(n)``, goes on by
    them (:class:`swell.data.read_ahead.ReadAhead` says how); any other by reading what is done already.

    The arguments are those of ``DataLoader``. Batches are collated and pinned in the main process.

    >>> from torch.utils.data import IterableDataset
    >>> class Count(IterableDataset):
    ...     def __iter__(self):
    ...         return iter(range(5))
    >>> stream = Stream(Count())
    >>> stream.available(0, 0, 4), stream.fetch(Span(epoch=0, start=2, stop=4))
    (4, tensor([2, 3]))
    >>> stream.available(0, 4, 4), stream.available(0, 5, 4)
    (1, 0)
    """

    shared = True
    """All replicas read one stream, and so agree on what is available."""

    def __init__(self, dataset: Any, *, num_workers: int = 0, **loader_arguments: Any) -> None:
        if num_workers > 1:
            raise ConfigError(
                f"num_workers={num_workers} for a stream: each worker would read the same samples again. Give "
                'num_workers=1; or split="dataset", where the data set shares itself out among replicas and workers.'
            )
        self._window = Window(dataset, num_workers=num_workers, **loader_arguments)

    def available(self, epoch: int, position: int, at_least: int) -> int:
        """How many samples there are from ``position`` of an epoch on, up to ``at_least``; 0 at the stream's end.

        Reads that far ahead. Ask before every step, with the first position that is not committed: what lies before is
        forgotten, what lies after can be asked for as often as a step fails.
        """
        return self._window.ahead(epoch, position, at_least)

    def fetch(self, span: Span, upcoming: Callable[[], Iterator[Span]] = lambda: iter(())) -> Any:
        """The batch of exactly the span's samples, in order; ``upcoming`` lets a stream stand in for a feed.

        Raises ``DataError`` where the stream ends before the span, ``LoadError`` where reading or collating fails; the
        span can then be asked for again.
        """
        return self._window.batch(span)

    def state_dict(self) -> dict[str, Any]:
        """The data set's own state, the same on every replica; empty where it keeps none, and then not needed."""
        return self._window.state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state, on any number of replicas; the position comes with the next ``available``."""
        self._window.restore(dict(state))

    def close(self) -> None:
        """Stop the worker and forget what was read; a later call begins again from the position it asks for."""
        self._window.close()
