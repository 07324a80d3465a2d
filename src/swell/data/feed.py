"""Batches of a map-style data set, fetched ahead by ``torch.utils.data.DataLoader``, for whatever span is asked for."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from torch._utils import ExceptionWrapper
from torch.autograd import profiler
from torch.utils.data import DataLoader, IterableDataset, default_collate
from torch.utils.data._utils.collate import default_collate_fn_map  # documented: torch.utils.data.default_collate

from swell.core.protocols import Order
from swell.data.indices import Indices, as_list
from swell.data.loader_options import LoaderOptions
from swell.data.pieces import PieceError, cut, join
from swell.data.prefetch import Excerpt, Prefetch
from swell.data.quick_collate import quick_collate
from swell.data.seeding import SeededSamples
from swell.data.source import nothing_upcoming
from swell.data.span import Span
from swell.data.tensor_rows import TensorRows
from swell.errors import ConfigError, LoadError, SwellError

_NAMED = 8  # data set indices named in a message


class Feed:
    """A :class:`~swell.data.source.BatchSource` over a map-style data set; a ``DataLoader`` does the loading.

    ``order_of`` gives an epoch's order. ``loading`` are :class:`~swell.data.loader_options.LoaderOptions`. They mean
    what they mean to ``DataLoader``, as do ``__getitems__`` of the data set and ``get_worker_info``.

    With workers it fetches ``num_workers * prefetch_factor`` spans ahead. If another span is asked for than was
    expected, batches made by ``default_collate`` are cut and joined, so that every sample fetched ahead that is still
    needed is used. A batch made by a ``collate_fn`` is used only if exactly its span is asked for. With
    ``persistent_workers`` it fetches ahead into the next epoch. Otherwise each epoch starts new workers, which see the
    data set as it is at that moment.

    Without workers, the rows of a ``TensorDataset`` are read at once (:class:`swell.data.tensor_rows.TensorRows`), and
    the arrays of other samples are joined at once (:func:`swell.data.quick_collate.quick_collate`).

    With a ``sample_seed`` the global random numbers of Python, numpy and torch are seeded from ``(sample_seed, epoch,
    position)`` before each sample is read (:class:`swell.data.seeding.SeededSamples`), so that random transforms do not
    depend on replicas, batches or workers.

    Counts in samples: ``fetched`` came from the loader; of these ``reused`` were handed out in another batch than they
    were requested in, and ``dropped`` were not handed out.

    >>> from swell.core.order import Sequential
    >>> feed = Feed(range(10), lambda epoch: Sequential(10))
    >>> feed.fetch(Span(epoch=0, start=2, stop=5))
    tensor([2, 3, 4])
    """

    shared = True

    def __init__(
        self, dataset: Any, order_of: Callable[[int], Order], *, sample_seed: int | None = None, **loading: Any
    ) -> None:
        if isinstance(dataset, IterableDataset):
            raise ConfigError(
                f"dataset is {type(dataset).__name__}, an iterable data set; expected one with samples by index. Give "
                "it to swell.data.Stream."
            )
        options = LoaderOptions(**loading)
        workers, persistent, collate_fn = options.num_workers, options.persistent_workers, options.collate_fn
        shipped = collate_fn in (None, default_collate) and _collates_as_shipped()
        rows = TensorRows(dataset) if shipped and not workers and TensorRows.fits(dataset) else None
        if rows is not None:  # reading tensors draws no random numbers, so there is nothing to seed
            dataset, sample_seed, options = rows, None, replace(options, collate_fn=rows.collate)
        elif shipped and not workers:
            options = replace(options, collate_fn=quick_collate)
        indices = Indices(order_of, form=as_list if rows is None else rows.prepared)
        keys_of = indices if sample_seed is None else indices.keys
        prefetch, present = Prefetch(keys_of, across_epochs=persistent), _Present(keys_of)
        # Always persistent: a loader whose queue ran empty can then continue with the same workers. Feed stops them.
        arguments = {**options.arguments(), "persistent_workers": workers > 0}
        # Nothing in this function refers to the feed, so dropping the last reference to the feed stops the workers.
        self._make_loader = lambda: DataLoader(
            dataset if sample_seed is None else SeededSamples(dataset, seed=sample_seed),
            batch_sampler=prefetch if workers else present,  # type: ignore[arg-type]
            **arguments,
        )
        try:
            self._loader: DataLoader[Any] | None = self._make_loader()
        except (ValueError, TypeError) as error:
            raise ConfigError(f"torch.utils.data.DataLoader refuses these arguments: {error}") from error
        prefetch.divisible = shipped
        self._indices, self._prefetch, self._present = indices, prefetch, present
        self._rows = None if options.pin_memory else rows
        self._workers, self._persistent, self._pins = workers, persistent, options.pin_memory
        self._iterator: Any = None
        self._epoch = -1
        self._sound = True

    @property
    def fetched(self) -> int:
        """Samples that came from the loader."""
        return self._prefetch.fetched

    @property
    def reused(self) -> int:
        """Samples that were handed out in another batch than they were requested in."""
        return self._prefetch.reused

    @property
    def dropped(self) -> int:
        """Samples that were fetched and not handed out."""
        return self._prefetch.dropped

    def length(self, epoch: int) -> int:
        """The number of samples of an epoch."""
        return len(self._indices.order(epoch))

    def available(self, epoch: int, position: int, count: int) -> int:
        """How many samples there are from ``position`` on, at most ``count``; 0 at the epoch's end."""
        return max(0, min(count, self.length(epoch) - position))

    def fetch(self, span: Span, upcoming: Callable[[], Iterator[Span]] = nothing_upcoming) -> Any:
        """The batch of exactly the span's samples, in order.

        ``upcoming`` gives the spans that will be asked for after this one if the plan stays. It is called when the plan
        has changed, and read little by little. It affects the speed only, never the batch.

        Raises ``LoadError`` if the data set raises an error, a worker dies or ``timeout`` seconds pass. Nothing is lost
        then: the same span can be fetched again, and lost workers are replaced.
        """
        # A dead worker makes torch raise in the main thread at any instruction (from its handler of SIGCHLD). Our
        # record of what the loader has under way may then be off by one, so it is used only if the last call completed.
        if not self._sound or (span.epoch != self._epoch and self._workers and not self._persistent):
            self.close()
        self._sound, self._epoch = False, span.epoch
        try:
            batch = self._assemble(span, upcoming) if self._workers else self._read(span)
            self._sound = True
            return batch
        except BaseException as error:
            if self._sound:  # a worker sent the error as its answer: the loader can continue
                raise
            awaited = self._prefetch.in_flight or span
            self.close()
            if isinstance(error, SwellError) or not isinstance(error, Exception):
                raise
            raise self._load_error(awaited, error, answered=not self._workers) from error

    def state_dict(self) -> dict[str, Any]:
        """Empty: an epoch's order has random access, so the position is enough."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Do nothing: a feed keeps no state."""

    def close(self) -> None:
        """Stop the workers and drop what was fetched ahead; a later ``fetch`` starts them again."""
        self._sound = False
        started = getattr(self._loader, "_iterator", None)  # set before ours, if an error interrupted the start
        iterator = started if self._iterator is None else self._iterator
        self._iterator, self._loader = None, None
        self._prefetch.forget()
        if iterator is not None and self._workers:
            iterator._shutdown_workers()  # what its __del__ calls, but now: an error's traceback may keep it alive
        self._sound = True

    def _read(self, span: Span) -> Any:
        """Without workers nothing is fetched ahead."""
        self._present.span = span
        iterator = self._start() if self._iterator is None else self._iterator
        if self._rows is not None:  # what the loader would do, without going through it
            batch = self._rows.__getitems__(self._indices(span))
        elif profiler._is_profiler_enabled:
            batch = next(iterator)
        elif self._pins:
            batch = iterator._next_data()
        else:  # what ``next`` does, without a mark for torch's profiler that takes longer than a batch of cheap samples
            batch = iterator._dataset_fetcher.fetch(self._present.keys_of(span))
        self._prefetch.fetched += span.size
        return batch

    def _assemble(self, span: Span, upcoming: Callable[[], Iterator[Span]]) -> Any:
        excerpts = self._prefetch.take(span, upcoming)
        for request, _, _ in excerpts:
            while not request.arrived:
                self._receive()
            if isinstance(request.batch, _Failure):
                if request.span not in span:  # the sample at fault may lie outside of the span: read the span itself
                    return self._assemble(span, upcoming)
                error = request.batch.error
                self._sound = True
                raise self._load_error(request.span, error, answered=True) from error
        try:
            batch = join([_samples(excerpt) for excerpt in excerpts])
        except PieceError:
            # A data set may pad a batch in __getitems__, or default_collate may know other types: use whole batches.
            self._prefetch.divisible = False
            return self._assemble(span, upcoming)
        self._prefetch.use(span, excerpts)
        return batch

    def _start(self) -> Any:
        if self._loader is None:
            self._loader = self._make_loader()
        self._iterator = iter(self._loader)
        return self._iterator

    def _receive(self) -> None:
        iterator = self._iterator
        if iterator is None or self._prefetch.in_flight is None:
            self._prefetch.restart()
            iterator = self._start()
        try:
            batch = next(iterator)
        except Exception as error:
            if not _came_from_worker(error):
                raise
            batch = _Failure(error)  # kept until its samples are asked for, which may be never
        self._prefetch.arrive(batch)

    def _load_error(self, span: Span, error: Exception, *, answered: bool) -> LoadError:
        """``answered``: the data set raised the error; otherwise the loader did."""
        indices = tuple(self._indices.order(span.epoch).indices(span.start, span.stop).tolist())
        named = ", ".join(map(str, indices[:_NAMED])) + (", ..." if len(indices) > _NAMED else "")
        where = f"positions {span.start} to {span.stop} of epoch {span.epoch} (data set indices {named})"
        advice = _shared_memory(error)
        if answered and advice:
            message = f"loading {where} failed: {type(error).__name__}, see the error above. {advice}"
        elif answered:
            message = (
                f"loading {where} failed: {type(error).__name__}, see the error above; expected the data set to give "
                "these samples and collating them to work. Fix the data set, or leave the sample out of the order."
            )
        else:
            message = (
                f"workers were lost while waiting for {where}: {type(error).__name__}: {error} The next batch starts "
                f"new workers. {advice or _MEMORY}"
            )
        return LoadError(message, indices=indices, lost=not answered)


_MEMORY = "Workers are often killed for memory: lower num_workers or prefetch_factor. Slow ones need a longer timeout."


def _shared_memory(error: Exception) -> str:
    """What to do where shared memory is too small for the batches; empty where the error is another."""
    text, no_room = str(error).lower(), isinstance(error, OSError) and error.errno == errno.ENOSPC
    if not no_room and "bus error" not in text and "shared memory" not in text:
        return ""
    try:
        disk = os.statvfs("/dev/shm")
        free, size = (blocks * disk.f_frsize // 1024 for blocks in (disk.f_bavail, disk.f_blocks))
        room = f"/dev/shm has {free:,} of {size:,} kB free"
    except OSError:
        room = "there is no /dev/shm"
    return (
        f"Batches travel through shared memory, and {room}: give it more (for a container, --shm-size), lower "
        "prefetch_factor, or load without workers (num_workers=0)."
    )


class _Present:
    """The batch sampler without workers: an endless iterator that always gives the span asked for at that moment."""

    def __init__(self, keys_of: Callable[[Span], list[Any]]) -> None:
        self.keys_of = keys_of
        self.span = Span(0, 0, 1)

    def __iter__(self) -> _Present:
        return self

    def __next__(self) -> list[Any]:
        return self.keys_of(self.span)


class _Failure(NamedTuple):
    error: Exception


def _came_from_worker(error: Exception) -> bool:
    """Whether a living worker sent this error as its answer, so that the loader can continue."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    return last is not None and last.tb_frame.f_code is ExceptionWrapper.reraise.__code__


def _samples(excerpt: Excerpt) -> Any:
    request, start, stop = excerpt
    if excerpt.whole:
        return request.batch
    return cut(request.batch, start - request.span.start, stop - request.span.start, size=request.span.size)


def _collates_as_shipped() -> bool:
    """Whether ``default_collate`` was taught no other ways, whose batches might not be cut along their samples."""
    return all(
        getattr(function, "__module__", "") == default_collate.__module__
        for function in default_collate_fn_map.values()
    )
