"""Evaluation over all replicas: every sample once, metrics exact, and repeated if a replica is lost in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
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
    streamed = isinstance(dataset, IterableDataset)
    own = 0 if streamed else len(share(len(dataset), rank=rank, replicas=replicas))
    sizes = None if streamed else map(len, batches.batch_sampler)  # type: ignore[arg-type]
    for number, held in enumerate(_held(peers, batches)):
        metrics.muted = even and number >= own  # computed only because other replicas compute one
        metrics.samples = (rows(held[0]) or 1) if sizes is None else next(sizes)
        yield held.pop()
    metrics.muted = False


def _held(peers: Peers, batches: Iterable[Any]) -> Iterator[list[Any]]:
    """Each batch, a sign of progress, in a list to take it from, so that it is free as soon as the script lets go."""
    each = iter(batches)
    peers.mark("loading")
    while held := list(islice(each, 1)):
        peers.mark("evaluating")
        yield held
        peers.mark("loading")
    peers.mark("outside")
