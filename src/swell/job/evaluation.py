"""Evaluation over all replicas: every sample once, metrics exact, and repeated if a replica is lost in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from swell.data.evaluation import evaluation_loader, share
from swell.job.peers import Peers
from swell.job.recovery import Recovery
from swell.job.run_state import RunState
from swell.loop.metrics import Metrics, exchange


def evaluate(
    state: RunState, peers: Peers, recovery: Recovery, dataset: Any, *, batch_size: int, **loading: Any
) -> Iterator[Any]:
    """This replica's part of the data; metrics added in the loop are summed over the replicas when it ends.

    Where a replica is lost meanwhile, the survivors form the world again and evaluate from the start, each its new
    part; what was added to the metrics before is dropped.
    """
    recovery.join_early()
    aside = state.metrics.set_aside()
    try:
        rounds, over = state.marks.rounds, False
        while not over:
            state.metrics.drop()
            yield from _batches(state, peers, dataset, batch_size=batch_size, **loading)
            over = recovery.attempt(lambda: exchange(state.metrics, peers.collective, peers.device))
            over = over or state.marks.rounds > rounds  # others had finished, and their sums came with their state
    finally:
        state.metrics.put_back(aside)


def _batches(state: RunState, peers: Peers, dataset: Any, *, batch_size: int, **loading: Any) -> Iterator[Any]:
    rank, replicas = peers.rank, peers.size
    even = state.pace.even and replicas > 1
    batches = evaluation_loader(dataset, batch_size=batch_size, even=even, rank=rank, replicas=replicas, **loading)
    if even:
        yield from _in_step(state.metrics, batches, own=len(share(len(dataset), rank=rank, replicas=replicas)))
    else:
        yield from batches


def _in_step(metrics: Metrics, batches: Iterable[Any], *, own: int) -> Iterator[Any]:
    """The batches of a replica that must compute as many as the others; those beyond its own are not counted."""
    for number, batch in enumerate(batches):
        metrics.muted = number >= own
        yield batch
        metrics.muted = False
