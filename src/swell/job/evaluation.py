"""Evaluation over all replicas: every sample once, metrics exact, and repeated if a replica is lost in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch.utils.data import IterableDataset

from swell.data.evaluation import evaluation_loader, share
from swell.data.rows import rows
from swell.job.peers import Peers
from swell.job.recovery import Recovery
from swell.job.run_state import RunState
from swell.loop.metrics import exchange


def evaluate(
    state: RunState, peers: Peers, recovery: Recovery, dataset: Any, *, batch_size: int, **loading: Any
) -> Iterator[Any]:
    """This replica's part of the data; metrics added in the loop are summed over the replicas when it ends.

    Where a replica is lost meanwhile, the survivors form the world again and evaluate from the start, each its new
    part; what was added to the metrics before is dropped.
    """
    recovery.join_early()
    aside, held = state.metrics.set_aside(), (state.metrics.muted, state.metrics.samples)
    state.metrics.muted = False
    try:
        rounds, over = state.marks.rounds, False
        while not over:
            state.metrics.drop()
            yield from _batches(state, peers, dataset, batch_size=batch_size, **loading)
            over = recovery.attempt(lambda: exchange(state.metrics, peers.collective, peers.device))
            over = over or state.marks.rounds > rounds  # others had finished, and their sums came with their state
    finally:
        state.metrics.put_back(aside)
        state.metrics.muted, state.metrics.samples = held


def _batches(state: RunState, peers: Peers, dataset: Any, *, batch_size: int, **loading: Any) -> Iterator[Any]:
    rank, replicas, metrics = peers.rank, peers.size, state.metrics
    even = state.pace.even and replicas > 1
    batches = evaluation_loader(dataset, batch_size=batch_size, even=even, rank=rank, replicas=replicas, **loading)
    if isinstance(dataset, IterableDataset):
        for batch in _marked(peers, batches):
            metrics.samples = rows(batch) or 1
            yield batch
        return
    own = len(share(len(dataset), rank=rank, replicas=replicas))
    sizes = map(len, batches.batch_sampler)  # type: ignore[arg-type]
    for number, (batch, size) in enumerate(zip(_marked(peers, batches), sizes, strict=True)):
        metrics.muted = even and number >= own  # computed only because other replicas compute one
        metrics.samples = size
        yield batch
    metrics.muted = False


def _marked(peers: Peers, batches: Iterable[Any]) -> Iterator[Any]:
    """The batches, each of them a sign of progress."""
    peers.mark("loading")
    for batch in batches:
        peers.mark("evaluating")
        yield batch
        peers.mark("loading")
    peers.mark("outside")
