"""Memory runs out on one replica: all of them do the step again in smaller micro-batches, and nothing is lost."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import swell
from swell.core.events import Event, StepSkipped
from swell.core.types import Layout, Observation
from swell.job.memory import Memory, is_out_of_memory
from tests.job.scenario import Points, make_model, mean_loss
from tests.workers import run_workers


class Small(nn.Module):
    """A model on a device that holds only N samples at once."""

    def __init__(self, model: nn.Module, holds: int, *, backward: bool) -> None:
        super().__init__()
        self.model, self.holds, self.backward = model, holds, backward

    def forward(self, x: Tensor) -> Tensor:
        if len(x) > self.holds and not self.backward:
            raise torch.OutOfMemoryError(f"CUDA out of memory: {len(x)} samples")
        out = self.model(x)
        if len(x) > self.holds:
            out.register_hook(_run_out)
        return out


def _run_out(gradient: Tensor) -> Tensor:
    raise torch.OutOfMemoryError("CUDA out of memory in the backward pass")


def trained(collective: Any, holds: dict[int, int], backward: bool, batch: Any, **settings: Any) -> dict[str, Any]:
    job = swell.Job(batch=batch, seed=5, progress=False, **settings)
    model = Small(make_model(), holds.get(job.rank, 10**9), backward=backward)
    job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.05), rule="constant")
    loader = job.loader(Points(192), shuffle=True)
    committed: list[int] = []
    sizes: list[int] = []
    for _ in job.epochs(1):
        step: list[int] = []
        for x, y, index in loader:
            before = job.steps
            sizes.append(len(x))
            with job.attempt():
                job.backward(mean_loss(model, x, y))
                step += index.tolist()
                if job.step():
                    committed += step
                    step = []
            if job.steps == before and job.engine.steps.current is not None and job.engine.steps.current.spoiled:
                step = []
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    return {"committed": committed, "sizes": sizes, "weights": weights, "steps": job.steps, "samples": job.samples}


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
def test_one_process_that_runs_out_goes_on_in_smaller_micro_batches(backward: bool) -> None:
    plain = trained(None, {}, False, 48, micro=48, statistics=False)
    found = trained(None, {0: 13}, backward, 48, micro=48, statistics=False)
    assert sorted(found["committed"]) == list(range(192))
    assert found["steps"] == plain["steps"] == 4
    assert torch.allclose(found["weights"], plain["weights"], atol=1e-12)
    assert found["sizes"].count(48) == 1 and found["sizes"].count(24) == 1  # each size is tried once


@pytest.mark.distributed
@pytest.mark.parametrize("replicas", [2, 3])
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
def test_only_one_replica_runs_out_and_nobody_waits_for_ever(replicas: int, backward: bool) -> None:
    plain = trained(None, {}, False, 48, micro=48, statistics=False)
    found = run_workers(replicas, _on_replicas, {1: 5}, backward)
    assert all(one["samples"] == 192 and one["steps"] == 4 for one in found)
    for one in found:
        assert torch.allclose(one["weights"], plain["weights"], atol=1e-12)
        assert max(one["sizes"][-4:]) <= 5  # what one replica cannot hold, no replica is given


def _on_replicas(collective: Any, holds: dict[int, int], backward: bool) -> dict[str, Any]:
    return trained(collective, holds, backward, 48, micro=48, statistics=False)


class Heard:
    """The steps that were not taken, as the first replica tells of them."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int | None]] = []

    def emit(self, event: Event) -> None:
        if isinstance(event, StepSkipped):
            self.told.append((event.reason, event.max_micro))

    def close(self) -> None: ...


def _told(collective: Any, holds: dict[int, int]) -> list[tuple[str, int | None]]:
    heard = Heard()
    trained(collective, holds, False, 48, micro=48, statistics=False, sinks=[heard])
    return heard.told


def test_a_step_done_again_says_at_which_size_memory_ran_out_and_what_is_tried_next() -> None:
    ran_out = "memory ran out at a micro-batch of {} samples"
    assert _told(None, {0: 13}) == [(ran_out.format(48), 24), (ran_out.format(24), 12), (ran_out.format(16), 12)]


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("holds", "first"),
    [
        ({0: 13}, "memory ran out at a micro-batch of 16 samples on rank 0"),
        ({2: 13}, "memory ran out at a micro-batch of 16 samples on rank 2"),
        ({1: 13, 2: 13}, "memory ran out at a micro-batch of 16 samples on ranks 1, 2"),
    ],
)
def test_the_first_replica_tells_whose_memory_ran_out(holds: dict[int, int], first: str) -> None:
    told = run_workers(3, _told, holds)
    assert told[0][0] == (first, 8) and not told[1] and not told[2]


def test_without_attempt_the_error_is_the_users() -> None:
    job = swell.Job(batch=48, micro=48, progress=False, statistics=False)
    model = Small(make_model(), 13, backward=True)
    job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.05), rule="constant")
    loader = job.loader(Points(96))
    with pytest.raises(torch.OutOfMemoryError):
        for _ in job.epochs(1):
            for x, y, _index in loader:
                job.backward(mean_loss(model, x, y))
                job.step()


def test_one_sample_that_does_not_fit_raises() -> None:
    job = swell.Job(batch=4, micro=4, progress=False, statistics=False)
    model = Small(make_model(), 0, backward=False)
    job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.05), rule="constant")
    loader = job.loader(Points(96))
    with pytest.raises(torch.OutOfMemoryError):
        for _ in job.epochs(1):
            for x, y, _index in loader:
                with job.attempt():
                    job.backward(mean_loss(model, x, y))
                    job.step()


def test_other_errors_pass_through_an_attempt() -> None:
    job = swell.Job(batch=4, progress=False)
    model = make_model()
    job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.05), rule="constant")
    loader = job.loader(Points(96))
    with pytest.raises(ZeroDivisionError):
        for _ in job.epochs(1):
            for _batch in loader:
                with job.attempt():
                    raise ZeroDivisionError


class Eager:
    """Wants the largest micro-batch there may be; bounded, as Goodput is, by what replicas have found to fit."""

    base = 8

    def batch(self, seen: Observation) -> int:
        return 64

    def layout(self, seen: Observation) -> Layout:
        return Layout(global_batch=64, micro_batch=min(64, seen.max_micro or 64))


def test_a_policy_that_lays_steps_out_hears_what_fits() -> None:
    found = trained_until(Eager(), holds=17)
    assert found == {"largest": 16, "tried": 64, "out_of_memory": 3}  # 64, 32, and 24 once 16 was held


def trained_until(policy: Any, *, holds: int) -> dict[str, int]:
    job = swell.Job(batch=policy, seed=5, progress=False, rule="constant", statistics=False)
    model = Small(make_model(), holds, backward=False)
    job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.0))
    loader = job.loader(Points(4096), shuffle=True)
    tried, largest, failed = 0, 0, 0
    for _ in job.epochs(2):
        for x, y, _index in loader:
            steps = job.steps
            tried = max(tried, len(x))
            done = False
            with job.attempt():
                job.backward(mean_loss(model, x, y))
                job.step()
                done = True
            failed += not done
            if done and job.steps > steps:
                largest = max(largest, len(x))
    return {"largest": largest, "tried": tried, "out_of_memory": failed}


def test_memory_remembers_the_largest_size_that_held() -> None:
    memory = Memory(torch.device("cpu"), foresee=True)
    assert memory.limit == float("inf")
    memory.fitted(24)
    memory.ran_out(32)
    assert memory.limit == 24
    memory.ran_out(20)  # something else took the memory meanwhile
    assert memory.limit == 10


@given(holds=st.integers(1, 3000), first=st.integers(1, 4096))
def test_memory_finds_nearly_the_largest_size_that_holds_in_a_few_trials(holds: int, first: int) -> None:
    memory, failures = Memory(torch.device("cpu"), foresee=False), 0
    for _ in range(100):
        size = int(min(first, memory.limit))
        if size > holds:
            memory.ran_out(size)
            failures += 1
        else:
            memory.fitted(size)
    assert int(min(first, memory.limit)) <= holds
    assert min(first, holds) <= 1.25 * min(first, memory.limit) + 1
    assert failures <= 4 + max(0, math.log2(first / holds))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("x"), True),
        (MemoryError(), True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"), True),
        (RuntimeError("shape mismatch"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_what_counts_as_running_out(error: Exception, expected: bool) -> None:
    assert is_out_of_memory(error) is expected
