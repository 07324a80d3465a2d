from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from swell.checkpoint import AsyncSaver, SaveReport, Store
from swell.checkpoint.encoding import decode
from swell.checkpoint.snapshot import HostBuffers
from swell.errors import CheckpointError
from tests.checkpoint.states import same, states
from tests.devices import needs_cuda


class Gate:
    """Lets a test stop the writing thread at a point of the save, and fail it there."""

    def __init__(self, point: str = "begun") -> None:
        self.point = point
        self.reached = threading.Event()
        self.open = threading.Event()
        self.open.set()
        self.error: Exception | None = None

    def __call__(self, point: str) -> None:
        if point == self.point:
            self.reached.set()
            self.open.wait()
            if self.error is not None:
                error, self.error = self.error, None
                raise error


class Saving:
    def __init__(self, folder: Path) -> None:
        self.gate = Gate()
        self.reports: list[SaveReport] = []
        self.warnings: list[str] = []
        self.threads: set[str] = set()
        self.store = Store(folder, keep=9, on_point=self.gate)
        self.saver = AsyncSaver(self.store, on_saved=self.on_saved, on_warning=self.warnings.append)

    def on_saved(self, report: SaveReport) -> None:
        self.reports.append(report)
        self.threads.add(threading.current_thread().name)

    def loaded(self) -> dict[str, Any]:
        newest = self.store.load_newest()
        assert newest is not None
        return newest[1]


@pytest.fixture
def saving(tmp_path: Path) -> Saving:
    return Saving(tmp_path)


def state() -> dict[str, Any]:
    return {"model": {"weight": torch.randn(1000)}, "loop": {"losses": [0.5], "seen": {"a": 1}}}


def test_training_goes_on_while_the_state_of_before_is_written(saving: Saving) -> None:
    live = state()
    before = {"model": {"weight": live["model"]["weight"].clone()}, "loop": {"losses": [0.5], "seen": {"a": 1}}}
    saving.gate.open.clear()
    assert saving.saver.save_async(live, samples=1, step=1)
    live["model"]["weight"].add_(1.0)
    live["loop"]["losses"].append(0.25)
    live["loop"]["seen"]["b"] = 2
    assert saving.saver.busy
    saving.gate.open.set()
    saving.saver.wait()
    assert same(saving.loaded(), before)


def test_a_save_that_is_due_while_one_is_written_is_left_out(saving: Saving) -> None:
    saving.gate.open.clear()
    assert saving.saver.save_async(state(), samples=1, step=1)
    assert not saving.saver.save_async(state(), samples=2, step=2)
    saving.gate.open.set()
    saving.saver.wait()
    assert saving.saver.save_async(state(), samples=3, step=3)
    saving.saver.close()
    assert [checkpoint.step for checkpoint in saving.store.all()] == [1, 3]
    assert [report.checkpoint.step for report in saving.reports] == [1, 3]


def test_a_save_that_cannot_wait_follows_the_one_being_written(saving: Saving) -> None:
    saving.gate.open.clear()
    saving.saver.save_async(state(), samples=1, step=1)
    threading.Timer(0.05, saving.gate.open.set).start()
    checkpoint = saving.saver.save(state(), samples=2, step=2, name="notice")
    assert [saved.step for saved in saving.store.all()] == [1, 2]
    assert saving.store.newest() == checkpoint and checkpoint.name == "notice"
    assert [report.checkpoint.step for report in saving.reports] == [1, 2]


def test_reports_come_on_the_thread_that_asks(saving: Saving) -> None:
    saving.saver.save_async(state(), samples=1, step=1)
    saving.saver.wait()
    assert saving.threads == {threading.current_thread().name}
    report = saving.reports[0]
    assert report.held_s > 0 and report.write_s > 0
    assert saving.saver.poll() is None and len(saving.reports) == 1, "once"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "no space"),
        (RuntimeError("odd"), "odd"),
    ],
)
def test_a_failure_is_a_warning_then_an_error_where_one_waits_and_the_next_save_works(
    saving: Saving, error: Exception, message: str
) -> None:
    saving.saver.save(state(), samples=1, step=1)
    saving.gate.error = error
    assert saving.saver.save_async(state(), samples=2, step=2)
    with pytest.raises(CheckpointError, match=message):
        saving.saver.wait()
    assert len(saving.warnings) == 1 and message in saving.warnings[0]
    saving.saver.wait()
    assert saving.saver.save_async(state(), samples=3, step=3)
    saving.saver.wait()
    assert [checkpoint.step for checkpoint in saving.store.all()] == [1, 3]


def test_closing_finishes_the_save_being_written_and_only_warns(saving: Saving) -> None:
    saving.gate.error = OSError(errno.EROFS, "Read-only file system")
    saving.saver.save_async(state(), samples=1, step=1)
    saving.saver.close()
    assert "read-only" in saving.warnings[0]


def test_a_state_that_cannot_be_held_is_refused_at_once(saving: Saving) -> None:
    with pytest.raises(CheckpointError, match=r"loop\['hook'\]"):
        saving.saver.save_async({"loop": {"hook": print}}, samples=1, step=1)
    assert not saving.saver.busy
    assert saving.saver.save_async(state(), samples=1, step=1)
    saving.saver.close()


def test_host_memory_is_used_again_from_one_save_to_the_next() -> None:
    buffers = HostBuffers()
    first = buffers.take(state()).parts["model"]["weight"].data_ptr()
    size = buffers.num_bytes
    for _ in range(3):
        assert buffers.take(state()).parts["model"]["weight"].data_ptr() == first
    assert buffers.num_bytes == size


@settings(max_examples=30)
@given(lives=st.lists(st.dictionaries(st.just("part"), states), min_size=1, max_size=4))
def test_a_copy_in_used_memory_equals_its_state(lives: list[dict[str, Any]]) -> None:
    buffers = HostBuffers()
    for live in lives:
        assert same(decode(dict(buffers.take(live).parts)), live)


def test_memory_allocated_ahead_is_all_that_the_first_save_needs() -> None:
    live = {"model": {str(i): torch.randn(1000 * i + 1) for i in range(9)}, "rng": torch.arange(7, dtype=torch.uint8)}
    buffers = HostBuffers()
    buffers.room_for(live)()
    size = buffers.num_bytes
    assert same(dict(buffers.take(live).parts), live)
    assert buffers.num_bytes == size
    buffers.room_for({"model": torch.zeros(3)})()
    assert buffers.num_bytes == size


def test_a_saver_may_be_prepared_at_any_time(saving: Saving) -> None:
    live = state()
    for step in range(3):
        saving.saver.prepare(live)
        assert saving.saver.save_async(live, samples=step, step=step)
        saving.saver.prepare({"model": {"weight": torch.randn(9_000_000)}})
        saving.saver.wait()
        assert same(saving.loaded(), live)
    saving.saver.close()


def test_preparing_for_a_state_that_cannot_be_held_leaves_the_refusal_to_the_save(saving: Saving) -> None:
    saving.saver.prepare({"loop": {"hook": print}})
    assert saving.saver.save_async(state(), samples=1, step=1)
    saving.saver.close()


def test_a_state_that_grows_finds_room() -> None:
    buffers = HostBuffers()
    for size in (10, 3_000_000, 7, 5_000_000):
        live = {"model": {str(i): torch.randn(size) for i in range(3)}}
        snapshot = buffers.take(live)
        assert same(dict(snapshot.parts), live)


def test_copies_keep_their_layout_and_shared_memory_is_copied_once() -> None:
    weight = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    live = {"model": {"a": weight, "b": weight.detach(), "view": weight[0], "empty": torch.empty(0, 3)}}
    parts = HostBuffers().take(live).parts["model"]
    assert parts["a"].stride() == weight.stride()
    assert parts["a"] is parts["b"]
    assert same(dict(parts), live["model"])
    sizes = {tensor.untyped_storage().nbytes() for tensor in (parts["a"], parts["view"])}
    assert sizes == {weight.numel() * 4, weight[0].numel() * 4}, "each has a storage of its own size"


@needs_cuda
def test_a_state_on_a_device_is_copied_in_the_order_of_its_stream(saving: Saving) -> None:
    weight = torch.zeros(4_000_000, device="cuda")
    for step in range(1, 6):
        weight.fill_(float(step))
        saving.saver.save_async({"model": {"weight": weight}}, samples=step, step=step)
        weight.fill_(-1.0)
        saving.saver.wait()
        assert same(saving.loaded()["model"]["weight"], torch.full((4_000_000,), float(step)))
