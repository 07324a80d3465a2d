"""Which samples to fetch ahead, and how they are used when the plan changes.

A loader with workers fetches batches before they are asked for, so it must guess. While the plan stays, each request is
a span that will be asked for. When another span is asked for, requests under way cannot be called back. So a span is
made of excerpts of the requests that cover it, and only positions that no request covers are requested::

    requested           [-- 64..96 --][-- 96..128 --][-- 128..160 --]
    asked for now       [------ 64..112 ------][------ 112..160 ------]
    made of             64..96 + 96..112        112..128 + 128..160          nothing is read again

Dropping the requests instead would be simpler, but loads 17 % more samples if the micro-batch changes every 24 steps,
and 5 times as many on a ramp (``benchmarks/loader/README.md``).
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import takewhile
from operator import attrgetter
from typing import Any, NamedTuple

from swell.data.span import Span

_ABSENT: Any = object()
_END = attrgetter("end")


@dataclass(slots=True, eq=False)
class Request:
    """One request to the loader, and its batch once that has arrived."""

    span: Span
    end: tuple[int, int]  # the span's epoch and stop
    next: int  # the first position that is not taken
    used: int = 0  # samples that were handed out
    needed: bool = True  # whether the batch is kept when it arrives
    batch: Any = _ABSENT

    @property
    def arrived(self) -> bool:
        """Whether the batch has come."""
        return self.batch is not _ABSENT


class Excerpt(NamedTuple):
    """Positions ``start`` to ``stop`` of a request's epoch, taken from its batch."""

    request: Request
    start: int
    stop: int

    @property
    def whole(self) -> bool:
        """Whether it is all of its request."""
        return self.stop - self.start == self.request.span.size


class Prefetch:
    """The batch sampler behind a feed: an endless iterator of index lists that can be corrected at any time.

    ``take`` says what an asked-for span is made of; ``__next__`` hands the next request to the loader; ``arrive`` takes
    the loader's batches, which come in the order of the requests; ``use`` counts what was handed out. With
    ``across_epochs`` it fetches ahead into the next epoch.

    Once it has raised ``StopIteration`` it is dry and stays so until the loader is started again, because a loader does
    not refill a place in its queue that was once left empty.
    """

    def __init__(self, keys_of: Callable[[Span], list[Any]], *, across_epochs: bool) -> None:
        self._keys_of = keys_of
        self._across_epochs = across_epochs
        self.divisible = True  # whether batches may be cut and joined; else a span needs a request of its own
        self.fetched = 0  # samples that came from the loader
        self.reused = 0  # of these, samples handed out in another batch than they were requested in
        self.dropped = 0  # of these, samples that were not handed out
        self._upcoming: Iterator[Span] = iter(())  # spans to expect after the last one in _expected
        self._expected: deque[Span] = deque()
        # Requests that end after the last span used, sorted by their ends. If they are divisible, the positions of them
        # that are not taken do not overlap, so these are sorted too.
        self._requests: list[Request] = []
        self._pending: deque[Request] = deque()  # requests that the loader does not have yet
        self._flying: deque[Request] = deque()  # requests that it has not answered yet
        self._dry = False

    @property
    def in_flight(self) -> Span | None:
        """The span of the oldest request the loader has not answered."""
        return self._flying[0].span if self._flying else None

    def take(self, span: Span, upcoming: Callable[[], Iterator[Span]]) -> list[Excerpt]:
        """What to make ``span`` of, in order; ``upcoming`` gives what will be asked for after it."""
        if self._expected and self._expected[0] == span:
            self._expected.popleft()
        else:
            self._expected.clear()
            self._requests = [request for request in self._requests if request not in self._pending]
            self._pending.clear()
            later = upcoming()
            self._upcoming = later if self._across_epochs else takewhile(lambda s: s.epoch == span.epoch, later)
        excerpts: list[Excerpt] = []
        for request in self._cover(span):
            start, request.next = max(request.next, span.start), min(request.span.stop, span.stop)
            excerpts.append(Excerpt(request, start, request.next))
        return excerpts

    def use(self, span: Span, excerpts: list[Excerpt]) -> None:
        """Count the excerpts as handed out, and drop the requests that the reader has passed."""
        for request, start, stop in excerpts:
            request.used += stop - start
            if request.span != span:
                self.reused += stop - start
        passed = bisect_right(self._requests, (span.epoch, span.stop), key=_END)
        for request in self._requests[:passed]:
            self._drop(request)
        del self._requests[:passed]

    def forget(self) -> None:
        """Drop everything that was fetched ahead or requested."""
        for request in self._requests:
            self._drop(request)
        self._upcoming = iter(())
        self._expected.clear()
        self._requests.clear()
        self._pending.clear()
        self._flying.clear()
        self._dry = False

    def restart(self) -> None:
        """Serve a loader whose queue is empty; every earlier request has arrived."""
        self._dry = False

    def __iter__(self) -> Prefetch:
        return self

    def __next__(self) -> list[Any]:
        while not self._pending and not self._dry:
            span = next(self._upcoming, None)
            if span is None:
                self._dry = True
            else:
                self._expected.append(span)
                self._cover(span)
        if self._dry:
            raise StopIteration
        request = self._pending.popleft()
        self._flying.append(request)
        return self._keys_of(request.span)

    def arrive(self, batch: Any) -> None:
        """Take the answer to the oldest request; keep it if it is needed."""
        request = self._flying.popleft()
        self.fetched += request.span.size
        if request.needed:
            request.batch = batch
        else:
            self.dropped += request.span.size

    def _drop(self, request: Request) -> None:
        request.needed = False
        if request.arrived:
            self.dropped += request.span.size - request.used

    def _cover(self, span: Span) -> list[Request]:
        """Requests that together hold every position of ``span``, in order; missing ones are added."""
        cover: list[Request] = []
        start = span.start
        for request in self._requests[bisect_right(self._requests, (span.epoch, start), key=_END) :]:
            if request.span.epoch > span.epoch or request.span.start >= span.stop or start == span.stop:
                break
            if request.next == request.span.stop or request.next >= span.stop:
                continue  # nothing of it is left for this span
            if not self.divisible and (request.span != span or request.next > start):
                continue
            if start < request.next:
                cover.append(self._add(Span(span.epoch, start, request.next)))
            cover.append(request)
            start = min(request.span.stop, span.stop)
        if start < span.stop:
            cover.append(self._add(span if start == span.start else Span(span.epoch, start, span.stop)))
        return cover

    def _add(self, span: Span) -> Request:
        request = Request(span, (span.epoch, span.stop), span.start)
        insort(self._requests, request, key=_END)
        self._pending.append(request)
        return request
