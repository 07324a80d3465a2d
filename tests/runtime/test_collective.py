"""What replicas exchange arrives whole, in rank order, at every size of world."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from pathlib import Path

import pytest
import torch

from swell.core.protocols import Collective
from swell.errors import ConfigError, WorldError
from swell.runtime.collective import Alone, TorchCollective
from swell.runtime.peer_failures import is_peer_failure
from tests.workers import Died, run_processes, run_workers

WORLDS = [1, 2, 3, 5]


def tell_everything(collective: Collective, _: int = 0) -> dict[str, object]:
    assert isinstance(collective, TorchCollective)
    rank = collective.rank
    numbers = collective.gather_numbers([rank, math.pi * rank, -math.inf, 2.0**53])
    text = collective.gather_text("größe " * rank)
    collective.barrier()
    return {
        "rank": (rank, collective.size),
        "numbers": numbers,
        "text": text,
        "empty": collective.gather_text(""),
        "none": collective.gather_numbers([]),
    }


@pytest.mark.distributed
@pytest.mark.parametrize("world", WORLDS)
def test_numbers_and_text_arrive_in_rank_order_on_every_rank(world: int) -> None:
    for rank, result in enumerate(run_workers(world, tell_everything, 0)):
        assert result["rank"] == (rank, world)
        assert result["numbers"] == [[r, math.pi * r, -math.inf, 2.0**53] for r in range(world)]
        assert result["text"] == ["größe " * r for r in range(world)]
        assert result["empty"] == [""] * world
        assert result["none"] == [[]] * world


def mixed_tensors(rank: int) -> list[torch.Tensor]:
    """Several dtypes, a scalar, an empty one, one that is not contiguous, one above the size of a bucket."""
    return [
        torch.full((3, 4), float(rank)),
        torch.arange(6, dtype=torch.float64).view(2, 3).t() * rank,
        torch.full((5,), rank, dtype=torch.bfloat16),
        torch.full((), rank, dtype=torch.int64),
        torch.empty(0),
        torch.full((2, 2), float(rank), dtype=torch.float16),
        torch.full((9 * 2**20,), float(rank)),
        torch.full((7,), float(rank)),
    ]


def sum_and_broadcast(collective: Collective) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    summed = mixed_tensors(collective.rank)
    parameter = torch.nn.Parameter(torch.full((4,), float(collective.rank)))
    strides = [tensor.stride() for tensor in summed]
    collective.sum_tensors([*summed, parameter])
    assert [tensor.stride() for tensor in summed] == strides
    assert parameter.requires_grad
    received = mixed_tensors(collective.rank)
    collective.broadcast_tensors(received, source=collective.size - 1)
    keep = [tensor[:4] if tensor.numel() > 1000 else tensor for tensor in summed]
    return [*[t.clone() for t in keep], parameter.detach()], [t.clone() for t in received if t.numel() < 1000]


@pytest.mark.distributed
@pytest.mark.parametrize("world", WORLDS)
def test_tensors_of_every_kind_are_summed_and_broadcast_in_place(world: int) -> None:
    ranks = [mixed_tensors(rank) for rank in range(world)]
    total = [sum(same[1:], same[0]) for same in zip(*ranks, strict=True)]
    for summed, received in run_workers(world, sum_and_broadcast):
        for got, expected in zip(summed, [*total, torch.full((4,), float(sum(range(world))))], strict=True):
            assert isinstance(expected, torch.Tensor)
            torch.testing.assert_close(got, expected[: len(got)] if got.dim() else expected)
        small = [t for t in mixed_tensors(world - 1) if t.numel() < 1000]
        for got, expected in zip(received, small, strict=True):
            assert torch.equal(got, expected)


def lose_the_last(collective: Collective, doing: str) -> str:
    if collective.rank == collective.size - 1:
        collective.barrier()
        os.kill(os.getpid(), signal.SIGKILL)
    collective.barrier()
    # gloo may miss the loss; who is told of it, as an elastic worker is, does not wait for ever.
    told = threading.Timer(20.0, setattr, (collective, "lost", True))
    told.daemon = True
    told.start()
    with pytest.raises(WorldError) as caught:
        for _ in range(2):  # what was already under way may still come through once
            if doing == "numbers":
                collective.gather_numbers([1.0])
            elif doing == "text":
                collective.gather_text("x")
            elif doing == "sum":
                collective.sum_tensors([torch.ones(1000)])
            elif doing == "broadcast":
                collective.broadcast_tensors([torch.ones(1000)], source=collective.size - 1)
            elif doing == "prepare" and isinstance(collective, TorchCollective):
                collective.prepare_sums()
            else:
                collective.barrier()
    return str(caught.value)


@pytest.mark.distributed
@pytest.mark.parametrize("doing", ["numbers", "text", "sum", "broadcast", "prepare", "barrier"])
def test_a_lost_peer_surfaces_as_a_world_error_in_whatever_is_done_next(doing: str) -> None:
    *survivors, lost = run_workers(3, lose_the_last, doing, may_die={2})
    assert lost == Died(-signal.SIGKILL)
    assert all("a worker was lost" in message for message in survivors)


def leave_a_peer_that_does_not_answer(left: str) -> bool:
    """Rank 1 answers no more; the other one is told that it is lost, and leaves."""
    from swell.runtime.world import open_world

    world = open_world("cpu")
    collective = world.collective
    assert isinstance(collective, TorchCollective)
    collective.barrier()
    if collective.rank == 1:
        for _ in range(500):
            if Path(left).exists():
                return True
            time.sleep(0.1)
        return False
    collective.lost = True
    with pytest.raises(WorldError, match="a worker was lost and the exchange with it did not end"):
        collective.sum_tensors([torch.ones(1000)])
    world.close()
    Path(left).touch()
    return True


@pytest.mark.distributed
def test_a_group_is_left_at_once_where_an_exchange_does_not_end(tmp_path: Path) -> None:
    assert run_processes(2, leave_a_peer_that_does_not_answer, str(tmp_path / "left")) == [True, True]


def a_mistake(collective: Collective) -> None:
    if collective.rank == 1:
        raise ValueError("the data are wrong")
    collective.barrier()


@pytest.mark.distributed
def test_the_harness_raises_the_first_cause_and_not_its_echo() -> None:
    with pytest.raises(ValueError, match="the data are wrong") as caught:
        run_workers(3, a_mistake)
    assert "a_mistake" in str(caught.value.__cause__)


def wait_for_nothing(seconds: float) -> None:
    time.sleep(seconds)


@pytest.mark.distributed
def test_the_harness_ends_workers_that_hang() -> None:
    with pytest.raises(TimeoutError, match=r"workers \[0, 1\] of 2"):
        run_processes(2, wait_for_nothing, 60.0, timeout_s=1.0)


def test_one_process_is_a_world_of_size_one() -> None:
    alone: Collective = Alone()
    tensor = torch.ones(3)
    alone.sum_tensors([tensor])
    alone.broadcast_tensors([tensor], source=0)
    alone.barrier()
    assert (alone.rank, alone.size) == (0, 1)
    assert alone.gather_numbers([1, 2]) == [[1.0, 2.0]]
    assert alone.gather_text("x") == ["x"]
    assert torch.equal(tensor, torch.ones(3))
    with pytest.raises(ConfigError, match="source is 1"):
        alone.broadcast_tensors([tensor], source=1)


def test_a_models_own_error_is_not_taken_for_a_lost_peer() -> None:
    assert not is_peer_failure(RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB"))
    assert not is_peer_failure(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert not is_peer_failure(ValueError("connection closed by peer"))


def give_up_while_everybody_holds_on() -> tuple[str, int]:
    """Lose a neighbour, cut what is left, and let those further away notice, with every reference still held."""
    import torch.distributed as dist

    from swell.runtime.sockets import Connections
    from swell.runtime.world import open_world

    connections = Connections()
    with connections.recorded():
        world = open_world("cpu", timeout_s=300)
    collective = world.collective
    collective.barrier()
    if collective.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    works = [dist.all_reduce(torch.ones(1_000_000), async_op=True) for _ in range(4)]
    with pytest.raises(RuntimeError) as caught:
        for work in works:
            assert work is not None
            work.wait()
    assert is_peer_failure(caught.value)
    severed = connections.sever()
    assert connections.sever() == 0
    dist.destroy_process_group()
    return "noticed", severed


@pytest.mark.distributed
def test_cut_connections_free_the_others_whoever_still_holds_the_group() -> None:
    results = run_processes(6, give_up_while_everybody_holds_on, may_die={1})
    assert results[1] == Died(-signal.SIGKILL)
    survivors = [result for rank, result in enumerate(results) if rank != 1]
    assert all(outcome == "noticed" for outcome, _ in survivors)
    assert sum(severed for _, severed in survivors) > 0


def begin_a_sum_and_leave_it(collective: Collective, _: int = 0) -> list[bool]:
    assert isinstance(collective, TorchCollective)
    done = collective.begin_sum(torch.ones(3))
    done.wait()
    collective.settle()
    settled = [collective.stuck]
    if collective.rank == 0:
        collective.begin_sum(torch.ones(3))
        collective.settle()
    settled.append(collective.stuck)
    collective.barrier()
    if collective.rank != 0:
        collective.begin_sum(torch.ones(3)).wait()
    return settled


@pytest.mark.distributed
def test_a_group_with_an_exchange_that_does_not_end_counts_as_stuck() -> None:
    first, *others = run_workers(3, begin_a_sum_and_leave_it, 0)
    assert first == [False, True] and others == [[False, False]] * 2


def sum_in_bfloat16(collective: Collective, length: int) -> tuple[torch.Tensor, torch.Tensor, list[bool]]:
    assert isinstance(collective, TorchCollective)
    generator = torch.Generator().manual_seed(collective.rank)
    values = torch.randn(length, generator=generator)
    exact, narrow = values.clone(), values.clone()
    collective.begin_sum(exact).wait()
    one, other = collective.begin_sum(narrow, narrow=True), collective.begin_sum(torch.ones(5), narrow=True)
    for pending in (one, other):
        pending.advance()
    for pending in (one, other):
        pending.wait()
    small = torch.tensor([256.0 if collective.rank == 0 else 1.0])  # 257 is not a bfloat16, 258 is
    collective.begin_sum(small, narrow=True).wait()
    collective.begin_sum(torch.ones(7), narrow=True).drop()
    collective.settle()
    return exact, narrow, [float(small) == 255.0 + collective.size, collective.stuck]


@pytest.mark.distributed
@pytest.mark.parametrize(("world", "length"), [(1, 4), (2, 1), (3, 1000), (5, 17)])
def test_what_travels_in_bfloat16_is_added_up_in_float32(world: int, length: int) -> None:
    results = run_workers(world, sum_in_bfloat16, length)
    for exact, narrow, (added_up, stuck) in results:
        assert torch.equal(narrow, results[0][1])
        assert torch.equal(narrow, narrow.bfloat16().float())
        torch.testing.assert_close(narrow, exact, rtol=0.0, atol=float(2**-8 * world * 4))
        assert added_up or world % 2 == 0
        assert not stuck


class _EndsAfterTheWait:
    """An exchange that ends just when the wait for it has timed out, well or not."""

    def __init__(self, failure: str | None) -> None:
        self.failure, self.waits = failure, 0

    def wait(self, *_: object) -> bool:
        self.waits += 1
        if self.waits == 1:
            raise RuntimeError("Operation timed out!")
        if self.failure is not None:
            raise RuntimeError(self.failure)
        return True

    def is_completed(self) -> bool:
        return True


def wait_for_one_that_ends_late(collective: Collective, failure: str | None) -> str:
    assert isinstance(collective, TorchCollective)
    try:
        collective.finish(_EndsAfterTheWait(failure))  # type: ignore[arg-type]
    except RuntimeError as error:
        return str(error)
    return "done"


@pytest.mark.distributed
@pytest.mark.parametrize("failure", [None, "Connection closed by peer"])
def test_an_exchange_that_ends_as_its_wait_times_out_counts_by_how_it_ended(failure: str | None) -> None:
    assert run_workers(1, wait_for_one_that_ends_late, failure) == [failure or "done"]
