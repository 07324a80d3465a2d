from __future__ import annotations

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from swell.data.prefetch import Prefetch
from swell.data.span import Span
from tests.data.plans import PHASES, WILD, N, Phase, asked_for

DEPTHS = st.integers(1, 6)


class Loader:
    """A loader with workers, as far as it matters: it keeps ``depth`` requests under way while it gets some."""

    def __init__(self, prefetch: Prefetch, depth: int) -> None:
        self.prefetch, self.depth = prefetch, depth
        self.queue: deque[list[int]] = deque()

    def start(self) -> None:
        self.prefetch.restart()
        for _ in range(self.depth):
            self.take()

    def take(self) -> None:
        try:
            self.queue.append(next(self.prefetch))
        except StopIteration:
            return

    def answer(self) -> None:
        if not self.queue:
            self.start()
        batch = self.queue.popleft()
        self.take()
        self.prefetch.arrive(batch)


class Reader:
    """Assembles spans of positions as a feed does with batches."""

    def __init__(self, depth: int, *, divisible: bool, across_epochs: bool = True) -> None:
        self.requested: list[tuple[int, int]] = []
        self.prefetch = Prefetch(self.keys, across_epochs=across_epochs)
        self.loader = Loader(self.prefetch, depth)
        self.prefetch.divisible = self.divisible = divisible
        self.returned = 0

    def keys(self, span: Span) -> list[tuple[int, int]]:
        keys = [(span.epoch, position) for position in range(span.start, span.stop)]
        self.requested += keys
        return keys

    def fetch(self, span: Span, foreseen: list[Span]) -> list[tuple[int, int]]:
        excerpts = self.prefetch.take(span, lambda: iter(foreseen))
        batch = []
        for request, start, stop in excerpts:
            while not request.arrived:
                self.loader.answer()
            assert self.divisible or request.span == span
            batch += request.batch[start - request.span.start : stop - request.span.start]
        self.prefetch.use(span, excerpts)
        self.returned += span.size
        return batch


def positions(span: Span) -> list[tuple[int, int]]:
    return [(span.epoch, position) for position in range(span.start, span.stop)]


@given(asked=WILD, depth=DEPTHS, divisible=st.booleans(), across=st.booleans())
def test_a_span_is_made_of_its_samples_in_order_whatever_was_asked_for_or_foreseen_before(
    asked: list[tuple[Span, list[Span]]], depth: int, divisible: bool, across: bool
) -> None:
    reader = Reader(depth, divisible=divisible, across_epochs=across)
    for span, foreseen in asked:
        assert reader.fetch(span, foreseen) == positions(span)


@given(phases=st.lists(PHASES, min_size=1, max_size=5), depth=DEPTHS, divisible=st.booleans())
def test_a_span_is_made_of_its_samples_however_the_plan_changes(
    phases: list[Phase], depth: int, divisible: bool
) -> None:
    reader = Reader(depth, divisible=divisible)
    for epoch in range(2):
        for span, foreseen in asked_for(phases, epoch=epoch):
            assert reader.fetch(span, foreseen) == positions(span)


@given(asked=WILD, depth=DEPTHS, divisible=st.booleans())
def test_every_sample_fetched_is_handed_out_or_counted_as_dropped(
    asked: list[tuple[Span, list[Span]]], depth: int, divisible: bool
) -> None:
    reader = Reader(depth, divisible=divisible)
    for span, foreseen in asked:
        reader.fetch(span, foreseen)
    reader.prefetch.forget()
    assert reader.prefetch.fetched == reader.returned + reader.prefetch.dropped
    assert reader.prefetch.reused <= reader.returned


@given(micros=st.lists(st.integers(1, 40), min_size=1, max_size=6), depth=DEPTHS)
def test_a_replica_alone_reads_every_sample_once_however_the_batch_changes(micros: list[int], depth: int) -> None:
    phases = [Phase(steps=2, rank=0, replicas=1, micro=micro, accumulation=1) for micro in micros]
    reader = Reader(depth, divisible=True)
    for span, foreseen in asked_for(phases):
        reader.fetch(span, foreseen)
    assert sorted(reader.requested) == [(0, position) for position in range(N)]
    assert reader.prefetch.dropped == 0


@given(before=PHASES, after=PHASES, depth=DEPTHS)
def test_samples_fetched_ahead_that_are_still_wanted_are_not_read_again(
    before: Phase, after: Phase, depth: int
) -> None:
    reader = Reader(depth, divisible=True)
    returned: list[tuple[int, int]] = []
    first = min(before.steps * before.share * before.replicas, N)
    for span, foreseen in asked_for([before]):
        if span.stop <= first:
            returned += reader.fetch(span, foreseen)
    ahead = set(reader.requested) - set(returned)
    reader.requested.clear()
    needed = [span for span, _ in after.spans(0, first)]
    for i, span in enumerate(needed):
        assert reader.fetch(span, needed[i + 1 :]) == positions(span)
    assert not ahead & set(reader.requested)


@given(phase=PHASES, depth=DEPTHS)
def test_the_loader_is_kept_busy_while_the_plan_holds(phase: Phase, depth: int) -> None:
    reader = Reader(depth, divisible=True)
    asked = [(span, foreseen) for span, foreseen in asked_for([phase])]
    for span, foreseen in asked:
        reader.fetch(span, foreseen)
        assert len(reader.loader.queue) == min(depth, len(foreseen))


def test_the_epoch_after_is_foreseen_only_where_it_may_be() -> None:
    for across in (True, False):
        reader = Reader(4, divisible=True, across_epochs=across)
        reader.fetch(Span(0, 232, 240), [Span(1, 0, 8), Span(1, 8, 16)])
        assert ((1, 0) in reader.requested) is across


def test_a_step_that_is_done_again_uses_what_was_fetched_ahead_of_it() -> None:
    reader = Reader(2, divisible=True)
    spans = [Span(0, start, start + 8) for start in range(0, 80, 8)]
    for i, span in enumerate(spans[:4]):
        reader.fetch(span, spans[i + 1 :])
    before = len(reader.requested)
    assert reader.fetch(spans[3], spans[4:]) == positions(spans[3])
    assert reader.fetch(spans[4], spans[5:]) == positions(spans[4])
    again = reader.requested[before:]
    assert set(again) & set(positions(spans[4]) + positions(spans[5])) == set()
    assert reader.prefetch.dropped == 0
