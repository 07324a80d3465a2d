"""The demo's claims are counted from the records of its workers; every error in them is found."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swell.core.events import Event, Resized, RunStarted
from swell.demo.proof import (
    NOISE,
    all_of_it_happened,
    each_sample_once,
    rows_committed,
    rows_used,
    same_accuracy,
)
from swell.demo.training import Result
from tests.telemetry.runs import stepped

Used = dict[tuple[int, int], list[int]]


def a_run(size: int, epochs: int, worlds: list[int], batch: int) -> tuple[list[Event], Used]:
    """Events and used rows of a run that is as it should be; each step was tried once before on one worker more."""
    events: list[Event] = []
    used: Used = {}
    for epoch in range(epochs):
        rows = list(range(size))
        random.Random(epoch).shuffle(rows)
        for start in range(0, size, batch):
            done, part = len(events), rows[start : start + batch]
            world = worlds[done % len(worlds)]
            used[done, world] = part
            used[done, world + 1] = part[:-1]  # in vain: not all had come so far
            events.append(stepped(step=done + 1, epoch=epoch, global_batch=len(part), replicas=world))
    return events, used


runs = st.builds(
    a_run, st.integers(1, 30), st.integers(1, 3), st.lists(st.integers(1, 4), min_size=1, max_size=5), st.integers(1, 7)
)


@given(st.integers(1, 30), st.integers(1, 3), st.lists(st.integers(1, 4), min_size=1, max_size=5), st.integers(1, 7))
def test_only_the_attempts_that_were_committed_count(size: int, epochs: int, worlds: list[int], batch: int) -> None:
    events, used = a_run(size, epochs, worlds, batch)
    assert each_sample_once(rows_committed(events, used), size=size, epochs=epochs).holds


@given(st.data(), st.integers(2, 30), st.integers(1, 3), st.integers(1, 7))
def test_a_sample_that_is_lost_or_used_twice_is_found(data: Any, size: int, epochs: int, batch: int) -> None:
    events, used = a_run(size, epochs, [1, 2], batch)
    step = data.draw(st.sampled_from(events))
    rows = used[step.step - 1, step.replicas]
    change = data.draw(st.sampled_from(["lost", "twice", "another"]))
    if change == "lost":
        rows.pop()
    elif change == "twice":
        rows.append(rows[0])
    else:
        rows[0] = (rows[0] + 1) % size
    assert not each_sample_once(rows_committed(events, used), size=size, epochs=epochs).holds


def test_a_step_that_was_done_again_after_a_resume_counts_the_last_time() -> None:
    events, used = a_run(8, 1, [1], 4)
    again = stepped(step=2, epoch=0, global_batch=4, replicas=3)
    used[1, 3] = used.pop((1, 1))
    assert each_sample_once(rows_committed([*events, again], used), size=8, epochs=1).holds


def test_half_a_line_of_a_killed_worker_is_passed_over(tmp_path: Path) -> None:
    lines = [json.dumps({"done": 0, "replicas": 2, "rows": rows}) for rows in ([1, 2], [3])]
    (tmp_path / "used-7.jsonl").write_text(lines[0] + "\n" + lines[1][:9])
    (tmp_path / "used-8.jsonl").write_text(lines[1] + "\n")
    assert rows_used(tmp_path) == {(0, 2): [1, 2, 3]}


def history(*worlds: int, resumed: bool = True) -> list[Event]:
    begun: dict[str, Any] = {"version": "1", "base_batch": 8, "policy": "", "rule": "", "seed": 0}
    events: list[Event] = [RunStarted(time=0.0, replicas=1, samples=0, **begun)]
    for before, after in zip((0, *worlds), worlds, strict=False):
        if before:
            events.append(Resized(time=0.0, step=1, before=before, after=after, reason="a replica was lost"))
        events.append(stepped(replicas=after))
    if resumed:
        events += [RunStarted(time=0.0, replicas=2, samples=64, **begun), stepped(replicas=worlds[-1])]
    return events


@pytest.mark.parametrize(
    ("events", "holds"),
    [
        (history(1, 2, 1, 2), True),
        (history(1, 2, 1, 2, resumed=False), False),
        (history(1, 2), False),
        (history(2, 1, 2), False),
        (history(1, 2, 1), False),
    ],
)
def test_each_thing_that_befell_the_run_is_in_its_log(events: list[Event], holds: bool) -> None:
    assert all_of_it_happened(events).holds is holds


@given(st.floats(0, 1), st.floats(0, 1))
def test_accuracies_are_the_same_within_the_noise_of_the_seed(first: float, second: float) -> None:
    results = [Result(accuracy=accuracy, steps=1, samples=1) for accuracy in (first, second)]
    assert same_accuracy(*results).holds == (abs(first - second) <= NOISE)
