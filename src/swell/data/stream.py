"""Batches of an iterable data set: one stream that every replica reads as a whole, or a stream for each replica."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch.utils.data import IterableDataset

from swell.core.order import Sequential
from swell.core.permutation import LARGEST
from swell.data.feed import Feed
from swell.data.loader_options import LoaderOptions
from swell.data.read_ahead import ReadAhead
from swell.data.source import nothing_upcoming
from swell.data.span import Span
from swell.errors import ConfigError, DataError


class Stream:
    """A :class:`~swell.data.source.BatchSource` over an iterable data set that every replica reads as a whole.

    Each replica keeps the samples of its own spans and skips the others. So every sample is used exactly once and in
    one order, for any sequence of worlds, batches and resumes. The price: every replica reads everything, and holds the
    samples of one global batch.

    It relies on the data set in two ways. Every pass over an epoch yields the same samples in the same order
    (``set_epoch`` is called if there is one). And the data set does not split itself by rank or worker, so
    ``num_workers`` is 0 or 1. If it does split itself, use :class:`OwnStream`.

    Before each step ask ``available`` how many samples there are. Every replica gets the same answer without
    communication. After a resume the epoch's samples are read again up to the position, by ``skip(n)`` if the data set
    has it. With ``resume="state"`` the data set continues by its ``state_dict`` and ``load_state_dict``, which must
    leave nothing out. Either way what comes is compared with what came before
    (:class:`swell.data.read_ahead.ReadAhead`).

    ``loading`` are :class:`~swell.data.loader_options.LoaderOptions`. Batches are collated and pinned in the main
    process.

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

    def __init__(self, dataset: Any, *, resume: str = "reread", **loading: Any) -> None:
        options = LoaderOptions(**loading)
        if options.num_workers > 1:
            raise ConfigError(
                f"num_workers is {options.num_workers}; expected 0 or 1, because each worker would read the same "
                'samples. Give num_workers=1; or split="dataset", if the data set splits itself by replica and worker.'
            )
        self._window = _Window(dataset, options, resume=resume)

    def length(self, epoch: int) -> None:
        """None: nobody knows where a stream ends before it does."""

    def available(self, epoch: int, position: int, count: int) -> int:
        """How many samples there are from ``position`` of an epoch on, at most ``count``; 0 at the stream's end.

        Reads that far ahead. Call it before every step, with the first position that is not committed: samples before
        it are dropped, samples after it can be fetched as often as a step fails.
        """
        return self._window.available(epoch, position, count)

    def fetch(self, span: Span, upcoming: Callable[[], Iterator[Span]] = nothing_upcoming) -> Any:
        """The batch of exactly the span's samples, in order; ``upcoming`` is not used.

        Raises ``DataError`` if the stream ends before the span, ``LoadError`` if reading or collating fails; the span
        can then be fetched again.
        """
        return self._window.batch(span)

    def fingerprints(self) -> dict[str, str]:
        """Of some of the samples read last, by position: the same on every replica, or they read different streams."""
        return self._window.fingerprints()

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run compares its samples with, and what it continues from; the same on every replica."""
        return self._window.state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state, on any number of replicas; the next ``available`` gives the position."""
        self._window.restore(state)

    def close(self) -> None:
        """Stop the worker and drop what was read; a later call reads from the position it asks for."""
        self._window.close()


class OwnStream:
    """A :class:`~swell.data.source.BatchSource` over an iterable data set that gives each replica its own samples.

    The data set splits itself: it knows which samples belong to this replica and to each worker (``num_workers`` may be
    any number). Every step takes exactly as many samples from each replica's stream as the plan says, and a repeated
    step takes the same ones. It cannot promise which samples a replica gets after the world changes, so in such an
    epoch a sample may come twice or never; that depends on the data set. Replicas may reach their ends at different
    times, so before a step they must agree whether each of them has its share.

    ``loading`` are :class:`~swell.data.loader_options.LoaderOptions`. Batches are collated and pinned in the main
    process.

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

    def __init__(self, dataset: Any, *, resume: str = "reread", **loading: Any) -> None:
        self._window = _Window(dataset, LoaderOptions(**loading), resume=resume)
        self._step: tuple[int, int] | None = None  # epoch and first position of the step under way, over all replicas
        self._begin = 0  # where that step begins in this replica's stream
        self._taken = 0  # samples taken for it

    def length(self, epoch: int) -> None:
        """None: nobody knows where a stream ends before it does."""

    def available(self, epoch: int, position: int, count: int) -> int:
        """How many of this replica's samples there are for the step at ``position``, at most ``count``.

        Call it once before every step, with the first position that is not committed. If the position has changed, the
        step before was committed and its samples are dropped. If not, the step is repeated with the same samples.
        """
        if self._step is not None and epoch != self._step[0]:
            self._begin = 0
        elif self._step is not None and position != self._step[1]:
            self._begin += self._taken
        self._step, self._taken = (epoch, position), 0
        return self._window.available(epoch, self._begin, count)

    def fetch(self, span: Span, upcoming: Callable[[], Iterator[Span]] = nothing_upcoming) -> Any:
        """A batch of the next ``span.size`` samples of this replica; ``upcoming`` is not used.

        Raises ``DataError`` if the stream ends before, ``LoadError`` if reading or collating fails; the span can then
        be fetched again.
        """
        start = self._begin + self._taken
        batch = self._window.batch(Span(span.epoch, start, start + span.size))
        self._taken += span.size
        return batch

    def state_dict(self) -> dict[str, Any]:
        """Where this replica's stream stands; each replica has its own."""
        epoch, position = self._step or (0, 0)
        return {
            "epoch": epoch,
            "position": position,
            "begin": self._begin,
            "taken": self._taken,
            "window": self._window.state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the state of this replica in a world of the same size."""
        self._window.restore(state["window"])
        self._step = (state["epoch"], state["position"])
        self._begin, self._taken = state["begin"], state["taken"]

    def close(self) -> None:
        """Stop the workers and drop what was read; a later call reads it again."""
        self._window.close()


class _Window:
    """Batches of consecutive samples that were read ahead, collated and pinned in the main process."""

    def __init__(self, dataset: Any, options: LoaderOptions, *, resume: str) -> None:
        if not isinstance(dataset, IterableDataset):
            raise ConfigError(
                f"dataset is {type(dataset).__name__}; expected an IterableDataset. Give a data set with samples by "
                "index to swell.data.Feed."
            )
        reading = options.arguments()
        collating = {name: reading.pop(name) for name in ("collate_fn", "pin_memory", "pin_memory_device")}
        self._samples = ReadAhead(dataset, resume=resume, **reading)
        self._feed = Feed(self._samples, lambda epoch: Sequential(LARGEST), **collating)

    def available(self, epoch: int, position: int, count: int) -> int:
        """Drop what lies before ``position`` and read on; how many samples there are from it, at most ``count``."""
        self._samples.seek(epoch, position)
        return min(count, self._samples.reach(position + count) - position)

    def batch(self, span: Span) -> Any:
        """The batch of exactly the span's samples; nothing is dropped."""
        if not self._samples.holds(span.epoch, span.start):
            self._samples.seek(span.epoch, span.start)
        high = self._samples.reach(span.stop)
        if high < span.stop:
            raise DataError(
                f"the stream of epoch {span.epoch} ended after {high} samples; expected at least {span.stop}. Call "
                "available() before a step, and plan it for that many."
            )
        return self._feed.fetch(span)

    def fingerprints(self) -> dict[str, str]:
        return {f"the sample at position {at}": text for at, text in self._samples.fingerprints.items()}

    def state(self) -> dict[str, Any]:
        return self._samples.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        self._samples.restore(state)

    def close(self) -> None:
        self._samples.close()
        self._feed.close()
