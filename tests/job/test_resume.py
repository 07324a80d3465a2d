"""Guarantees 2 to 5 across restarts: another number of workers goes on with the next sample, as if nothing had been."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import swell
from tests.job.scenario import Points, largest_relative_error, make_model, mean_loss
from tests.workers import run_workers

EPOCHS, N = 3, 41


def train_until(collective: Any, folder: str, stop_after: int | None, optimizer_name: str) -> dict[str, Any]:
    """Train in a run folder; save and leave after ``stop_after`` steps, in the middle of whatever is going on."""
    job = swell.Job(folder, batch=swell.Schedule([(0, 8), (1.5, 12)], unit="epochs", base=8), micro=3, rule="linear")
    model = make_model()
    optimizer = getattr(torch.optim, optimizer_name)(model.parameters(), lr=0.02)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.97)
    job.wrap(model, optimizer, scheduler=scheduler)
    loader = job.loader(Points(N), shuffle=True)
    rows: list[tuple[int, int, list[int]]] = []
    losses: list[float] = []
    for epoch in job.epochs(EPOCHS):
        for x, y, index in loader:
            rows.append((epoch, job.steps, index.tolist()))
            loss = mean_loss(model, x, y)
            job.metrics.mean("loss", loss, weight=len(y))
            job.backward(loss)
            if job.step() and job.steps == stop_after:
                job.save()
                return {"rows": rows, "losses": losses}
        losses.append(job.metrics.results()["loss"])
    return {
        "rows": rows,
        "losses": losses,
        "weights": [p.detach().clone() for p in model.parameters()],
        "lr": optimizer.param_groups[0]["lr"],
        "progress": job.progress,
    }


def committed(parts: list[list[dict[str, Any]]], stops: list[int | None]) -> dict[int, list[int]]:
    """Samples by epoch, of steps that were committed: those begun before the stop."""
    by_epoch: dict[int, list[int]] = {}
    for replicas, stop in zip(parts, stops, strict=True):
        for replica in replicas:
            for epoch, step, index in replica["rows"]:
                if stop is None or step < stop:
                    by_epoch.setdefault(epoch, []).extend(index)
    return by_epoch


@pytest.mark.distributed
@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
@pytest.mark.parametrize(
    "history", [[(1, 4), (3, 9), (2, None)], [(2, 7), (1, None)], [(3, 1), (1, 2), (5, None)]], ids=str
)
def test_a_run_resumed_on_other_numbers_of_workers_is_the_undisturbed_run(
    tmp_path: Path, history: list[tuple[int, int | None]], optimizer: str
) -> None:
    (alone,) = run_workers(1, train_until, str(tmp_path / "alone"), None, optimizer)
    parts = [run_workers(n, train_until, str(tmp_path / "run"), stop, optimizer) for n, stop in history]
    by_epoch = committed(parts, [stop for _, stop in history])
    assert {epoch: sorted(rows) for epoch, rows in by_epoch.items()} == {e: list(range(N)) for e in range(EPOCHS)}
    for replica in parts[-1]:
        assert largest_relative_error(replica["weights"], alone["weights"]) < 1e-9
        assert replica["lr"] == pytest.approx(alone["lr"], rel=1e-12)
        assert replica["progress"] == pytest.approx(alone["progress"], rel=1e-12)
        assert replica["losses"][-1] == pytest.approx(alone["losses"][-1], rel=1e-9)


def go_on(folder: Path, *, batch: int = 8, gamma: float | None = None, by_hand: bool = False, **settings: Any) -> Any:
    """Save after the second step, or go on from there; returns the optimizer's settings."""
    job = swell.Job(folder, batch=batch, micro=4)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), **settings)
    scheduler = None if gamma is None else torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma)
    job.wrap(model, optimizer, scheduler=scheduler)
    loader = job.loader(Points(32))
    for _ in job.epochs(1):
        for x, y, _ in loader:
            if by_hand:
                optimizer.param_groups[0]["lr"] = 0.1 / (1 + job.steps)
            job.backward(mean_loss(model, x, y))
            if job.step() and job.steps == 2:
                job.save()
                break
    job.close()
    return optimizer.param_groups[0]


@pytest.mark.parametrize("gamma", [None, 0.5])
def test_a_run_that_is_resumed_with_other_settings_says_which_it_keeps(tmp_path: Path, gamma: float | None) -> None:
    go_on(tmp_path, lr=0.1, weight_decay=0.01, gamma=gamma)
    with pytest.warns(UserWarning, match=r"lr .*0\.1.*0\.2") as told:
        kept = go_on(tmp_path, lr=0.2, weight_decay=0.01, gamma=gamma)
    assert (kept["lr"] <= 0.1) and "weight_decay" not in str(told[0].message)
    assert "the script gives 0.2 now" in (tmp_path / "events.jsonl").read_text()
    with pytest.warns(UserWarning, match=r"base batch is 4.*8.*weight_decay"):
        go_on(tmp_path, lr=0.1, weight_decay=0.5, gamma=gamma, batch=4)


def test_a_schedule_that_was_changed_is_told_of_too(tmp_path: Path) -> None:
    go_on(tmp_path, lr=0.1, gamma=0.5)
    with pytest.warns(UserWarning, match=r"gamma .*0\.5.*0\.9"):
        go_on(tmp_path, lr=0.1, gamma=0.9)


@pytest.mark.parametrize("settings", [{}, {"gamma": 0.5}, {"by_hand": True}], ids=str)
def test_a_run_that_is_resumed_with_the_same_settings_says_nothing(tmp_path: Path, settings: dict[str, Any]) -> None:
    for _ in range(2):
        go_on(tmp_path, lr=0.1, momentum=0.9, **settings)


def test_a_finished_run_has_nothing_left_to_do(tmp_path: Path) -> None:
    def run() -> int:
        job = swell.Job(tmp_path, batch=8)
        model = make_model()
        job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
        loader = job.loader(Points(16))
        steps = 0
        for _ in job.epochs(2):
            for x, y, _ in loader:
                job.backward(mean_loss(model, x, y))
                steps += job.step()
        job.close()
        return steps

    assert (run(), run()) == (4, 0)


def test_random_numbers_go_on_where_they_were(tmp_path: Path) -> None:
    def run(stop_after: int | None) -> list[float]:
        torch.manual_seed(5)
        job = swell.Job(tmp_path / str(stop_after is None and not (tmp_path / "False").exists()), batch=4)
        model = make_model()
        job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
        loader = job.loader(Points(16))
        drawn = []
        for _ in job.epochs(2):
            for x, y, _ in loader:
                drawn.append(torch.rand(()).item())
                job.backward(mean_loss(model, x, y))
                if job.step() and job.steps == stop_after:
                    job.save()
                    return drawn
        return drawn

    whole = run(None)
    first = run(3)
    assert first + run(None) == whole


def test_whatever_is_registered_comes_back(tmp_path: Path) -> None:
    class Counter:
        def __init__(self) -> None:
            self.value = 0

        def state_dict(self) -> dict[str, int]:
            return {"value": self.value}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.value = state["value"]

    def run(stop: bool) -> int:
        job, counter = swell.Job(tmp_path, batch=4), Counter()
        model = make_model()
        job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
        job.register("counter", counter)
        loader = job.loader(Points(16))
        for _ in job.epochs(1):
            for x, y, _ in loader:
                job.backward(mean_loss(model, x, y))
                counter.value += job.step()
                if stop and counter.value == 2:
                    job.save()
                    return counter.value
        return counter.value

    assert (run(True), run(False)) == (2, 4)
