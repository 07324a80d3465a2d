"""Batches of consecutive samples out of what was read of a stream, collated and pinned in the main process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import IterableDataset

from swell.core.order import Sequential
from swell.core.permutation import LARGEST
from swell.data.feed import Feed
from swell.data.read_ahead import ReadAhead
from swell.data.span import Span
from swell.errors import ConfigError, DataError


class Window:
    """An iterable data set by position, from a place that only moves forward unless it is made to go back.

    The arguments are those of ``DataLoader``: ``collate_fn`` and pinning are done here, the rest is for the workers
    that read. Raises ``ConfigError`` where they cannot work or the data set is not an iterable one.
    """

    def __init__(
        self,
        dataset: Any,
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
    ) -> None:
        if not isinstance(dataset, IterableDataset):
            raise ConfigError(
                f"{type(dataset).__name__} is not an iterable data set: give an IterableDataset, or give a data set "
                "with samples by index to swell.data.Feed."
            )
        if not in_order:
            raise ConfigError(
                "in_order=False lets samples overtake one another, which would break the order: leave it."
            )
        if num_workers == 0 and (persistent_workers or prefetch_factor is not None):
            raise ConfigError(
                f"persistent_workers={persistent_workers} and prefetch_factor={prefetch_factor} without workers: give "
                "num_workers of at least 1, or leave them."
            )
        self._read = ReadAhead(
            dataset,
            num_workers=num_workers,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            worker_init_fn=worker_init_fn,
            multiprocessing_context=multiprocessing_context,
            generator=generator,
            timeout=timeout,
        )
        self._feed = Feed(
            self._read,
            lambda epoch: Sequential(LARGEST),
            collate_fn=collate_fn,
            pin_memory=pin_memory,
            pin_memory_device=pin_memory_device,
        )

    def ahead(self, epoch: int, position: int, at_least: int) -> int:
        """Forget what lies before ``position`` and read on; how many samples there are from it, up to ``at_least``."""
        self._read.seek(epoch, position)
        return min(at_least, self._read.reach(position + at_least) - position)

    def batch(self, span: Span) -> Any:
        """The batch of exactly the span's samples; nothing is forgotten."""
        if not self._read.holds(span.epoch, span.start):
            self._read.seek(span.epoch, span.start)
        reached = self._read.reach(span.stop)
        if reached < span.stop:
            raise DataError(
                f"the stream of epoch {span.epoch} ended after {reached} samples, before position {span.stop}: ask "
                "available() before a step, and plan it for what there is."
            )
        return self._feed.fetch(span)

    def state(self) -> dict[str, Any]:
        """The data set's own state near the window's beginning; empty where it keeps none."""
        return self._read.state()

    def restore(self, state: dict[str, Any]) -> None:
        """Begin again from a state, once its epoch is asked for."""
        self._read.restore(state)

    def close(self) -> None:
        """Stop the workers and forget what was read."""
        self._read.close()
        self._feed.close()
