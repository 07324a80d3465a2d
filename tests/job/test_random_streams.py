"""Random numbers: each replica draws its own, a repeated step draws the same, one process draws the script's."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import swell
from swell.checkpoint.rng import capture_rng, restore_rng
from swell.job.random_streams import RandomStreams
from tests.job.scenario import Points, make_model, mean_loss
from tests.workers import run_workers


def seed(number: int) -> None:
    torch.manual_seed(number)
    np.random.seed(number)
    random.seed(number)


@contextmanager
def seeded(number: int) -> Iterator[None]:
    before = capture_rng()
    seed(number)
    try:
        yield
    finally:
        restore_rng(before)


def draw() -> tuple[float, float, float]:
    return float(torch.rand(())), float(np.random.normal()), random.random()


def draws(
    collective: Any, mode: str, *, folder: str | None = None, stop_after: int | None = None, redo: tuple[int, ...] = ()
) -> list[tuple[float, float, float]]:
    """What this replica draws in each committed step; those in ``redo`` are done twice."""
    with seeded(11):
        job = swell.Job(folder, batch=6, micro=1, random=mode, save=None, progress=False)
        model = make_model()
        job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.01))
        loader = job.loader(Points(24), shuffle=True)
        drawn: list[tuple[float, float, float]] = []
        of_step: list[tuple[float, float, float]] = []
        again = set(redo)
        seed(11)  # building the model has drawn numbers too
        for _ in job.epochs(2):
            for x, y, _ in loader:
                of_step.append(draw())
                job.backward(mean_loss(model, x, y))
                if job.steps in again and len(of_step) == 2:
                    again.remove(job.steps)
                    job.redo()
                    of_step = []
                    continue
                if job.step():
                    drawn, of_step = drawn + of_step, []
                    if job.steps == stop_after:
                        job.save()
                        return drawn
        job.close()
        return drawn


def test_one_process_draws_what_the_plain_script_draws() -> None:
    with seeded(11):
        plain = [draw() for _ in range(48)]
    assert draws(None, "per-replica") == plain
    assert draws(None, "same") == plain


def test_a_step_that_is_done_again_draws_the_same_numbers() -> None:
    assert draws(None, "per-replica", redo=(0, 3, 4)) == draws(None, "per-replica")


@pytest.mark.distributed
@pytest.mark.parametrize("world", [2, 3])
def test_replicas_draw_numbers_of_their_own_and_the_same_in_every_run(world: int) -> None:
    first = run_workers(world, draws, "per-replica")
    assert first == run_workers(world, draws, "per-replica")
    assert first[0] == draws(None, "per-replica")[: len(first[0])], "the first replica keeps the script's numbers"
    every = [number for replica in first for step in replica for number in step]
    assert len(set(every)) == len(every)


@pytest.mark.distributed
def test_replicas_draw_the_same_numbers_where_that_is_asked_for() -> None:
    one, other = run_workers(2, draws, "same")
    assert one == other == draws(None, "same")[: len(one)]


def redone(collective: Any) -> list[tuple[float, float, float]]:
    return draws(collective, "per-replica", redo=(1, 5))


@pytest.mark.distributed
def test_every_replica_draws_the_same_numbers_again_in_a_step_that_is_done_again() -> None:
    assert run_workers(2, redone) == run_workers(2, draws, "per-replica")


def part(collective: Any, folder: str, stop_after: int | None) -> list[tuple[float, float, float]]:
    return draws(collective, "per-replica", folder=folder, stop_after=stop_after)


@pytest.mark.distributed
def test_a_resumed_run_goes_on_with_each_replicas_own_numbers(tmp_path: Path) -> None:
    whole = run_workers(2, part, str(tmp_path / "whole"), None)
    begun = run_workers(2, part, str(tmp_path / "run"), 3)
    ended = run_workers(2, part, str(tmp_path / "run"), None)
    assert [a + b for a, b in zip(begun, ended, strict=True)] == whole


@pytest.mark.distributed
def test_a_run_resumed_on_more_replicas_gives_the_new_ones_numbers_of_their_own(tmp_path: Path) -> None:
    run_workers(1, part, str(tmp_path / "run"), 3)
    three = run_workers(3, part, str(tmp_path / "run"), None)
    every = [number for replica in three for step in replica for number in step]
    assert len(set(every)) == len(every)


def seeds_in_the_loop(collective: Any) -> list[float]:
    """The habit of seeding at every epoch."""
    job = swell.Job(batch=4, progress=False)
    model = make_model()
    job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.01))
    loader = job.loader(Points(8))
    drawn = []
    for epoch in job.epochs(2):
        torch.manual_seed(epoch)
        for x, y, _ in loader:
            drawn.append(float(torch.rand(())))
            job.backward(mean_loss(model, x, y))
            job.step()
    job.close()
    return drawn


@pytest.mark.distributed
def test_a_script_that_seeds_inside_the_loop_still_draws_apart() -> None:
    one, other = run_workers(2, seeds_in_the_loop)
    assert not set(one) & set(other)


def gan(collective: Any, mode: str) -> tuple[float, float, float]:
    """The sum of this replica's fakes, the sum of its dropout masks, and the noise measured over the replicas."""
    torch.manual_seed(0)
    job = swell.Job(batch=8, rule="constant", statistics=swell.Statistics(every=1), random=mode, progress=False)
    model = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.5), nn.Linear(6, 1))
    job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.0))
    loader = job.loader(torch.zeros(64, 1))
    fakes = masks = 0.0
    for _ in job.epochs(1):
        for real in loader:
            fake = torch.randn(len(real), 4)  # dcgan: the batch is noise drawn by the replica
            fakes += float(fake.sum())
            masks += float(F.dropout(torch.ones(32), 0.5).dot(torch.arange(32.0)))
            job.backward(model(fake).square().mean())
            job.step()
    job.close()
    assert job.noise is not None
    return fakes, masks, job.noise.total.noise


@pytest.mark.distributed
def test_noise_comes_from_what_each_replica_draws() -> None:
    (fakes, masks, noise), (other_fakes, other_masks, _) = run_workers(2, gan, "per-replica")
    assert fakes != other_fakes and masks != other_masks
    assert noise > 1e-6
    (fakes, masks, noise), (other_fakes, other_masks, _) = run_workers(2, gan, "same")
    assert fakes == other_fakes and masks == other_masks and abs(noise) < 1e-9, "as it is where all draw alike"


def test_a_wrong_mode_is_refused() -> None:
    with pytest.raises(swell.errors.ConfigError, match=r"random is 'each'; expected 'per-replica'.*'same'"):
        swell.Job(batch=4, random="each")


@pytest.mark.parametrize(
    "normal",
    [np.random.normal, lambda: random.gauss(0, 1), lambda: float(torch.randn(()))],
    ids=("numpy", "python", "torch"),
)
def test_a_state_is_captured_where_only_the_second_of_two_normal_numbers_was_used(normal: Callable[[], float]) -> None:
    streams = RandomStreams(swell.Job(batch=4, progress=False).engine.peers)
    with seeded(5):
        streams.begin_step(0)
        normal()  # draws two and keeps one
        streams.begin_step(1)
        kept = normal()
        streams.begin_step(2)  # nothing was drawn since, but the kept one is gone
        after = normal(), normal()
        streams.undo()
        assert (normal(), normal()) == after and kept not in after


DRAWS: dict[str, Any] = {
    "nothing": lambda: None,
    "python": random.random,
    "python, normal": lambda: random.gauss(0, 1),
    "python, a whole block": lambda: [random.getrandbits(32) for _ in range(624)],
    "python, seeded": lambda: random.seed(3),
    "numpy": np.random.random,
    "numpy, normal": np.random.normal,
    "numpy, a whole block": lambda: np.random.bytes(4 * 624),
    "numpy, seeded": lambda: np.random.seed(3),
    "torch": lambda: torch.rand(3),
    "torch, normal": lambda: torch.randn(1),
    "torch, normal of 64 bits": lambda: torch.randn(1, dtype=torch.float64),
    "torch, a whole block": lambda: torch.rand(624),
    "torch, seeded": lambda: torch.manual_seed(3),
}


@given(steps=st.lists(st.lists(st.sampled_from(sorted(DRAWS)), max_size=3), min_size=1, max_size=6))
@settings(deadline=None, max_examples=100)
def test_an_undone_step_finds_the_generators_where_it_began(steps: list[list[str]]) -> None:
    streams = RandomStreams(swell.Job(batch=4, progress=False).engine.peers)
    with seeded(5):
        for draws_of_step in steps:
            streams.begin_step(0)
            python, numpy, pytorch = random.getstate(), np.random.get_state(), torch.get_rng_state()
            for name in draws_of_step:
                DRAWS[name]()
            drawn = random.getstate(), np.random.get_state(), torch.get_rng_state()
            streams.undo()
            assert random.getstate() == python
            assert _same(np.random.get_state(), numpy)
            assert torch.equal(torch.get_rng_state(), pytorch)
            random.setstate(drawn[0])
            np.random.set_state(drawn[1])
            torch.set_rng_state(drawn[2])


def _same(one: Any, other: Any) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
