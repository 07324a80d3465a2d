"""Evaluation data in an accelerator's loop: split over a fixed group of processes, whole in a world that may change."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from swell.data.evaluation import even_batches, share
from swell.job.peers import Peers


class EvaluationPass:
    """A loader of the script, of which each replica gets as many batches as every other.

    In an elastic world each replica reads all of it: a loop that adds up by itself cannot be begun again when a worker
    is lost in it. ``counts`` says whether the batch under way is this replica's own, and not one that it computes only
    because the others compute one. ``place`` moves a batch to the device.
    """

    def __init__(self, loader: DataLoader[Any], peers: Callable[[], Peers | None], place: Callable[[Any], Any]) -> None:
        self._loader, self._peers, self._place = loader, peers, place
        self.counts = True

    @property
    def _splits(self) -> bool:
        peers = self._peers()
        sized = not isinstance(self._loader.dataset, IterableDataset) and self._loader.batch_size is not None
        return peers is not None and peers.size > 1 and not peers.elastic and sized

    def __iter__(self) -> Iterator[Any]:
        if not self._splits:
            yield from map(self._place, self._loader)
            return
        peers, loader, dataset = self._peers(), self._loader, self._loader.dataset
        assert peers is not None
        size, length = int(loader.batch_size or 1), len(dataset)  # type: ignore[arg-type]
        batches: Any = even_batches(length, rank=peers.rank, replicas=peers.size, batch_size=size)
        own = len(share(length, rank=peers.rank, replicas=peers.size))
        part = DataLoader(
            dataset,
            batch_sampler=batches,
            collate_fn=loader.collate_fn,
            num_workers=loader.num_workers,
            pin_memory=loader.pin_memory,
        )
        seen = 0
        try:
            for batch, samples in zip(part, batches, strict=True):
                self.counts = seen < own
                seen += len(samples)
                yield self._place(batch)
        finally:
            self.counts = True

    def __len__(self) -> int:
        peers = self._peers()
        if not self._splits or peers is None:
            return len(self._loader)
        own = math.ceil(len(self._loader.dataset) / peers.size)  # type: ignore[arg-type]
        return math.ceil(own / int(self._loader.batch_size or 1))

    def __getattr__(self, name: str) -> Any:
        if name == "_loader":
            raise AttributeError(name)
        return getattr(self._loader, name)
