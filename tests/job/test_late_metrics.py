"""What a loop counts after a step, and what it does before the first one, belongs to the run like all else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import swell
from swell.core.events import EpochEnded
from swell.errors import CheckpointError, LoopError
from swell.telemetry import read_events
from tests.job.scenario import Points, make_model, mean_loss
from tests.workers import run_workers

N = 41


def train(
    collective: Any, folder: str | None, stop_after: int | None = None, evaluate: bool = False
) -> tuple[int, list[dict[str, float]]]:
    """Count each sample before and after the step it was used in; which epoch was the first, and every epoch's sums."""
    job = swell.Job(folder, batch=8, micro=3, rule="constant")
    model = make_model()
    job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.01))
    loader = job.loader(Points(N), shuffle=True)
    first, found = -1, []
    for epoch in job.epochs(3):
        first = epoch if first < 0 else first
        for x, y, _ in loader:
            job.metrics.sum("before", len(y))
            job.backward(mean_loss(model, x, y))
            stepped = job.step()
            job.metrics.sum("after", len(y))
            if stepped and job.steps == stop_after:
                job.save()
                return first, found
            if evaluate and job.rank == 0 and not stepped:
                job.metrics.sum("by_one", 1)
            if evaluate and stepped and job.steps % 6 in (2, 4):  # not after the last, which has one sample
                for _, z, _ in job.evaluation(Points(10), batch_size=2):
                    job.metrics.sum("evaluated", len(z))
        found.append(job.metrics.results())
    job.close()
    return first, found


@pytest.mark.distributed
@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_what_is_added_after_a_step_is_counted_in_its_epoch(world: int) -> None:
    for _, found in run_workers(world, train, None):
        assert found == [{"before": N, "after": N}] * 3


@pytest.mark.distributed
@pytest.mark.parametrize("world", [1, 2, 3])
def test_an_evaluation_between_steps_takes_nothing_from_the_training_sums(world: int) -> None:
    ranks = run_workers(world, train, None, None, True)
    for _, found in ranks:
        assert found == ranks[0][1]
        assert all((one["before"], one["after"], one["evaluated"]) == (N, N, 20) for one in found)


@pytest.mark.distributed
@pytest.mark.parametrize(("before", "after"), [(1, 2), (3, 1), (2, 2)])
def test_what_was_added_after_the_step_of_a_save_is_saved(tmp_path: Path, before: int, after: int) -> None:
    run_workers(before, train, str(tmp_path), 8)
    for first, found in run_workers(after, train, str(tmp_path)):
        assert first == 1
        assert found == [{"before": N, "after": N}] * 2
    ends = [event for event in read_events(tmp_path / "events.jsonl") if isinstance(event, EpochEnded)]
    assert [event.metrics for event in ends] == [{"before": N, "after": N}] * 3  # also if the script has read them


def test_an_evaluation_between_micro_batches_leaves_the_step_as_it_is() -> None:
    job = swell.Job(batch=8, micro=3, rule="constant")
    model = make_model()
    job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.01))
    loader = job.loader(Points(N))
    for _ in job.epochs(2):
        for x, y, _ in loader:
            job.metrics.sum("seen", len(y))
            job.backward(mean_loss(model, x, y))
            job.step()
            for _, z, _ in job.evaluation(Points(4)):
                job.metrics.sum("evaluated", len(z))
                break  # left early: what was counted in it is not
        assert job.metrics.results() == {"seen": N}


def early(collective: Any, folder: str, does: str) -> tuple[int, int, float]:
    """Do something before the loop; how many steps it saw, how many the loop made then, and a weight at the end."""
    job = swell.Job(folder, batch=8, rule="constant")
    model = make_model(seed=9)
    job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.01))
    loader = job.loader(Points(N), shuffle=True)
    if does == "evaluate":
        for _ in job.evaluation(Points(10)):
            pass
    elif does == "save":
        job.save()
    steps, weight = job.steps, float(next(model.parameters()).detach().flatten()[0])
    trained = 0
    for _ in job.epochs(2):
        for x, y, _ in loader:
            job.backward(mean_loss(model, x, y))
            trained += job.step()
    last = float(next(model.parameters()).detach().flatten()[0])
    job.close()
    if does != "nothing":
        assert weight == last
    return steps, trained, last


@pytest.mark.distributed
@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("does", ["evaluate", "save"])
def test_a_run_goes_on_whatever_is_done_before_its_loop(tmp_path: Path, world: int, does: str) -> None:
    """An evaluation before the loop used to count as progress, so that the checkpoint was passed over."""
    (_, trained, last), *_ = run_workers(world, early, str(tmp_path), "nothing")
    assert trained == 12
    for again in run_workers(world, early, str(tmp_path), does):
        assert again == (12, 0, last)


def test_a_second_pass_without_another_epoch_is_an_error_that_says_so() -> None:
    job = swell.Job(batch=8, rule="constant")
    model = make_model()
    job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.01))
    loader = job.loader(Points(16))

    def go() -> None:
        for x, y, _ in loader:
            job.backward(mean_loss(model, x, y))
            job.step()

    go()
    with pytest.raises(LoopError, match=r"every sample of epoch 0 .* job\.epochs"):
        go()


def wrapped(folder: Path, model: torch.nn.Module, optimizer: type[torch.optim.Optimizer]) -> swell.Job:
    job = swell.Job(folder, batch=8)
    job.wrap(model, optimizer(model.parameters(), lr=0.01))  # type: ignore[call-arg]
    job.loader(Points(16))
    return job


def test_a_run_of_another_model_or_optimizer_is_refused_by_name(tmp_path: Path) -> None:
    with wrapped(tmp_path, make_model(), torch.optim.SGD) as job:
        list(job.epochs(1))
    for model, optimizer, match in (
        (make_model(), torch.optim.AdamW, r"its optimizer is SGD, and this one is AdamW"),
        (torch.nn.Linear(2, 2), torch.optim.SGD, r"another model.*(?s:.)*another run folder"),
    ):
        with wrapped(tmp_path, model, optimizer) as job, pytest.raises(CheckpointError, match=match) as told:
            list(job.epochs(2))
        assert str(tmp_path) in str(told.value)
