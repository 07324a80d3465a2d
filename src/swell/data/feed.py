"""Batches of a map-style data set, fetched ahead by ``torch.utils.data.DataLoader`` and right whatever is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch._utils import ExceptionWrapper
from torch.utils.data import DataLoader, IterableDataset, default_collate
from torch.utils.data._utils.collate import default_collate_fn_map  # documented: torch.utils.data.default_collate

from swell.core.protocols import Order
from swell.data.indices import Indices
from swell.data.pieces import PieceError, cut, join
from swell.data.seeding import SeededSamples
from swell.data.span import Span
from swell.data.speculation import Part, Speculation
from swell.errors import ConfigError, LoadError, SwellError

_NAMED = 8  # data set indices named in a message


class Feed:
    """Hands out the batch of any span of an epoch's order; all loading is a ``DataLoader``'s.

    ``order_of`` gives an epoch's order. The arguments after it mean what they mean to ``DataLoader``, and are handed to
    it; ``__getitems__`` of the data set, ``worker_init_fn`` and ``get_worker_info`` are as there.

    With workers it fetches ``num_workers * prefetch_factor`` spans ahead. When another span is asked for than was
    foreseen, batches made by ``default_collate`` are cut and joined, so that every sample fetched ahead that is still
    wanted is used; those of a ``collate_fn`` are used where their span is asked for as it is. With
    ``persistent_workers`` it fetches ahead into the next epoch, otherwise each epoch starts new workers, which then see
    the data set as it is at that moment.

    With a ``sample_seed`` the global random numbers of Python, numpy and torch are seeded from ``(sample_seed, epoch,
    position)`` before each sample is read (:class:`swell.data.seeding.SeededSamples`), so that random transforms do not
    depend on replicas, batches or workers.

    Counts in samples: ``fetched`` came from the loader; of these ``reused`` were fetched under another plan than they
    were used under, and ``dropped`` were not used here.

    >>> from swell.core.order import Sequential
    >>> feed = Feed(range(10), lambda epoch: Sequential(10))
    >>> feed.fetch(Span(epoch=0, start=2, stop=5))
    tensor([2, 3, 4])
    """

    def __init__(
        self,
        dataset: Any,
        order_of: Callable[[int], Order],
        *,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        num_workers: int = 0,
        prefetch_factor: int | None = None,
        pin_memory: bool = False,
        persistent_workers: bool = False,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        timeout: float = 0,
        pin_memory_device: str = "",
        in_order: bool = True,
        sample_seed: int | None = None,
    ) -> None:
        if isinstance(dataset, IterableDataset):
            raise ConfigError(
                f"{type(dataset).__name__} is an iterable data set, which has no samples to ask for by index: "
                "give it to swell.data.Stream."
            )
        if not in_order:
            raise ConfigError(
                "in_order=False lets batches overtake one another, which would break the order: leave it."
            )
        if persistent_workers and num_workers == 0:
            raise ConfigError("persistent_workers=True without workers: give num_workers of at least 1, or leave it.")
        indices = Indices(order_of)
        keys_of = indices if sample_seed is None else indices.keys
        speculation, present = Speculation(keys_of, across_epochs=persistent_workers), _Present(keys_of)
        # Nothing here refers back to the feed: dropping the last reference to it stops the workers.
        self._make_loader = lambda: DataLoader(
            dataset if sample_seed is None else SeededSamples(dataset, seed=sample_seed),
            batch_sampler=speculation if num_workers else present,  # type: ignore[arg-type]
            collate_fn=collate_fn,
            num_workers=num_workers,
            prefetch_factor=prefetch_factor,
            pin_memory=pin_memory,
            # Always: a loader whose queue ran empty can then go on with the same workers. Feed stops them itself.
            persistent_workers=num_workers > 0,
            worker_init_fn=worker_init_fn,
            multiprocessing_context=multiprocessing_context,
            generator=generator,
            timeout=timeout,
            pin_memory_device=pin_memory_device,
        )
        try:
            self._loader: DataLoader[Any] | None = self._make_loader()
        except (ValueError, TypeError) as error:
            raise ConfigError(f"torch.utils.data.DataLoader refuses these arguments: {error}") from error
        self._indices, self._speculation, self._present = indices, speculation, present
        self._workers, self._persistent = num_workers, persistent_workers
        self._divisible = collate_fn in (None, default_collate) and _collates_as_shipped()
        self._iterator: Any = None
        self._epoch = -1
        self._sound = True

    @property
    def fetched(self) -> int:
        """Samples that came from the loader."""
        return self._speculation.fetched

    @property
    def reused(self) -> int:
        """Samples that were fetched ahead under another plan than they were used under."""
        return self._speculation.reused

    @property
    def dropped(self) -> int:
        """Samples that were fetched and not used here."""
        return self._speculation.dropped

    def available(self, epoch: int, position: int, at_least: int) -> int:
        """How many samples there are from ``position`` on, up to ``at_least``; 0 at the epoch's end."""
        return max(0, min(at_least, len(self._indices.order(epoch)) - position))

    def fetch(self, span: Span, upcoming: Callable[[], Iterator[Span]] = lambda: iter(())) -> Any:
        """The batch of exactly the span's samples, in order.

        ``upcoming`` gives the spans that will be asked for after this one if the plan stays as it is; it is called when
        the plan has changed, and read little by little. What it says changes the speed only, never the batch.

        Raises ``LoadError`` where the data set raised an error, a worker died or ``timeout`` seconds have passed.
        Nothing is lost then: the same span can be asked for again, and lost workers are replaced.
        """
        # A dead worker makes torch raise in the main thread at any instruction (from its handler of SIGCHLD). Our
        # record of what the loader has under way may then be off by one: unless a call came to its end, it is not used.
        if not self._sound or (span.epoch != self._epoch and self._workers and not self._persistent):
            self.close()
        self._sound, self._epoch = False, span.epoch
        try:
            batch = self._assemble(span, upcoming) if self._workers else self._read(span)
            self._sound = True
            return batch
        except BaseException as error:
            if self._sound:  # it came as an answer: the loader can go on
                raise
            awaited = self._speculation.in_flight or span
            self.close()
            if isinstance(error, SwellError) or not isinstance(error, Exception):
                raise
            raise self._load_error(awaited, error, answered=not self._workers) from error

    def close(self) -> None:
        """Stop the workers and drop what was fetched ahead; a later ``fetch`` starts them again."""
        self._sound = False
        started = getattr(self._loader, "_iterator", None)  # there before ours is, where its start was cut short
        iterator = started if self._iterator is None else self._iterator
        self._iterator, self._loader = None, None
        self._speculation.forget()
        if iterator is not None and self._workers:
            iterator._shutdown_workers()  # what its __del__ calls, but now: an error's traceback may keep it alive
        self._sound = True

    def _read(self, span: Span) -> Any:
        """Without workers nothing is fetched ahead."""
        self._present.span = span
        batch = next(self._start() if self._iterator is None else self._iterator)
        self._speculation.fetched += span.size
        return batch

    def _assemble(self, span: Span, upcoming: Callable[[], Iterator[Span]]) -> Any:
        parts = self._speculation.parts_of(span, upcoming, divisible=self._divisible)
        for part in parts:
            while not part.piece.arrived:
                self._receive()
            if isinstance(part.piece.batch, _Failure):
                self._speculation.waste(parts)
                if part.piece.stale:  # the sample at fault may lie outside of the span: read the span itself
                    return self._assemble(span, upcoming)
                error = part.piece.batch.error
                self._sound = True
                raise self._load_error(part.piece.span, error, answered=True) from error
        try:
            batch = join([_take(part) for part in parts])
        except PieceError:
            # A data set that pads a batch in __getitems__, a type that default_collate was taught: use whole batches.
            self._divisible = False
            self._speculation.waste(parts)
            return self._assemble(span, upcoming)
        self._speculation.used(parts)
        return batch

    def _start(self) -> Iterator[Any]:
        if self._loader is None:
            self._loader = self._make_loader()
        self._iterator = iter(self._loader)
        return self._iterator

    def _receive(self) -> None:
        iterator = self._iterator
        if iterator is None or self._speculation.in_flight is None:
            self._speculation.restart()
            iterator = self._start()
        try:
            batch = next(iterator)
        except Exception as error:
            if not _came_from_worker(error):
                raise
            batch = _Failure(error)  # kept until its samples are asked for, which may be never
        self._speculation.arrive(batch)

    def _load_error(self, span: Span, error: Exception, *, answered: bool) -> LoadError:
        """``answered``: the data set raised the error; otherwise the loader did."""
        indices = tuple(self._indices(span))
        named = ", ".join(map(str, indices[:_NAMED])) + (", ..." if len(indices) > _NAMED else "")
        where = f"positions {span.start} to {span.stop} of epoch {span.epoch} (data set indices {named})"
        if answered:
            message = (
                f"could not load {where}: {type(error).__name__}, see the error above. One of these samples, or "
                "collating them, failed; mend the data set, or leave the sample out of the order."
            )
        else:
            message = (
                f"workers were lost while waiting for {where}: {type(error).__name__}: {error} Workers are often "
                "killed for memory: lower num_workers or prefetch_factor; slow ones need a longer timeout. The next "
                "batch starts new workers."
            )
        return LoadError(message, indices=indices, lost=not answered)


class _Present:
    """The batch sampler where there are no workers: an endless iterator of what is asked for just then."""

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
    """Whether a living worker sent this error as its answer, so that the loader can go on."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    return last is not None and last.tb_frame.f_code is ExceptionWrapper.reraise.__code__


def _take(part: Part) -> Any:
    piece, start, stop = part
    if part.whole:
        return piece.batch
    return cut(piece.batch, start - piece.span.start, stop - piece.span.start, size=piece.span.size)


def _collates_as_shipped() -> bool:
    """Whether nobody has taught ``default_collate`` other ways, whose batches might not be cut along their samples."""
    return all(
        getattr(function, "__module__", "") == default_collate.__module__
        for function in default_collate_fn_map.values()
    )
