"""Evaluation over all replicas: every sample once, metrics exact, and begun again if a replica is lost in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from swell.data.evaluation import evaluation_loader, share
from swell.errors import WorldError
from swell.job.vote import meet
from swell.loop.metrics import exchange

if TYPE_CHECKING:
    from swell.job.job import Job


def evaluate(job: Job, dataset: Any, *, batch_size: int, **loading: Any) -> Iterator[Any]:
    """This replica's part of the data; metrics added in the loop are summed over the replicas when it ends.

    Where a replica is lost meanwhile, the survivors form the world anew and evaluate again from the start, each its new
    part; what was added to the metrics before is dropped.
    """
    job._elasticity.join_early()
    aside = job.metrics.set_aside()
    try:
        yield from _evaluate(job, dataset, batch_size=batch_size, **loading)
    finally:
        job.metrics.put_back(aside)


def _evaluate(job: Job, dataset: Any, *, batch_size: int, **loading: Any) -> Iterator[Any]:
    while True:
        job.metrics.drop()
        before = job._ending.units
        even = job._pace.even and job.replicas > 1
        where = {"rank": job.rank, "replicas": job.replicas}
        loader = evaluation_loader(dataset, batch_size=batch_size, even=even, **where, **loading)
        if even:
            yield from _in_step(job, loader, len(dataset))
        else:
            yield from loader
        try:
            meet(job.collective)
            exchange(job.metrics, job.collective, job.device)
        except WorldError as error:
            job._elasticity.recover(error)
            if job._ending.units > before:  # others got through, and their sums came with their state
                return
        else:
            job._ending.units += 1
            return


def _in_step(job: Job, loader: Iterable[Any], n: int) -> Iterator[Any]:
    """The batches of a replica that computes hand in hand with others; those that are not its own are not counted."""
    own = len(share(n, rank=job.rank, replicas=job.replicas))
    for number, batch in enumerate(loader):
        job.metrics.muted = number >= own
        yield batch
        job.metrics.muted = False
