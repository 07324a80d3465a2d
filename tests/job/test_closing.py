"""A run that stops before its loop was over keeps what it has learnt, and goes on behind it, not in it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import ExponentialLR

import swell
from swell.checkpoint import Cadence
from swell.errors import LoopError
from tests.job.scenario import Points, make_model, mean_loss
from tests.workers import Died, run_workers

NEVER = swell.Cadence(every_steps=10**6)  # with one by the clock, the first epoch's end is saved


def begin(folder: Path | str, **settings: Any) -> tuple[swell.Job, Any, Any, Any]:
    """Four steps an epoch, and a schedule by epochs."""
    job, model = swell.Job(folder, **{"batch": 4, "rule": "linear", "save": NEVER, **settings}), make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    job.wrap(model, optimizer, scheduler=ExponentialLR(optimizer, 0.5), schedule="epoch")
    return job, model, job.loader(Points(16)), optimizer


def go(job: swell.Job, model: Any, loader: Any, *, steps: int | None = None) -> None:
    """To the end of the epoch, or N steps of it."""
    for x, y, _ in loader:
        job.backward(mean_loss(model, x, y))
        if job.step() and job.steps == steps:
            break


def events(folder: Path, kind: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    return [line for line in lines if isinstance(line, dict) and line["event"] == kind]


def checkpoints(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoints").glob("0*"))


# Closed before the loop was over


@pytest.mark.parametrize("leaving", ["close", "with"])
def test_stopping_early_saves_what_was_done_and_says_so(tmp_path: Path, leaving: str) -> None:
    job, model, loader, _ = begin(tmp_path)
    for epoch in job.epochs(9):
        go(job, model, loader)
        if epoch == 1:
            break
    if leaving == "close":
        job.close()
        job.close()
    else:
        with job:
            pass
    assert len(checkpoints(tmp_path)) == 1
    (end,) = events(tmp_path, "run_end")
    assert (end["reason"], end["step"]) == ("stopped by the script", 8)
    again, model, loader, _ = begin(tmp_path)
    assert next(again.epochs(9)) == 2 and again.steps == 8


def test_what_was_saved_already_is_not_saved_again(tmp_path: Path) -> None:
    job, model, loader, _ = begin(tmp_path / "saved")
    for _ in job.epochs(9):
        go(job, model, loader)
        job.save()
        break
    job.close()
    assert len(checkpoints(tmp_path / "saved")) == 1
    job, model, loader, _ = begin(tmp_path / "finished")
    for _ in job.epochs(1):
        go(job, model, loader)
    job.close()
    assert len(checkpoints(tmp_path / "finished")) == 1
    assert [end["reason"] for end in events(tmp_path / "finished", "run_end")] == ["finished"]


def test_a_step_under_way_is_given_up_when_the_job_is_closed_in_it(tmp_path: Path) -> None:
    job, model, loader, _ = begin(tmp_path, micro=2)
    with pytest.raises(LoopError, match=r"closed|outside the training loop"):
        for number, (x, y, _) in enumerate(loader):
            job.backward(mean_loss(model, x, y))
            job.step()
            if number == 2:  # the first half of the second step
                job.close()
    again, model, loader, _ = begin(tmp_path, micro=2)
    rows = [row for _, _, index in once(again, model, loader) for row in index.tolist()]
    assert rows == list(range(4, 16))


def once(job: swell.Job, model: Any, loader: Any) -> Any:
    for batch in loader:
        yield batch
        job.backward(mean_loss(model, *batch[:2]))
        job.step()


@pytest.mark.parametrize("how", ["with", "finally", "except"])
def test_an_interrupted_run_goes_on_from_its_last_save(tmp_path: Path, how: str) -> None:
    job, model, loader, _ = begin(tmp_path)

    def train() -> None:
        for _ in job.epochs(9):
            go(job, model, loader)
            raise KeyboardInterrupt

    if how == "with":
        with pytest.raises(KeyboardInterrupt), job:
            train()
    elif how == "finally":
        with pytest.raises(KeyboardInterrupt):
            try:
                train()
            finally:
                job.close()
    else:
        try:
            train()
        except KeyboardInterrupt:
            job.close()
    assert checkpoints(tmp_path) == [] and events(tmp_path, "run_end") == []


def test_a_job_without_a_folder_or_a_step_is_closed_as_ever(tmp_path: Path) -> None:
    swell.Job(tmp_path / "unused", batch=4).close()
    job, _, _, _ = begin(tmp_path / "begun")
    next(job.epochs(1))
    job.close()
    assert checkpoints(tmp_path / "begun") == []
    model = make_model()
    job = swell.Job(batch=4)
    job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
    go(job, model, job.loader(Points(16)), steps=2)
    job.close()


def stop_early(collective: Any, folder: str, how: str) -> tuple[int, list[str]]:
    with swell.Job(folder, batch=4, micro=2, save=NEVER) as job:
        model = make_model()
        job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
        loader = job.loader(Points(16))
        for epoch in job.epochs(9):
            go(job, model, loader)
            if how == "one is lost" and collective.rank == 1:
                os._exit(7)
            if epoch % 2 or how == "one is lost":
                break
    return job.steps, checkpoints(Path(folder)) if collective.rank == 0 else []


@pytest.mark.distributed
def test_all_replicas_save_together_when_they_stop_early(tmp_path: Path) -> None:
    (steps, saved), _ = run_workers(2, stop_early, str(tmp_path), "together")
    assert steps == 8 and len(saved) == 1
    (steps, saved), _ = run_workers(2, stop_early, str(tmp_path), "together")
    assert steps == 16 and len(saved) == 2


@pytest.mark.distributed
def test_closing_is_no_error_where_a_replica_is_gone(tmp_path: Path) -> None:
    (steps, saved), lost = run_workers(2, stop_early, str(tmp_path), "one is lost", may_die=[1])
    assert isinstance(lost, Died) and (steps, saved) == (4, [])
    (warned,) = events(tmp_path, "warning")
    assert "could not be saved when the job was closed" in warned["message"]


# Saved where the body of an epoch was through


def history(folder: Path, *, stop: int | None, passes: str = "epochs") -> tuple[list[int], list[float], swell.Job]:
    """Validate and save at the end of each epoch, as people do; killed after that in epoch ``stop``."""
    job, model, loader, optimizer = begin(folder)
    turns, rates = [], []
    for epoch in job.epochs(4) if passes == "epochs" else job.until(steps=16):
        loss = None
        for x, y, _ in loader:
            loss = mean_loss(model, x, y)
            job.backward(loss)
            job.step()
        assert loss is not None
        turns.append(epoch)
        rates.append(optimizer.param_groups[0]["lr"])
        job.save()
        if epoch == stop:
            break
    return turns, rates, job


@pytest.mark.parametrize("passes", ["epochs", "until"])
@pytest.mark.parametrize("stop", [0, 1, 2, 3])
def test_a_run_saved_at_the_end_of_an_epochs_body_goes_on_with_the_next(tmp_path: Path, stop: int, passes: str) -> None:
    turns, rates, _ = history(tmp_path / "whole", stop=None, passes=passes)
    first, some, _ = history(tmp_path / "cut", stop=stop, passes=passes)
    then, others, job = history(tmp_path / "cut", stop=None, passes=passes)
    assert (first + then, some + others) == (turns, rates) == ([0, 1, 2, 3], [0.1, 0.05, 0.025, 0.0125])
    assert (job.steps, job.samples) == (16, 64)
    ended = [(end["epoch"], end["samples"], end["complete"]) for end in events(tmp_path / "cut", "epoch")]
    whole = [(end["epoch"], end["samples"], end["complete"]) for end in events(tmp_path / "whole", "epoch")]
    assert [end[:2] for end in ended] == [end[:2] for end in whole] == [(0, 16), (1, 16), (2, 16), (3, 16)]
    assert ended[:3] == whole[:3]
    assert events(tmp_path / "cut", "run_end")[-1]["reason"] == "finished"


def test_a_run_saved_before_the_next_loop_keeps_that_its_epoch_was_done(tmp_path: Path) -> None:
    history(tmp_path, stop=1)
    for _ in range(2):
        job, _, _, _ = begin(tmp_path)
        job.save()
    assert next(job.epochs(4)) == 2


def test_a_save_inside_the_loop_over_the_loader_goes_on_in_the_same_epoch(tmp_path: Path) -> None:
    job, model, loader, _ = begin(tmp_path)
    next(job.epochs(4))
    go(job, model, loader, steps=4)  # the epoch's last, but the loader was not asked whether it is
    job.save()
    again, _, _, _ = begin(tmp_path)
    assert next(again.epochs(4)) == 0


def test_saves_by_steps_come_after_that_very_step(tmp_path: Path) -> None:
    job, model, loader, _ = begin(tmp_path, save=Cadence(every_steps=3), keep=9)
    for _ in job.epochs(3):
        for x, y, _ in loader:
            job.backward(mean_loss(model, x, y))
            job.step()
            job.engine.saving.wait()  # type: ignore[union-attr]  # a save that is being written puts the next one off
    job.close()
    assert [save["step"] for save in events(tmp_path, "save")] == [3, 6, 9, 12, 12]  # the last at the end of the loop
