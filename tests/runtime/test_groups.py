"""Groups are left for good, whatever state they are in, and NCCL's communicators are aborted first."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

from swell.runtime.process_groups import abort_default_group, join_default_group, keep_for_ever


@pytest.fixture
def alone() -> Iterator[Any]:
    """A process group of one."""
    cpu = torch.device("cpu")
    yield join_default_group(backend="gloo", device=cpu, timeout_s=30.0, store=dist.HashStore(), rank=0, size=1)
    if dist.is_initialized():
        dist.destroy_process_group()


def test_with_nccl_the_old_communicators_are_aborted_before_new_ones_can_be_made(
    alone: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    aborted = []

    def abort() -> None:
        aborted.append(dist.is_initialized())
        dist.destroy_process_group()

    monkeypatch.setattr(dist.distributed_c10d, "_abort_process_group", abort)
    abort_default_group("nccl")
    assert aborted == [True]
    assert not dist.is_initialized()


def test_where_torch_cannot_abort_the_group_is_destroyed(alone: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(dist.distributed_c10d, "_abort_process_group", raising=False)
    abort_default_group("nccl")
    assert not dist.is_initialized()


def test_gloo_has_nothing_to_abort(alone: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist.distributed_c10d, "_abort_process_group", lambda: pytest.fail("aborted"))
    abort_default_group("gloo")
    assert not dist.is_initialized()


def test_a_group_that_was_never_made_can_be_left() -> None:
    abort_default_group("gloo")
    assert not dist.is_initialized()


def test_a_group_in_which_a_thread_is_stuck_is_never_let_go(alone: Any) -> None:
    before = sys.getrefcount(alone.group)
    keep_for_ever(alone)
    assert sys.getrefcount(alone.group) > before
