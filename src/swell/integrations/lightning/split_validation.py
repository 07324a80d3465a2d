"""A validation loader of which each worker reads a part, with the figures of one worker that reads all of it.

Parts are runs of whole batches, so every batch is one that a single worker would have. When the workers are through
with their parts, they add up what they have. Where one was lost, its figures are gone; then each of the others reads
the batches that it has not read, and needs nobody else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler

from swell.data.evaluation import batches_of, share
from swell.integrations.lightning.validation_figures import ValidationFigures
from swell.job import Job


class SplitValidation:
    """What Lightning goes through as its validation loader.

    ``together`` gives the job where all workers are about to go through it, and None where this one is by itself;
    ``figures`` begins to watch what is logged.
    """

    def __init__(
        self, loader: DataLoader[Any], together: Callable[[], Job | None], figures: Callable[[], ValidationFigures]
    ) -> None:
        self._loader, self._job_together, self._figures = loader, together, figures
        self.batch_number: int | None = None  # of the batch in hand among all of them, in a validation that is split
        self.joined = False  # whether the figures of the latest validation are of all workers' parts

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_loader"], name)

    def __iter__(self) -> Iterator[Any]:
        self.joined, self.batch_number = False, None
        job = self._job_together()
        if job is None or len(self._loader) < job.replicas:  # every worker must log each figure at least once
            yield from self._loader
            return
        rank, replicas = job.engine.peers.rank, job.replicas
        whole = range(len(self._loader))
        own = share(len(whole), rank=rank, replicas=replicas)
        figures = self._figures()
        yield from self._batches(own, job)
        parts = job.engine.sharing.gather_parts(figures.captured())
        if parts is None:
            yield from self._batches(whole[: own.start], job)
            yield from self._batches(whole[own.stop :], job)
        else:
            figures.join(parts)
            self.joined = True
        self.batch_number = None

    def _batches(self, numbers: range, job: Job) -> Iterator[Any]:
        if not numbers:
            return
        for number, batch in zip(numbers, batches_of(self._loader, numbers), strict=True):
            self.batch_number = number
            job.engine.peers.mark("evaluating")
            yield batch
        job.engine.peers.mark("outside")


def can_split(loader: Any) -> bool:
    """Whether this loader has the same batches on every worker, in an order that is known."""
    return (
        isinstance(loader, DataLoader)
        and not isinstance(loader.dataset, IterableDataset)
        and type(loader.batch_sampler) is BatchSampler
        and isinstance(loader.sampler, SequentialSampler)
    )
