"""The outer loop, evaluation and the ways to choose samples, through the job as a user would."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, WeightedRandomSampler

import swell
from swell.errors import LoopError
from tests.job.scenario import Points, make_model, mean_loss
from tests.workers import run_workers


def job_on(points: Points, *, loading: dict[str, Any] | None = None, **settings: Any) -> tuple[swell.Job, Any, Any]:
    job = swell.Job(**{"rule": "linear", **settings})
    model = make_model()
    job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.01))
    return job, model, job.loader(points, **(loading or {}))


def go(job: swell.Job, model: Any, loader: Any, passes: Any) -> list[list[int]]:
    """Train; which samples came in each pass."""
    came: list[list[int]] = []
    for _ in passes:
        came.append([])
        for x, y, index in loader:
            came[-1] += index.tolist()
            job.backward(mean_loss(model, x, y))
            job.step()
    return came


@pytest.mark.parametrize("batch", [4, 8, 16])
def test_the_length_of_a_loader_is_that_of_a_data_loader_of_the_base_batch_all_the_time(batch: int) -> None:
    job, model, loader = job_on(Points(20), batch=batch, base=8, micro=4)
    lengths = [len(loader)]
    for _ in job.epochs(2):
        for x, y, _ in loader:
            lengths.append(len(loader))
            job.backward(mean_loss(model, x, y))
            job.step()
            lengths.append(len(loader))
        lengths.append(len(loader))
    assert set(lengths) == {len(DataLoader(Points(20), batch_size=8))} == {3}


def test_until_goes_on_until_the_gain_adds_up_and_stops_in_the_middle_of_a_pass() -> None:
    job, model, loader = job_on(Points(40), batch=8, base=4)
    came = go(job, model, loader, job.until(steps=23))  # each step is worth 2 by the linear rule
    assert (job.steps, job.progress) == (12, 24.0)
    assert [len(rows) for rows in came] == [40, 40, 16]


def test_until_epochs_is_that_many_epochs_worth_of_base_steps() -> None:
    job, model, loader = job_on(Points(40), batch=8, base=4, rule="constant")
    go(job, model, loader, job.until(epochs=1.5))  # 15 base steps, and a step is worth one by the constant rule
    assert (job.steps, job.samples) == (15, 120)


@pytest.mark.parametrize(
    "wrong", [{}, {"steps": 3, "epochs": 1}, {"steps": 0}, {"epochs": -1}, {"steps": "10"}, {"epochs": True}]
)
def test_until_takes_one_positive_number(wrong: dict[str, Any]) -> None:
    job, _, _ = job_on(Points(8), batch=4)
    with pytest.raises(swell.errors.ConfigError, match="one of them, above 0"):
        next(job.until(**wrong))


def test_a_trace_that_stops_ends_the_run() -> None:
    job, model, loader = job_on(Points(30), batch=swell.Trace([4, 8, 4], at_end="stop"))
    go(job, model, loader, job.epochs(5))
    assert (job.steps, job.samples) == (3, 16)


def test_drop_last_leaves_out_the_short_step() -> None:
    job, model, loader = job_on(Points(21), batch=8, loading={"drop_last": True})
    assert [len(rows) for rows in go(job, model, loader, job.epochs(2))] == [16, 16]


def test_each_epoch_has_an_order_of_its_own_and_a_seed_gives_it_again() -> None:
    first = go(*(run := job_on(Points(32), batch=8, seed=3, loading={"shuffle": True})), run[0].epochs(2))
    again = go(*(run := job_on(Points(32), batch=4, seed=3, loading={"shuffle": True})), run[0].epochs(2))
    assert first == again
    assert first[0] != first[1] and sorted(first[0]) == sorted(first[1]) == list(range(32))


def test_weights_and_samplers_draw_with_replacement() -> None:
    weights = [0.0] * 16 + [1.0] * 16
    for loading in ({"weights": weights}, {"sampler": WeightedRandomSampler(weights, 32)}):
        (rows,) = go(*(run := job_on(Points(32), batch=8, loading=loading)), run[0].epochs(1))
        assert len(rows) == 32 and min(rows) >= 16 and len(set(rows)) < 32


def test_a_given_order_is_kept() -> None:
    order = np.arange(20)[::-1].copy()
    (rows,) = go(*(run := job_on(Points(20), batch=6, loading={"order": order})), run[0].epochs(1))
    assert rows == order.tolist()


def test_data_workers_prefetch_across_changes_of_the_batch_and_every_sample_comes_once() -> None:
    def batch(seen: Any) -> int:
        return (4, 6, 12, 5)[seen.step // 3 % 4]

    loading = {"shuffle": True, "num_workers": 2, "persistent_workers": True}
    job, model, loader = job_on(Points(60), batch=batch, base=4, micro=4, loading=loading)
    for rows in go(job, model, loader, job.epochs(2)):
        assert sorted(rows) == list(range(60))
    job.close()


def test_a_closed_job_trains_and_saves_no_more_and_another_one_goes_on_from_it(tmp_path: Path) -> None:
    job, model, loader = job_on(Points(20), run_dir=tmp_path, batch=4)
    go(job, model, loader, job.epochs(1))
    job.close()
    job.close()
    later = (lambda: next(iter(loader)), lambda: next(job.epochs(2)), lambda: next(job.until(steps=9)), job.save)
    for ask in later:
        with pytest.raises(LoopError, match="the job was closed"):
            ask()
    assert (job.steps, job.samples, job.replicas) == (5, 20, 1)
    assert len(list(job.evaluation(Points(6), batch_size=2))) == 3
    other = job_on(Points(20), run_dir=tmp_path, batch=4)
    assert len(go(*other, other[0].epochs(2))) == 1 and other[0].samples == 40


def evaluate(collective: Any, n: int) -> tuple[list[int], dict[str, float], dict[str, float]]:
    job = swell.Job(batch=4)
    points, seen = Points(n), []
    for x, y, index in job.evaluation(points, batch_size=3):
        seen += index.tolist()
        job.metrics.mean("first", x[:, 0].mean(), weight=len(y))
        job.metrics.sum("count", len(y))
        job.metrics.accuracy("right", torch.eye(3, dtype=torch.float64)[index % 3], (index % 2).long())
    kept = job.metrics.results(reset=False)
    return seen, kept, job.metrics.results()


@pytest.mark.distributed
@pytest.mark.parametrize(("world", "n"), [(1, 7), (2, 7), (3, 2), (3, 11)])
def test_evaluation_is_exact_on_any_world(world: int, n: int) -> None:
    replicas = run_workers(world, evaluate, n)
    assert sorted(index for seen, _, _ in replicas for index in seen) == list(range(n))
    right = sum(index % 3 == index % 2 for index in range(n)) / n
    for _, kept, results in replicas:
        assert kept == results
        assert results["count"] == n
        assert results["first"] == pytest.approx(float(Points(n).x[:, 0].mean()), rel=1e-12)
        assert results["right"] == pytest.approx(right, rel=1e-12)


def test_metrics_refuse_what_is_not_a_number() -> None:
    metrics = swell.Job(batch=4).metrics
    for wrong in ("many", torch.ones(2), None):
        with pytest.raises(swell.errors.ConfigError, match="expected"):
            metrics.mean("loss", wrong)
    with pytest.raises(swell.errors.ConfigError, match="name"):
        metrics.sum("", 1.0)
