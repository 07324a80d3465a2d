"""What is trained on: where batches come from, how much of it is committed, and what a stream keeps of its own."""

from __future__ import annotations

import inspect
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import default_collate

from swell.core.ledger import Ledger
from swell.core.types import Plan
from swell.data.feed import Feed
from swell.data.loader_options import LoaderOptions
from swell.data.orders import Orders
from swell.data.rows import begins_with_rows, rows, samples_left_out
from swell.data.source import BatchSource
from swell.data.span import Span
from swell.data.stream import OwnStream, Stream
from swell.errors import ConfigError
from swell.job.arguments import check_options
from swell.job.peers import Peers
from swell.job.same_data import SameData, content_fingerprint
from swell.runtime.faults import FailingSamples

UNKNOWN_LENGTH = 2**62  # what the ledger counts up to where the end of a stream is not known
ORDERING = {"shuffle", "drop_last", "weights", "order", "sampler"}  # options of job.loader itself


@dataclass(frozen=True, slots=True)
class LoaderArguments:
    """What the script gave to ``job.loader``, for scripts that read it back."""

    dataset: Any
    options: LoaderOptions
    order_of: Orders | None = None  # the order of an epoch; None for a stream


class TrainingData:
    """A source of batches and the ledger that counts what was committed of it."""

    def __init__(
        self,
        source: BatchSource,
        ledger: Ledger,
        *,
        drop_last: bool,
        given: LoaderArguments,
        failing: FailingSamples | None = None,
        fingerprints: Callable[[], dict[str, str]] = dict,
        generator: torch.Generator | None = None,
    ) -> None:
        self._source, self.ledger, self.drop_last, self.given = source, ledger, drop_last, given
        self._failing, self._generator = failing, generator
        self._endless = ledger.length == UNKNOWN_LENGTH  # a stream
        self._row_each = given.options.collate_fn in (None, default_collate)  # whether each sample makes a row
        self._same = SameData(fingerprints)

    @property
    def epoch_size(self) -> int | None:
        """Samples of an epoch; None for a stream, whose end is not known."""
        return None if self._endless else self.ledger.length

    def next_span(self, batch: int, *, peers: Peers, lay_out: Callable[[], Plan]) -> tuple[int, int] | None:
        """The positions of the next step, at most ``batch`` of them; None at the end of the epoch.

        ``lay_out`` is the plan of a whole step, for streams of which each replica reads a part of its own.
        """
        if not self._endless:
            span = self.ledger.next_span(batch)
            if span is not None:  # otherwise others may be ending the epoch
                self._same.compare(peers, epoch=self.ledger.epoch)
            return span
        epoch, cursor = self.ledger.epoch, self.ledger.cursor
        if self._source.shared or peers.size == 1:
            available = self._source.available(epoch, cursor, batch)
            if available:
                self._same.compare(peers, epoch=epoch)
        else:  # the step is made only if every replica has its share
            share = lay_out().share_sizes()[peers.rank]
            has_share = self._source.available(epoch, cursor, share) >= share
            all_have = all(row[0] for row in peers.collective.gather_numbers([float(has_share)]))
            available = batch if all_have else 0
        if available == 0 or (self.drop_last and available < batch):
            return None
        return self.ledger.next_span(min(available, batch))

    def base_steps(self, start: int, stop: int, *, batch: int, base: int) -> float:
        """How many base steps a step over these positions, at a global batch of ``batch``, is worth by its samples.

        The end of a stream is known only where it cuts a step short. That step counts up to a whole base batch.
        """
        if not self._endless:
            return self.ledger.base_steps(start, stop, base=base)
        short = stop - start < batch
        return (-(-stop // base) * base - start) / base if short else (stop - start) / base

    def fetch(self, span: Span, upcoming: Callable[[], Iterator[Span]]) -> Any:
        """The samples of a span; what is ``upcoming`` is loaded ahead."""
        return self._source.fetch(span, upcoming)

    def left_out(self, batch: Any, asked: int) -> int:
        """By how many samples a batch seems to differ from what was ``asked`` for.

        ``default_collate`` makes a row of each sample, so any other number of rows is wrong there.
        """
        if begins_with_rows(batch, asked):  # as most batches do, and then neither way finds fewer
            return 0
        return asked - (rows(batch) or asked) if self._row_each else samples_left_out(batch, asked)

    def announce(self, *, rank: int, step: int) -> None:
        """Tell loading processes where the run is, for faults that are planned there."""
        if self._failing is not None:
            self._failing.place.copy_(torch.tensor([rank, step]))

    def enter_world(self, *, rank: int) -> None:
        """Seed the data-loading workers that are started from here on by seed, position and rank."""
        if self._generator is not None:
            place = f"{self.ledger.seed} {rank}" + (f" {self.ledger.samples}" if self.ledger.samples else "")
            self._generator.manual_seed(zlib.crc32(place.encode()))

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
    dataset: Any,
    order_of: Orders,
    *,
    peers: Peers,
    seed: int,
    drop_last: bool,
    fingerprint: str | Callable[[], str] | None = None,
    **loading: Any,
) -> TrainingData:
    """The training data over a map-style data set; replicas compare it by ``fingerprint``, or by what it holds."""
    check_options(loading, {"fingerprint"} | ORDERING | _options(Feed) | _options(LoaderOptions))
    print_of = content_fingerprint(dataset, fingerprint)
    ledger = Ledger(lambda epoch: len(order_of(epoch)), seed=seed, drop_last=drop_last)
    # A generator of its own, so that starting data workers draws nothing from the user's random numbers.
    generator = None if "generator" in loading else torch.Generator()
    failing = FailingSamples(dataset, peers.faults) if peers.faults.plans("load") else None
    source = Feed(dataset if failing is None else failing, order_of, **{"generator": generator, **loading})
    data = TrainingData(
        source,
        ledger,
        drop_last=drop_last,
        given=LoaderArguments(dataset, _loader_options(loading), order_of),
        failing=failing,
        fingerprints=print_of,
        generator=generator,
    )
    data.enter_world(rank=peers.rank)
    return data


def streamed_data(
    dataset: Any, *, seed: int, drop_last: bool, split: str = "replicas", resume: str = "reread", **loading: Any
) -> TrainingData:
    """The training data of an iterable data set: every replica reads it all, or (``split="dataset"``) its own part."""
    if split not in ("replicas", "dataset"):
        raise ConfigError(f"split is {split!r}; expected 'replicas' or 'dataset'. Leave it out for 'replicas'.")
    check_options(loading, {"drop_last", "split", "resume"} | _options(LoaderOptions))
    ledger = Ledger(UNKNOWN_LENGTH, seed=seed)
    given = LoaderArguments(dataset, _loader_options(loading))
    if split == "dataset":
        return TrainingData(OwnStream(dataset, resume=resume, **loading), ledger, drop_last=drop_last, given=given)
    stream = Stream(dataset, resume=resume, **loading)
    return TrainingData(stream, ledger, drop_last=drop_last, given=given, fingerprints=stream.fingerprints)


def _loader_options(loading: Mapping[str, Any]) -> LoaderOptions:
    known = _options(LoaderOptions)
    return LoaderOptions(**{name: value for name, value in loading.items() if name in known})


def _options(source: type) -> set[str]:
    parameters = inspect.signature(source).parameters.values()
    return {p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}
