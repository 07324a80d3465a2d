"""What to fetch ahead, and what becomes of it when the plan changes.

A loader with workers fetches batches before they are asked for, so it must guess. As long as the guess holds, requests
are the spans that will be asked for. When another span is asked for, batches under way cannot be called back; what of
them is still wanted is claimed, the rest is dropped here (its new owner reads it), and only gaps are requested anew::

    fetched ahead       [-- 64..96 --][-- 96..128 --][-- 128..160 --]
    asked for now       [------ 64..112 ------][------ 112..160 ------]
    made of             64..96 + 96..112        112..128 + 128..160          nothing is read again
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import Any, NamedTuple

from swell.data.span import Span

_ABSENT: Any = object()
_PATIENCE = 4096  # spans looked ahead for a use of what was fetched, at a few microseconds each


@dataclass(slots=True, eq=False)
class Piece:
    """One request to the loader, and its batch once that has come and is of use."""

    span: Span
    batch: Any = _ABSENT
    claimed: int = 0  # samples that some expected span is made of
    stale: bool = False  # requested under an older plan

    @property
    def arrived(self) -> bool:
        """Whether the batch is here."""
        return self.batch is not _ABSENT


class Part(NamedTuple):
    """Positions ``start`` to ``stop`` of a piece's epoch, to be taken from that piece."""

    piece: Piece
    start: int
    stop: int

    @property
    def whole(self) -> bool:
        """Whether it is all of its piece."""
        return self.stop - self.start == self.piece.span.size


class Speculation:
    """The batch sampler behind a feed: an endless iterator of index lists that can be corrected at any time.

    ``parts_of`` says what an asked-for span is made of; ``__next__`` hands the next request to the loader; ``arrive``
    takes the loader's batches, which come in the order of the requests. With ``across_epochs`` it fetches ahead into
    the next epoch.

    Once it has raised ``StopIteration`` it is dry and stays so until the loader is started again, because a loader does
    not refill a place in its queue that was once left empty.
    """

    def __init__(self, keys_of: Callable[[Span], list[Any]], *, across_epochs: bool) -> None:
        self._keys_of = keys_of
        self._across_epochs = across_epochs
        self.fetched = 0  # samples that came from the loader
        self.reused = 0  # of these, samples asked for under another plan than they were requested under
        self.dropped = 0  # of these, samples that nobody here asked for
        self._source: Iterator[Span] = iter(())  # spans to expect after the last one in _expected
        self._expected: deque[tuple[Span, list[Part]]] = deque()  # spans to come, and what they are made of
        self._pending: deque[Piece] = deque()  # to be requested, in this order
        self._flying: deque[Piece] = deque()  # requested, in this order
        self._dry = False

    def forget(self) -> None:
        """Start from nothing; what was fetched ahead is dropped."""
        self.dropped += sum(stop - start for _, start, stop in self._arrived())
        self._source = iter(())
        self._expected.clear()
        self._pending.clear()
        self._flying.clear()
        self._dry = False

    @property
    def in_flight(self) -> Span | None:
        """The span of the oldest request the loader has not answered."""
        return self._flying[0].span if self._flying else None

    def parts_of(self, span: Span, upcoming: Callable[[], Iterator[Span]], *, divisible: bool) -> list[Part]:
        """What to make ``span`` of, in order; ``upcoming`` gives what will be asked for after it.

        Where batches are not ``divisible``, only a piece that equals a span can be used for it.
        """
        if self._expected and self._expected[0][0] == span:
            return self._expected.popleft()[1]
        spare = self._dissolve()
        self._source = upcoming() if self._across_epochs else takewhile(lambda s: s.epoch == span.epoch, upcoming())
        parts = self._lay_out(span, spare, divisible=divisible)
        if spare:
            self._look_ahead(spare, divisible=divisible)
        return parts

    def _request(self, span: Span) -> Part:
        """Let a span be requested, after all that is waiting to be; what comes is kept."""
        piece = Piece(span, claimed=span.size)
        self._pending.append(piece)
        return Part(piece, span.start, span.stop)

    def used(self, parts: list[Part]) -> None:
        """Count the parts of a span that was handed out."""
        for piece, start, stop in parts:
            if piece.stale:
                self.reused += stop - start

    def waste(self, parts: list[Part]) -> None:
        """Count the parts of a span that could not be put together; what of it is under way counts when it comes."""
        self.dropped += sum(stop - start for piece, start, stop in parts if piece.arrived)

    def restart(self) -> None:
        """The loader begins again with an empty queue; everything requested before has arrived."""
        self._dry = False

    def __iter__(self) -> Speculation:
        return self

    def __next__(self) -> list[Any]:
        if not self._dry and not self._pending:
            wanted = next(self._source, None)
            if wanted is None:
                self._dry = True
            else:
                self._expected.append((wanted, [self._request(wanted)]))
        if self._dry:
            raise StopIteration
        piece = self._pending.popleft()
        self._flying.append(piece)
        return self._keys_of(piece.span)

    def arrive(self, batch: Any) -> None:
        """Take the answer to the oldest request; what nobody wants is not kept."""
        piece = self._flying.popleft()
        self.fetched += piece.span.size
        self.dropped += piece.span.size - piece.claimed
        if piece.claimed:
            piece.batch = batch

    def _arrived(self) -> Iterator[Part]:
        return (part for _, parts in self._expected for part in parts if part.piece.arrived)

    def _dissolve(self) -> list[Part]:
        """Everything that is here or under way and not yet used, from its first position to its last."""
        spare = list(self._arrived())
        for piece in self._flying:
            piece.claimed = 0
            spare.append(Part(piece, piece.span.start, piece.span.stop))
        for part in spare:
            part.piece.stale = True
        self._expected.clear()
        self._pending.clear()
        spare.sort(key=lambda part: (part.piece.span.epoch, part.start, part.stop))
        return spare

    def _look_ahead(self, spare: list[Part], *, divisible: bool) -> None:
        """Lay out spans to come until they have passed all that is spare; then nothing of the rest is of use."""
        last = max((part.piece.span.epoch, part.stop) for part in spare)
        for wanted in islice(self._source, _PATIENCE):
            self._expected.append((wanted, self._lay_out(wanted, spare, divisible=divisible)))
            if not spare or (wanted.epoch, wanted.stop) >= last:
                break
        self.dropped += sum(stop - start for piece, start, stop in spare if piece.arrived)

    def _lay_out(self, wanted: Span, spare: list[Part], *, divisible: bool) -> list[Part]:
        """Parts that make up ``wanted``, claimed from ``spare`` where they are there, else from new requests."""
        parts: list[Part] = []
        at = wanted.start
        for claim in _claim(wanted, spare, divisible=divisible):
            if at < claim.start:
                parts.append(self._request(Span(wanted.epoch, at, claim.start)))
            parts.append(claim)
            if not claim.piece.arrived:
                claim.piece.claimed += claim.stop - claim.start
            at = claim.stop
        if at < wanted.stop:
            parts.append(self._request(Span(wanted.epoch, at, wanted.stop)))
        return parts


def _claim(wanted: Span, spare: list[Part], *, divisible: bool) -> list[Part]:
    """Take what overlaps ``wanted`` out of ``spare``, in order and without overlaps; leave the remains there."""
    if not spare:
        return []
    claims: list[Part] = []
    remains: list[Part] = []
    at = wanted.start
    for part in spare:
        piece, start, stop = part
        low, high = max(start, at), min(stop, wanted.stop)
        fits = divisible or (part.whole and piece.span == wanted)
        if piece.span.epoch != wanted.epoch or low >= high or not fits:
            remains.append(part)
            continue
        claims.append(Part(piece, low, high))
        at = high
        if start < low:
            remains.append(Part(piece, start, low))
        if high < stop:
            remains.append(Part(piece, high, stop))
    spare[:] = remains
    return claims
