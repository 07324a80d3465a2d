"""``job.every``: true once for each multiple, after the same step on every replica and every layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import swell
from swell.errors import ConfigError, LoopError
from swell.loop.milestones import Milestones
from tests.job.scenario import Points, make_model, mean_loss
from tests.workers import run_workers


def moments(unit: str, number: float, *, n: int = 44, epochs: int = 2, **settings: Any) -> list[int]:
    """The samples at which ``job.every`` said yes, asked after every micro-batch."""
    job, model = swell.Job(**{"rule": "linear", "progress": False, **settings}), make_model()
    job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.01))
    loader = job.loader(Points(n))
    found: list[int] = []
    period: dict[str, Any] = {unit: number}
    for _ in job.epochs(epochs):
        for x, y, _ in loader:
            job.backward(mean_loss(model, x, y))
            job.step()
            if job.every(**period):
                assert job.every(**period)  # the same when it is asked again
                found.append(job.samples)
    job.close()
    return found


@pytest.mark.parametrize("micro", [8, 4, 3, 1])
@pytest.mark.parametrize(
    ("unit", "number", "expected"),
    [
        ("steps", 3, [24, 44 + 0, 44 + 24, 88]),
        ("samples", 20, [24, 40, 60, 84]),
        ("progress", 4, [32, 44 + 16, 44 + 44]),
        ("samples", 10**6, []),
    ],
)
def test_a_multiple_is_noticed_once_whatever_the_accumulation(
    micro: int, unit: str, number: float, expected: list[int]
) -> None:
    assert moments(unit, number, batch=8, micro=micro) == expected


def test_samples_and_progress_mean_the_same_moment_for_any_batch() -> None:
    for unit, number in (("samples", 40), ("progress", 5)):
        base = moments(unit, number, n=80, batch=8, base=8)
        assert moments(unit, number, n=80, batch=40, base=8, micro=8) == base == [40, 80, 120, 160]


def test_a_step_that_passes_several_multiples_says_yes_once() -> None:
    assert moments("samples", 3, n=16, epochs=1, batch=8) == [8, 16]


def on_replicas(collective: Any, unit: str, number: float, settings: dict[str, Any]) -> list[int]:
    return moments(unit, number, **settings)


@pytest.mark.distributed
def test_all_replicas_say_yes_after_the_same_step_which_is_that_of_one_process() -> None:
    settings = {"n": 43, "batch": 8, "micro": 4}
    for unit, number in (("steps", 2), ("samples", 20)):
        alone = moments(unit, number, **settings)
        both = run_workers(2, on_replicas, unit, number, settings)
        assert both[0] == both[1] == alone, unit


@pytest.mark.distributed
def test_a_step_in_which_a_replica_has_no_part_is_asked_about_with_the_next() -> None:
    """33 samples on two replicas: the epoch's last step has one sample, and the second replica no batch."""
    found = run_workers(2, on_replicas, "samples", 33, {"n": 33, "batch": 8, "micro": 4})
    assert found[0] == found[1] == [33 + 8]


@pytest.mark.distributed
def test_replicas_agree_on_seconds() -> None:
    found = run_workers(2, on_replicas, "seconds", 1e-3, {"batch": 8, "micro": 4})
    assert found[0] == found[1] and found[0]


def test_a_resumed_run_neither_repeats_a_moment_nor_leaves_one_out(tmp_path: Path) -> None:
    def go(folder: Path, stops: tuple[int, ...]) -> list[int]:
        found = []
        for stop in (*stops, None):
            job, model = swell.Job(folder, batch=8, micro=4, progress=False, save=None), make_model()
            job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.01))
            loader = job.loader(Points(44))
            for _ in job.epochs(2):
                for x, y, _ in loader:
                    job.backward(mean_loss(model, x, y))
                    job.step()
                    if job.every(samples=20):
                        found.append(job.samples)
                    if stop is not None and job.steps == stop:
                        break
                if stop is not None and job.steps == stop:
                    break
            job.close()
        return found

    assert go(tmp_path / "one", ()) == [24, 40, 60, 84]
    assert go(tmp_path / "two", (3, 7)) == [24, 40, 60, 84]
    assert go(tmp_path / "three", (1, 2, 5, 8)) == [24, 40, 60, 84]


def test_where_nothing_was_done_with_a_batch_the_question_is_refused() -> None:
    job, model = swell.Job(batch=8), make_model()
    job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.01))
    with pytest.raises(LoopError, match=r"after job\.step"):
        job.every(steps=1)
    for x, y, _ in job.loader(Points(16)):
        with pytest.raises(LoopError, match=r"after job\.step"):
            job.every(steps=1)
        job.backward(mean_loss(model, x, y))
        job.step()
        assert job.every(steps=1)


@pytest.mark.parametrize(
    "wrong", [{}, {"steps": 1, "samples": 2}, {"steps": 0}, {"seconds": float("inf")}, {"samples": True}]
)
def test_anything_but_one_number_above_nought_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"job\.every was given"):
        swell.Job(batch=8).every(**wrong)


@given(st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=1), st.integers(1, 30), st.data())
def test_every_multiple_is_answered_once_by_the_next_step_that_can_be_asked(
    steps: list[tuple[int, bool]], every: int, data: st.DataObject
) -> None:
    milestones, samples, asked_up_to, answers = Milestones(lambda: 0.0), 0, 0, []
    for number, (batch, askable) in enumerate(steps):
        if data.draw(st.booleans()):  # resumed
            state, milestones = milestones.state_dict(), Milestones(lambda: 0.0)
            milestones.load_state_dict(state)
        samples += batch
        milestones.pass_to(steps=number + 1, samples=samples, progress=0.0, seconds=0.0, askable=askable)
        answer = milestones.passed("samples", every)
        if askable:
            assert answer == (samples // every > asked_up_to // every)
            asked_up_to = samples
        else:
            assert not answer
        answers.append(answer)
    assert sum(answers) <= samples // every
