"""Iterable data sets through the job: every sample once where all replicas read one stream, exact counts otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset

import swell
from tests.job.scenario import make_model, mean_loss
from tests.workers import run_workers


class Counting(IterableDataset[Any]):
    """Rows 0 to n - 1, or every ``apart``-th of them from ``first`` on."""

    def __init__(self, n: int, *, first: int = 0, apart: int = 1) -> None:
        self.n, self.first, self.apart = n, first, apart

    def __iter__(self) -> Iterator[Any]:
        for index in range(self.first, self.n, self.apart):
            generator = torch.Generator().manual_seed(index)
            row = torch.randn(7, generator=generator, dtype=torch.float64)
            yield row[:6], row[6], index


def read(collective: Any, n: int, batch: int, epochs: int, own: bool, drop_last: bool = False) -> tuple[list[int], int]:
    job = swell.Job(batch=batch, micro=3, rule="constant")
    model = make_model()
    job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.01))
    dataset = Counting(n, first=job.rank, apart=job.replicas) if own else Counting(n)
    loader = job.loader(dataset, drop_last=drop_last, split="dataset" if own else "replicas")
    seen: list[int] = []
    for _ in job.epochs(epochs):
        for x, y, index in loader:
            seen += index.tolist()
            job.backward(mean_loss(model, x, y))
            job.step()
    with pytest.raises(TypeError, match="no length"):
        len(loader)
    return seen, job.samples


def test_a_stream_is_read_to_its_end_and_the_last_step_is_short() -> None:
    assert read(None, 20, 8, 2, False) == (list(range(20)) * 2, 40)
    assert read(None, 20, 8, 1, False, drop_last=True) == (list(range(16)), 16)


@pytest.mark.distributed
@pytest.mark.parametrize("world", [2, 3])
def test_replicas_share_one_stream_and_every_sample_comes_once(world: int) -> None:
    replicas = run_workers(world, read, 25, 8, 2, False)
    assert sorted(index for seen, _ in replicas for index in seen) == sorted(list(range(25)) * 2)
    assert {samples for _, samples in replicas} == {50}


@pytest.mark.distributed
def test_streams_that_share_themselves_out_end_together() -> None:
    replicas = run_workers(2, read, 21, 8, 1, True)
    assert {samples for _, samples in replicas} == {16}  # 11 and 10 rows: two steps of 4 and 4, then one runs dry
    assert [len(seen) for seen, _ in replicas] == [8, 8]


class Remembering(Counting):
    """Knows how far it was read, and can go on from there."""

    def __init__(self, n: int) -> None:
        super().__init__(n)
        self.at, self.begun_at = 0, []

    def __iter__(self) -> Iterator[Any]:
        self.begun_at.append(self.at)
        rows = Counting(self.n, first=self.at)
        for row in rows:
            self.at += 1
            yield row
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def read_remembering(collective: Any, folder: Path, leave_after: int | None) -> tuple[list[int], list[int]]:
    job = swell.Job(folder, batch=8, rule="constant", save=None)
    model = make_model()
    job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.01))
    dataset, seen = Remembering(40), []
    loader = job.loader(dataset, resume="state")
    for _ in job.epochs(2):
        for x, y, index in loader:
            seen += index.tolist()
            job.backward(mean_loss(model, x, y))
            job.step()
            if job.steps == leave_after:
                job.save()
                return seen, dataset.begun_at
    return seen, dataset.begun_at


@pytest.mark.distributed
@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (3, 3)])
def test_a_stream_with_a_state_goes_on_from_it_on_any_number_of_replicas(
    before: int, after: int, tmp_path: Path
) -> None:
    first = run_workers(before, read_remembering, tmp_path, 8)
    then = run_workers(after, read_remembering, tmp_path, None)
    rows = [index for seen, _ in first + then for index in seen]
    assert sorted(rows) == sorted(list(range(40)) * 2)
    assert all(begun[0] > 0 for _, begun in then)  # not from the beginning of the second pass


def test_a_stream_keeps_its_own_order_and_has_no_epochs_worth() -> None:
    job = swell.Job(batch=4)
    with pytest.raises(swell.errors.ConfigError, match="order of its own"):
        job.loader(Counting(8), shuffle=True)
    job.loader(Counting(8))
    with pytest.raises(swell.errors.ConfigError, match=r"epochs is 2.*steps"):
        next(job.until(epochs=2))
