"""What scripts read of their loader, and how far an epoch is."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate

import swell
from tests.job.scenario import Points, make_model, mean_loss
from tests.workers import run_workers


def job_on(data: Any, *, folder: Path | None = None, batch: int = 8, **loading: Any) -> tuple[swell.Job, Any, Any]:
    job, model = swell.Job(folder, batch=batch, base=8, micro=4, rule="linear", progress=False), make_model()
    job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.01))
    return job, model, job.loader(data, **loading)


def test_the_print_of_the_mnist_example_works_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    job, model, train_loader = job_on(Points(20))
    for epoch in job.epochs(1):
        for batch_idx, (data, target, _) in enumerate(train_loader):
            loss = mean_loss(model, data, target)
            job.backward(loss)
            job.step()
            done, total = batch_idx * len(data), len(train_loader.dataset)
            print(f"Train Epoch: {epoch} [{done}/{total} ({100.0 * batch_idx / len(train_loader):.0f}%)]")
    assert "/20 (" in capsys.readouterr().out


@pytest.mark.parametrize("drop_last", [False, True])
def test_a_loader_has_what_a_data_loader_of_the_base_batch_has(drop_last: bool) -> None:
    points, generator = Points(20), torch.Generator()
    options: dict[str, Any] = {"drop_last": drop_last, "num_workers": 0, "timeout": 0, "generator": generator}
    plain = DataLoader(points, batch_size=8, **options)
    loader = job_on(points, **options)[2]
    for name in (
        *("dataset", "batch_size", "drop_last", "num_workers", "collate_fn", "pin_memory", "timeout", "generator"),
        *("prefetch_factor", "persistent_workers", "worker_init_fn", "multiprocessing_context"),
    ):
        assert getattr(loader, name) == getattr(plain, name), name
    assert len(loader) == len(plain) and len(loader.sampler) == len(list(plain.sampler))
    with pytest.raises(AttributeError, match="num_workers"):
        _ = loader.batch_sizes


def test_the_sampler_has_the_order_of_the_epoch_under_way() -> None:
    job, model, loader = job_on(Points(20), shuffle=True)
    orders = []
    for epoch in job.epochs(2):
        loader.sampler.set_epoch(epoch)  # as scripts for several processes do
        orders.append(list(loader.sampler))
        seen = []
        for x, y, index in loader:
            seen += index.tolist()
            job.backward(mean_loss(model, x, y))
            job.step()
        assert seen == orders[-1]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(20)) and orders[0] != orders[1]


def bar_of(job: swell.Job, model: Any, loader: Any, *, epochs: int, stop: int | None = None) -> list[tuple[int, int]]:
    """The recipe of the documentation: where a bar begins and how it moves."""
    shown = []
    for _ in job.epochs(epochs):
        at = loader.samples.done
        shown.append((at, loader.samples.total))
        for x, y, _ in loader:
            job.backward(mean_loss(model, x, y))
            if job.step():
                at += loader.samples.done - at
                shown.append((at, loader.samples.total))
            if job.steps == stop:
                return shown
    return shown


def test_a_progress_bar_counts_samples_and_goes_on_after_a_resume(tmp_path: Path) -> None:
    job, model, loader = job_on(Points(20), folder=tmp_path)
    first = bar_of(job, model, loader, epochs=1, stop=2)
    job.close()
    job, model, loader = job_on(Points(20), folder=tmp_path)
    second = bar_of(job, model, loader, epochs=1)
    assert (first, second) == ([(0, 20), (8, 20), (16, 20)], [(16, 20), (20, 20)])


def on_two(collective: Any) -> tuple[list[tuple[int, int]], int]:
    job, model, loader = job_on(Points(20))
    return bar_of(job, model, loader, epochs=1), len(loader)


@pytest.mark.distributed
def test_length_and_samples_are_those_of_all_replicas() -> None:
    for shown, length in run_workers(2, on_two):
        assert (shown, length) == ([(0, 20), (8, 20), (16, 20), (20, 20)], 3)


class Rows(IterableDataset):
    def __iter__(self) -> Any:
        points = Points(20)
        yield from (points[i] for i in range(20))


def test_a_stream_says_what_it_knows() -> None:
    job, model, loader = job_on(Rows())
    for x, y, _ in loader:
        job.backward(mean_loss(model, x, y))
        job.step()
    assert (loader.samples, loader.sampler, loader.collate_fn) == ((20, None), None, default_collate)
    assert job.progress == 3.0  # its short step counts one, as in the plain loop


@pytest.mark.parametrize("num_workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_batch_is_free_as_soon_as_the_script_lets_go_of_it(num_workers: int) -> None:
    job, model, loader = job_on(Points(12), num_workers=num_workers)
    freed: list[bool] = []
    for x, y, positions in loader:
        seen = weakref.ref(positions)
        job.backward(mean_loss(model, x, y))
        del positions
        freed.append(seen() is None)
        job.step()
    loader.close()
    assert freed == [True, True, True]


@pytest.mark.parametrize("num_workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_so_is_a_batch_of_an_evaluation(num_workers: int) -> None:
    job, *_ = job_on(Points(12))
    freed: list[bool] = []
    for _, _, positions in job.evaluation(Points(10), batch_size=4, num_workers=num_workers):
        seen = weakref.ref(positions)
        del positions
        freed.append(seen() is None)
    assert freed == [True, True, True]
