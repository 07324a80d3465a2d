from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from swell.core.order import Sequential
from swell.data.feed import Feed
from swell.data.span import Span
from swell.errors import LoadError
from tests.data.interruption import interrupted

N = 96


def order_of(epoch: int) -> Sequential:
    return Sequential(N)


def spans(epoch: int = 0, size: int = 8) -> list[Span]:
    return [Span(epoch, start, start + size) for start in range(0, N, size)]


def read(feed: Feed, asked: list[Span], *, then: list[Span] | None = None) -> list[Any]:
    return [feed.fetch(span, lambda i=i: iter(asked[i + 1 :] + (then or []))) for i, span in enumerate(asked)]


class ByProcess(Dataset[tuple[int, int]]):
    """Each sample holds the process that read it, and a mark that the main process may set at any time."""

    mark = 0

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> tuple[int, int, int]:
        return index, os.getpid(), self.mark


def readers(batches: list[Any]) -> set[int]:
    return {int(pid) for batch in batches for pid in batch[1]}


def test_persistent_workers_read_every_epoch() -> None:
    feed = Feed(ByProcess(), order_of, num_workers=2, persistent_workers=True)
    pids = [readers(read(feed, spans(epoch))) for epoch in range(3)]
    feed.close()
    assert len(pids[0]) == 2
    assert os.getpid() not in pids[0]
    assert pids[0] == pids[1] == pids[2]


def test_persistent_workers_fetch_ahead_into_the_next_epoch() -> None:
    feed = Feed(ByProcess(), order_of, num_workers=2, persistent_workers=True)
    read(feed, spans(0), then=spans(1))
    fetched = feed.fetched
    batches = read(feed, spans(1))
    feed.close()
    assert [index for batch in batches for index in batch[0].tolist()] == list(range(N))
    assert feed.fetched == fetched + N
    assert feed.dropped == 0


def test_without_persistent_workers_each_epoch_sees_the_data_set_as_it_then_is() -> None:
    dataset = ByProcess()
    feed = Feed(dataset, order_of, num_workers=2)
    pids: list[set[int]] = []
    for epoch in range(2):
        dataset.mark = epoch + 10
        batches = read(feed, spans(epoch), then=spans(epoch + 1))
        pids.append(readers(batches))
        assert {int(mark) for batch in batches for mark in batch[2]} == {epoch + 10}
    feed.close()
    assert not pids[0] & pids[1]


def test_when_more_is_asked_for_than_was_foreseen_the_same_workers_go_on() -> None:
    feed = Feed(ByProcess(), order_of, num_workers=2)
    first = readers(read(feed, spans()[:6]))
    rest = readers(read(feed, spans()[6:]))
    feed.close()
    assert first == rest


class Counted(Dataset[int]):
    """Counts the samples that all workers have read."""

    def __init__(self) -> None:
        self.count = multiprocessing.Value("i", 0)

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> int:
        with self.count.get_lock():
            self.count.value += 1
        return index

    def reaches(self, samples: int) -> bool:
        deadline = time.monotonic() + 20
        while self.count.value < samples and time.monotonic() < deadline:
            time.sleep(0.01)
        return self.count.value >= samples


def test_all_places_of_the_queue_are_filled_again_after_the_end_of_what_was_foreseen() -> None:
    dataset = Counted()
    feed = Feed(dataset, order_of, num_workers=2, prefetch_factor=2, persistent_workers=True)
    read(feed, spans()[:6])
    feed.fetch(spans()[6], lambda: iter(spans()[7:]))
    assert dataset.reaches(7 * 8 + 4 * 8)
    feed.close()


class DiesOnce(ByProcess):
    """Kills the worker that reads one sample, the first time it is read."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __getitem__(self, index: int) -> tuple[int, int, int]:
        if index == 40 and not self.trace.exists():
            self.trace.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


# torch's handler of SIGCHLD raises wherever the main thread is; inside a __del__ Python can only warn of it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_killed_worker_is_an_error_after_which_new_workers_go_on(tmp_path: Path) -> None:
    feed = Feed(DiesOnce(tmp_path / "died"), order_of, num_workers=2, persistent_workers=True)
    got: list[int] = []
    errors: list[RuntimeError] = []
    todo = spans()
    while todo:
        try:
            got += feed.fetch(todo[0], lambda: iter(todo[1:]))[0].tolist()
            todo.pop(0)
        except RuntimeError as error:  # torch raises it in the main thread, wherever that is just then
            errors.append(error)
    feed.close()
    assert got == list(range(N))
    assert 1 <= len(errors) <= 2
    for error in errors:
        assert "starts new workers" in str(error) if isinstance(error, LoadError) else "is killed" in str(error)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_error_at_any_instruction_loses_nothing(num_workers: int) -> None:
    feed = Feed(torch.arange(N), order_of, num_workers=num_workers, prefetch_factor=2 if num_workers else None)
    ahead = spans()

    def fetch(span: Span) -> Any:
        return feed.fetch(span, lambda: iter(ahead[ahead.index(span) + 1 :]))

    at = 0
    while interrupted(lambda: fetch(ahead[2]), at):
        for span in ahead[3:5]:
            assert fetch(span).tolist() == list(range(span.start, span.stop))
        at += 1 if num_workers == 0 else 3
        if at % 2:
            fetch(ahead[1])  # so that every other time the span is foreseen
    assert at > 15
    feed.close()


class Stuck(ByProcess):
    def __getitem__(self, index: int) -> tuple[int, int, int]:
        if index == 8:
            time.sleep(600)  # until it is stopped
        return super().__getitem__(index)


def test_a_worker_that_takes_too_long_is_an_error() -> None:
    feed = Feed(Stuck(), order_of, num_workers=1, timeout=1)
    assert feed.fetch(Span(0, 0, 8))[0].tolist() == list(range(8))
    workers = multiprocessing.active_children()
    with pytest.raises(LoadError, match=r"timed out after 1 seconds"):
        feed.fetch(Span(0, 8, 16))
    for process in workers:
        process.join(timeout=30)  # it stops in a moment
    assert not any(process.is_alive() for process in workers)


def workers_of(feed: Feed) -> list[Any]:
    before = set(multiprocessing.active_children())
    feed.fetch(spans()[0], lambda: iter(spans()[1:]))
    return [process for process in multiprocessing.active_children() if process not in before]


def test_close_stops_the_workers_and_a_later_fetch_starts_new_ones() -> None:
    feed = Feed(ByProcess(), order_of, num_workers=2, persistent_workers=True)
    workers = workers_of(feed)
    assert len(workers) == 2
    feed.close()
    feed.close()
    assert not any(worker.is_alive() for worker in workers)
    assert feed.fetch(Span(0, 8, 16))[0].tolist() == list(range(8, 16))
    feed.close()


def test_a_feed_that_is_forgotten_takes_its_workers_with_it() -> None:
    gc.disable()  # workers must stop at once, not when the collector runs
    try:
        feed = Feed(ByProcess(), order_of, num_workers=2, persistent_workers=True)
        workers = workers_of(feed)
        del feed
        assert not any(worker.is_alive() for worker in workers)
    finally:
        gc.enable()


def test_a_process_that_ends_with_batches_under_way_ends_quietly() -> None:
    code = textwrap.dedent(
        """
        from swell.core.order import Sequential
        from swell.data.feed import Feed
        from swell.data.span import Span

        feed = Feed(range(1000), lambda epoch: Sequential(1000), num_workers=2, persistent_workers=True)
        for start in range(0, 80, 8):
            feed.fetch(Span(0, start, start + 8), lambda: (Span(0, s, s + 8) for s in range(start + 8, 1000, 8)))
        """
    )
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


def test_workers_may_be_spawned() -> None:
    feed = Feed(torch.arange(N), order_of, num_workers=1, multiprocessing_context="spawn")
    assert feed.fetch(Span(0, 0, 8), lambda: iter(spans()[1:])).tolist() == list(range(8))
    assert feed.fetch(Span(0, 8, 20), lambda: iter(())).tolist() == list(range(8, 20))
    feed.close()


class Pinnable:
    """A batch of its own type, which can pin itself."""

    def __init__(self, samples: list[int]) -> None:
        self.values = torch.tensor(samples)
        self.pinned = False

    def pin_memory(self) -> Pinnable:
        self.values, self.pinned = self.values.pin_memory(), True
        return self


needs_accelerator = pytest.mark.skipif(
    not torch.accelerator.is_available(), reason="memory is pinned for an accelerator"
)


@needs_accelerator
@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_are_pinned_also_when_they_were_cut_and_joined(num_workers: int) -> None:
    feed = Feed(torch.arange(N), order_of, num_workers=num_workers, pin_memory=True)
    feed.fetch(Span(0, 0, 8), lambda: iter(spans()[1:]))
    for start, stop in [(8, 20), (20, 28), (28, 60)]:
        batch = feed.fetch(Span(0, start, stop), lambda: iter(()))
        assert batch.tolist() == list(range(start, stop))
        assert batch.is_pinned()
    feed.close()


@needs_accelerator
@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_of_other_types_pin_themselves(num_workers: int) -> None:
    feed = Feed(range(N), order_of, num_workers=num_workers, pin_memory=True, collate_fn=Pinnable)
    batch = feed.fetch(Span(0, 0, 8))
    feed.close()
    assert batch.pinned
    assert batch.values.tolist() == list(range(8))


def test_without_an_accelerator_pinning_is_said_to_do_nothing_and_batches_come() -> None:
    if torch.accelerator.is_available():
        pytest.skip("there is an accelerator")
    feed = Feed(range(N), order_of, pin_memory=True)
    with pytest.warns(UserWarning, match="no accelerator"):
        assert feed.fetch(Span(0, 0, 8)).tolist() == list(range(8))
