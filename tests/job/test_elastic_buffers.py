"""Buffers that forward passes write to, such as batch-norm statistics, count a step once, however often it is done."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import swell
from swell.core.order import Shuffled
from swell.job.rollback import SMALL, THOROUGH, Rollback
from swell.runtime.faults import Faults, fail_at
from tests.job.elastic_history import PATIENCE
from tests.job.scenario import Points, mean_loss
from tests.supervisor.forked import ForkedRun

N, BATCH, MICRO, STRUCK = 64, 8, 4, 5


def make_model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5, momentum=0.3), nn.Tanh(), nn.Linear(5, 1)).double()


def state_of(model: nn.Module) -> dict[str, list[float]]:
    return {name: value.double().flatten().tolist() for name, value in model.state_dict().items()}


def prepared() -> tuple[swell.Job, nn.Module, Any]:
    job, model = swell.Job(batch=BATCH, micro=MICRO, rule="constant", device="cpu", seed=3), make_model()
    job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.05))
    return job, model, job.loader(Points(N), shuffle=True)


def train(folder: str) -> None:
    """What each worker runs; the first one writes the model down."""
    job, model, loader = prepared()
    for _ in job.epochs(2):
        for x, y, _ in loader:
            job.backward(mean_loss(model, x, y))
            job.step()
    if job.is_main:
        (Path(folder) / "model.json").write_text(json.dumps(state_of(model)))
    job.close()


def twin(struck: int | None) -> dict[str, list[float]]:
    """Plain torch: two replicas that average gradients and statistics, and from step ``struck`` on only one."""
    model, points = make_model(), Points(N)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    order = [i for epoch in range(2) for i in Shuffled(N, seed=3, epoch=epoch).indices(0, N).tolist()]
    for step, at in enumerate(range(0, len(order), BATCH)):
        halves = [torch.tensor(order[at : at + MICRO]), torch.tensor(order[at + MICRO : at + BATCH])]
        optimizer.zero_grad()
        if struck is not None and step >= struck:
            for rows in halves:
                (mean_loss(model, points.x[rows], points.y[rows]) / 2).backward()
        else:
            replicas = [copy.deepcopy(model), copy.deepcopy(model)]
            for replica, rows in zip(replicas, halves, strict=True):
                (mean_loss(replica, points.x[rows], points.y[rows]) / 2).backward()
            for own, *theirs in zip(model.parameters(), *(r.parameters() for r in replicas), strict=True):
                own.grad = sum((p.grad for p in theirs if p.grad is not None), torch.zeros_like(own))
            for own, *parts in zip(model.buffers(), *(r.buffers() for r in replicas), strict=True):
                own.copy_(torch.stack(parts).mean(0) if own.is_floating_point() else parts[0])
        optimizer.step()
    return state_of(model)


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("point", ["backward", "reduce"])
def test_a_worker_killed_in_a_step_leaves_the_statistics_of_each_step_once(
    tmp_path: Path, point: str, rank: int
) -> None:
    faults = Faults([fail_at(rank, STRUCK, point)], tmp_path)
    settings = {"workers": "1:2", "start": 2, "on_failure": "shrink", "patience": PATIENCE, "beat_s": 0.2}
    function = "tests.job.test_elastic_buffers:train"
    with ForkedRun(tmp_path, function, str(tmp_path), environ=faults.variables(), **settings) as run:
        assert run.end() == 0, run.terminal()
    assert len(faults.happened()) == 1
    found = json.loads((tmp_path / "model.json").read_text())
    # A sum may come through although one of the two dies in it: then that step was made by both.
    possible = [twin(STRUCK), twin(STRUCK + 1)] if point == "reduce" else [twin(STRUCK)]
    assert any(
        all(found[name] == pytest.approx(values, rel=1e-9, abs=1e-12) for name, values in expected.items())
        for expected in possible
    )


@pytest.mark.parametrize("broken", [0, 2, 7])
def test_a_step_that_is_given_up_leaves_no_trace_in_the_buffers(broken: int) -> None:
    def run(redone: int | None) -> dict[str, list[float]]:
        job, model, loader = prepared()
        for _ in job.epochs(1):
            for x, y, _ in loader:
                loss = mean_loss(model, x, y)
                if job.steps == redone:
                    redone = None
                    job.redo()
                    continue
                job.backward(loss)
                job.step()
        return state_of(model)

    assert run(broken) == run(None)


def kept(model: nn.Module) -> Rollback:
    rollback = Rollback()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    job = swell.Job(batch=4, device="cpu")
    job.wrap(model, optimizer)
    rollback.begin_pass(job.engine.state.learners)
    rollback.begin_step()
    return rollback


def test_buffers_that_were_written_to_replaced_or_left_alone_come_back_as_they_were() -> None:
    model = make_model()
    model.register_buffer("table", torch.arange(4.0))
    model.register_buffer("large", torch.zeros(SMALL + 1))
    model.register_buffer("nothing", None)
    before = copy.deepcopy(state_of(model))
    rollback = kept(model)
    table = model.table
    model(torch.randn(8, 6, dtype=torch.float64))
    model.table = torch.zeros(4)
    model.large += 1  # type: ignore[operator]
    rollback.undo()
    assert state_of(model) == before
    assert model.table is table, "the tensor that others may hold is the one that comes back"
    rollback.undo()
    assert state_of(model) == before


def test_what_was_written_between_two_steps_stays() -> None:
    model = make_model()
    rollback = kept(model)
    statistics: Tensor = model[1].running_mean  # type: ignore[index,assignment]
    statistics.fill_(7.0)
    rollback.begin_step()
    statistics.fill_(9.0)
    rollback.undo()
    assert statistics.tolist() == [7.0] * 5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_buffers_that_were_given_other_memory_between_two_steps_come_back_from_there(dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.BatchNorm1d(3)).to(dtype)
    rollback = kept(model)
    for number, buffer in enumerate(model.buffers()):
        buffer.data = torch.full_like(buffer, 5 + number)
    before = copy.deepcopy(state_of(model))
    rollback.begin_step()
    model(torch.randn(8, 3, dtype=dtype))
    assert state_of(model) != before
    rollback.undo()
    assert state_of(model) == before


class Replacing(nn.Module):
    """Has a buffer that every forward pass replaces by another tensor, as averages written without in-place calls."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.register_buffer("average", torch.zeros(3))
        self.register_buffer("written", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        self.average = 0.9 * self.average + 0.1 * x.detach().mean(0)
        self.written += 1  # type: ignore[operator]
        return (x * self.weight).sum()


@pytest.mark.parametrize("steps", [1, THOROUGH - 1, THOROUGH, THOROUGH + 1, 2 * THOROUGH + 5])
def test_a_buffer_that_is_replaced_in_every_step_comes_back_however_long_the_run_is(steps: int) -> None:
    model = Replacing()
    rollback = kept(model)
    for _ in range(steps):
        model(torch.randn(4, 3))
        rollback.begin_step()
    before = copy.deepcopy(state_of(model))
    model(torch.randn(4, 3))
    assert state_of(model) != before
    rollback.undo()
    assert state_of(model) == before


def test_a_buffer_that_was_replaced_some_steps_ago_keeps_its_present_values() -> None:
    model = make_model()
    rollback = kept(model)
    for _ in range(THOROUGH + 3):
        rollback.begin_step()
    model[1].running_mean = torch.full((5,), 3.0, dtype=torch.float64)  # type: ignore[index]
    rollback.begin_step()
    model(torch.randn(8, 6, dtype=torch.float64))
    moved = model[1].running_mean.clone()  # type: ignore[index,union-attr,operator]
    rollback.undo()
    assert torch.equal(model[1].running_mean, moved), "a value of another step would be worse"  # type: ignore[index]
    for _ in range(THOROUGH):
        rollback.begin_step()
    model(torch.randn(8, 6, dtype=torch.float64))
    rollback.undo()
    assert torch.equal(model[1].running_mean, moved), "by now it is known"  # type: ignore[index]


def test_a_buffer_that_was_replaced_between_two_passes_over_the_data_is_noticed() -> None:
    model = make_model()
    rollback = kept(model)
    job = swell.Job(batch=4, device="cpu")
    job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in range(THOROUGH + 3):
        rollback.begin_step()
    model[1].running_mean = torch.ones(5, dtype=torch.float64)  # type: ignore[index]
    rollback.begin_pass(job.engine.state.learners)
    rollback.begin_step()
    model(torch.randn(8, 6, dtype=torch.float64))
    rollback.undo()
    assert model[1].running_mean.tolist() == [1.0] * 5  # type: ignore[index,union-attr,operator]
