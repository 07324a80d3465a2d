"""Evaluation data split exactly over replicas: nothing is padded, read twice or left out."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from itertools import islice
from typing import Any

from torch.utils.data import DataLoader, IterableDataset, Subset

from swell.core.counts import whole_number
from swell.errors import ConfigError

_REFUSED = ("shuffle", "sampler", "batch_sampler", "drop_last")


def share(n: int, *, rank: int, replicas: int) -> range:
    """One replica's samples of ``[0, n)``: contiguous, and sizes differ by at most one.

    >>> [share(10, rank=rank, replicas=3) for rank in range(3)]
    [range(0, 3), range(3, 6), range(6, 10)]
    """
    return range(n * rank // replicas, n * (rank + 1) // replicas)


def even_batches(n: int, *, rank: int, replicas: int, batch_size: int) -> list[range]:
    """One replica's samples of ``[0, n)`` in as many batches as every other replica's; an empty one has sample 0.

    >>> [even_batches(7, rank=rank, replicas=2, batch_size=3) for rank in range(2)]
    [[range(0, 1), range(1, 3)], [range(3, 5), range(5, 7)]]
    >>> even_batches(1, rank=0, replicas=2, batch_size=4), even_batches(1, rank=1, replicas=2, batch_size=4)
    ([range(0, 1)], [range(0, 1)])
    """
    count = math.ceil(math.ceil(n / replicas) / batch_size)
    mine = share(n, rank=rank, replicas=replicas)
    cuts = [mine.start + len(mine) * number // count for number in range(count + 1)] if count else []
    batches = [range(first, last) for first, last in itertools.pairwise(cuts)]
    return [batch if len(batch) else range(0, 1) for batch in batches]


def batches_of(loader: DataLoader[Any], batches: range) -> DataLoader[Any]:
    """Some of the batches that a loader gives, as it would give them; it must read its data set in order.

    >>> loader = DataLoader(range(10), batch_size=4)
    >>> [batch.tolist() for batch in batches_of(loader, range(1, 3))]
    [[4, 5, 6, 7], [8, 9]]
    """
    dataset: Any = loader.dataset
    size, length = int(loader.batch_size or 1), len(dataset)
    return DataLoader(
        Subset(dataset, range(min(batches.start * size, length), min(batches.stop * size, length))),
        batch_size=size,
        collate_fn=loader.collate_fn,
        num_workers=loader.num_workers,
        pin_memory=loader.pin_memory,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        prefetch_factor=loader.prefetch_factor if loader.num_workers else None,
    )


def evaluation_loader(
    dataset: Any, *, rank: int, replicas: int, batch_size: int, even: bool = False, **loader_arguments: Any
) -> DataLoader[Any]:
    """A ``DataLoader`` over one replica's part of ``dataset``, in order; over all replicas every sample comes once.

    ``torch.utils.data.DistributedSampler`` repeats samples until every replica has the same number, so it reports
    accuracies that depend on the number of replicas (pytorch/pytorch#25162). Here parts may differ by a sample, and
    some are empty if there are more replicas than samples: sum counts over replicas, do not average averages.

    An iterable data set is read as a whole by every replica, which keeps every ``replicas``-th run of ``batch_size``
    samples. With several workers the data set must split itself by ``get_worker_info()``, as for any ``DataLoader``,
    and every replica must have the same number of workers.

    With ``even`` every replica gets the same number of batches, for models whose replicas compute together (FSDP2). A
    batch without samples of this replica holds the first sample of all, which must not be counted: ``even_batches``.

    ``loader_arguments`` go to ``DataLoader`` (``num_workers``, ``collate_fn``, ``pin_memory``, ...). Raises
    ``ConfigError`` for those that would lose or repeat samples.

    >>> loaders = [evaluation_loader(range(7), rank=rank, replicas=2, batch_size=2) for rank in range(2)]
    >>> [[batch.tolist() for batch in loader] for loader in loaders]
    [[[0, 1], [2]], [[3, 4], [5, 6]]]
    """
    replicas = whole_number(replicas, name="replicas")
    rank = whole_number(rank, name="rank", at_least=0, at_most=replicas - 1)
    batch_size = whole_number(batch_size, name="batch_size")
    for name in _REFUSED:
        if loader_arguments.get(name):
            raise ConfigError(
                f"{name} is {loader_arguments[name]!r}; expected none, because evaluation reads every sample once and "
                f"in order. Leave {name} out. To evaluate on a part, give torch.utils.data.Subset(dataset, indices)."
            )
        loader_arguments.pop(name, None)
    if even and isinstance(dataset, IterableDataset):
        raise ConfigError(
            f"dataset is {type(dataset).__name__}, an iterable data set; expected one with a length, because all "
            "replicas of a sharded model must evaluate the same number of batches. Give a data set with a length."
        )
    if even:
        batches: Any = even_batches(len(dataset), rank=rank, replicas=replicas, batch_size=batch_size)
        return DataLoader(dataset, batch_sampler=batches, **loader_arguments)
    if isinstance(dataset, IterableDataset):
        part = EveryOther(dataset, run=batch_size, rank=rank, replicas=replicas)
        return DataLoader(part, batch_size=batch_size, **loader_arguments)
    part = share(len(dataset), rank=rank, replicas=replicas)
    return DataLoader(dataset, batch_size=batch_size, sampler=part, **loader_arguments)


class EveryOther(IterableDataset[Any]):
    """Runs of ``run`` samples of an iterable, numbered ``rank``, ``rank + replicas``, ``rank + 2 * replicas``...

    >>> list(EveryOther(range(7), run=2, rank=1, replicas=2))
    [2, 3, 6]
    """

    def __init__(self, dataset: Any, *, run: int, rank: int, replicas: int) -> None:
        self.dataset, self.run, self.rank, self.replicas = dataset, run, rank, replicas

    def __iter__(self) -> Iterator[Any]:
        samples = iter(self.dataset)
        number = 0
        while samples_of_run := list(islice(samples, self.run)):
            if number % self.replicas == self.rank:
                yield from samples_of_run
            number += 1

    def __len__(self) -> int:
        n = len(self.dataset)  # TypeError if it is unknown, as for the data set itself
        whole, rest = divmod(n, self.run)
        mine = len(range(self.rank, whole, self.replicas)) * self.run
        return mine + (rest if whole % self.replicas == self.rank else 0)
