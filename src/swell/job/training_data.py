"""What is trained on: where batches come from, how much of it is committed, and what a stream keeps of its own."""

from __future__ import annotations

import inspect
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from swell.core.ledger import Ledger
from swell.core.types import Plan
from swell.data.feed import Feed
from swell.data.loader_options import LoaderOptions
from swell.data.orders import Orders
from swell.data.source import BatchSource
from swell.data.span import Span
from swell.data.stream import OwnStream, Stream
from swell.errors import ConfigError
from swell.job.arguments import check_options
from swell.job.peers import Peers
from swell.runtime.faults import FailingSamples

UNKNOWN_LENGTH = 2**62  # what the ledger counts up to where the end of a stream is not known
ORDERING = {"shuffle", "drop_last", "weights", "order", "sampler"}  # options of job.loader itself


class TrainingData:
    """A source of batches and the ledger that counts what was committed of it."""

    def __init__(
        self, source: BatchSource, ledger: Ledger, *, drop_last: bool, failing: FailingSamples | None = None
    ) -> None:
        self._source, self.ledger, self.drop_last = source, ledger, drop_last
        self._failing = failing

    @property
    def epoch_size(self) -> int | None:
        """Samples of an epoch; None for a stream, whose end is not known."""
        length = self.ledger.length
        return None if length == UNKNOWN_LENGTH else length

    def next_span(self, batch: int, *, peers: Peers, lay_out: Callable[[], Plan]) -> tuple[int, int] | None:
        """The positions of the next step, at most ``batch`` of them; None at the end of the epoch.

        ``lay_out`` is the plan of a whole step, for streams of which each replica reads a part of its own.
        """
        if self.epoch_size is not None:
            return self.ledger.next_span(batch)
        epoch, cursor = self.ledger.epoch, self.ledger.cursor
        if self._source.shared or peers.size == 1:
            available = self._source.available(epoch, cursor, batch)
        else:  # the step is made only if every replica has its share
            share = lay_out().share_sizes()[peers.rank]
            has_share = self._source.available(epoch, cursor, share) >= share
            all_have = all(row[0] for row in peers.collective.gather_numbers([float(has_share)]))
            available = batch if all_have else 0
        if available == 0 or (self.drop_last and available < batch):
            return None
        return self.ledger.next_span(min(available, batch))

    def fetch(self, span: Span, upcoming: Callable[[], Iterator[Span]]) -> Any:
        """The samples of a span; what is ``upcoming`` is loaded ahead."""
        return self._source.fetch(span, upcoming)

    def announce(self, *, rank: int, step: int) -> None:
        """Tell loading processes where the run is, for faults that are planned there."""
        if self._failing is not None:
            self._failing.place.copy_(torch.tensor([rank, step]))

    def state_dict(self) -> dict[str, Any]:
        """The state of a stream that all replicas read; empty for anything else, which needs none."""
        return self._source.state_dict() if self._source.shared else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the stream continue from there."""
        if state and self._source.shared:
            self._source.load_state_dict(state)

    def close(self) -> None:
        """Stop the data-loading workers."""
        self._source.close()


def map_style_data(
    dataset: Any, order_of: Orders, *, peers: Peers, seed: int, drop_last: bool, **loading: Any
) -> TrainingData:
    """The training data over a map-style data set."""
    check_options(loading, ORDERING | _options(Feed) | _options(LoaderOptions))
    ledger = Ledger(lambda epoch: len(order_of(epoch)), seed=seed, drop_last=drop_last)
    # A generator of its own, so that starting data workers draws nothing from the user's random numbers.
    generator = torch.Generator().manual_seed(zlib.crc32(f"{seed} {peers.rank}".encode()))
    failing = None
    if peers.faults.plans("load"):
        dataset = failing = FailingSamples(dataset, peers.faults)
    source = Feed(dataset, order_of, **{"generator": generator, **loading})
    return TrainingData(source, ledger, drop_last=drop_last, failing=failing)


def streamed_data(dataset: Any, *, seed: int, drop_last: bool, split: str = "replicas", **loading: Any) -> TrainingData:
    """The training data of an iterable data set: every replica reads it all, or (``split="dataset"``) its own part."""
    if split not in ("replicas", "dataset"):
        raise ConfigError(f"split is {split!r}; expected 'replicas' or 'dataset'. Leave it out for 'replicas'.")
    check_options(loading, {"drop_last", "split"} | _options(LoaderOptions))
    source = Stream(dataset, **loading) if split == "replicas" else OwnStream(dataset, **loading)
    return TrainingData(source, Ledger(UNKNOWN_LENGTH, seed=seed), drop_last=drop_last)


def _options(source: type) -> set[str]:
    parameters = inspect.signature(source).parameters.values()
    return {p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}
