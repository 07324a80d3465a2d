"""A log tells whether every sample was committed once, whatever the run went through."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swell.core.events import EpochEnded, EpochStarted, Event, Resized, RunStarted, Stepped, StepSkipped
from swell.telemetry.chaos_report import report_chaos


def stepped(samples: int, batch: int, step: int = 1) -> Stepped:
    layout: dict[str, Any] = {"replicas": 1, "micro_batch": batch, "accumulation": 1, "lr": (0.1,), "lr_factor": (1.0,)}
    figures: dict[str, Any] = {"gain": 1.0, "progress": 0.0, "step_s": 0.1}
    return Stepped(time=0.0, step=step, epoch=0, samples=samples, global_batch=batch, **layout, **figures)


def started(samples: int) -> RunStarted:
    return RunStarted(time=0.0, version="", replicas=1, base_batch=1, policy="", rule="", seed=0, samples=samples)


def resized(pause_s: float | None) -> Resized:
    return Resized(time=0.0, step=1, before=2, after=1, reason="a replica was lost", pause_s=pause_s)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=30), st.data())
def test_a_run_that_goes_back_to_a_checkpoint_is_whole_and_one_that_leaves_out_a_step_is_not(
    batches: list[int], data: st.DataObject
) -> None:
    events: list[Event] = [started(0)]
    ends = [0]
    rewound = from_beginning = 0
    for batch in batches:
        if data.draw(st.booleans()) and len(ends) > 1:
            kept = data.draw(st.integers(1, len(ends)))
            rewound += len(ends) - kept
            from_beginning += (len(ends) - kept) * (kept == 1)
            del ends[kept:]
            events.append(started(ends[-1]))
        ends.append(ends[-1] + batch)
        events.append(stepped(ends[-1], batch))
    report = report_chaos(events)
    assert report.whole
    assert (report.steps, report.samples) == (len(ends) - 1, ends[-1])
    assert (report.rewound, report.from_beginning) == (rewound, from_beginning)
    assert report.work_kept == (rewound == 0)
    assert sum(before - after for before, after in report.rewinds) == rewound
    left_out = [event for event in events if event is not events[-1]] + [stepped(ends[-1] + 5, 5)]
    assert report_chaos(left_out).lost == batches[-1]
    assert report_chaos([*events, events[-1]]).repeated == batches[-1]


def test_steps_that_broke_and_pauses_are_counted() -> None:
    again = StepSkipped(time=0.0, step=1, reason="a worker was lost", samples=4, redone=True)
    events = [started(0), stepped(4, 4), again, resized(0.25), stepped(8, 4), resized(0.75), resized(None)]
    report = report_chaos(events)
    assert (report.redone, report.pauses_s, report.median_pause_s, report.longest_pause_s) == (
        1,
        (0.25, 0.75),
        0.5,
        0.75,
    )
    assert report.whole


def test_samples_passed_over_on_purpose_are_not_lost() -> None:
    skipped = StepSkipped(time=0.0, step=1, reason="the loss was nan", samples=6, redone=False)
    report = report_chaos([started(0), stepped(4, 4), skipped, stepped(14, 4)])
    assert report.whole and report.passed_over == 6


def test_an_epoch_that_is_said_to_be_complete_had_all_its_samples() -> None:
    begun = EpochStarted(time=0.0, epoch=0, samples=0, epoch_size=8)
    ended = EpochEnded(time=0.0, epoch=0, samples=7, complete=True, metrics={})
    assert report_chaos([started(0), begun, stepped(7, 7), ended]).lost == 1
    assert report_chaos([started(0), begun, stepped(7, 7), replace(ended, dropped=1)]).whole


def test_a_log_without_steps_has_nothing_to_complain_of() -> None:
    report = report_chaos([])
    assert report.whole and (report.steps, report.median_pause_s, report.longest_pause_s) == (0, 0.0, 0.0)


def went_back(*, replicas: int, lost_at: float | None) -> list[Event]:
    """Two steps, perhaps a replica that is lost after them, and a start from the beginning at 100 s."""
    first, again = started(0), started(0)
    events: list[Event] = [replace(first, time=1.0, replicas=replicas), stepped(4, 4), stepped(8, 4)]
    if lost_at is not None:
        events.append(replace(resized(1.0), time=lost_at + 1.5, before=replicas, after=replicas - 1))
    return [*events, replace(again, time=100.0)]


@pytest.mark.parametrize(
    ("replicas", "lost_at", "faults", "unexplained"),
    [
        (1, None, [50.0], 0),
        (1, None, [], 1),  # nobody struck it
        (2, None, [50.0, 50.1], 0),
        (2, None, [50.0], 1),  # the other one failed by itself
        (2, 50.0, [50.0], 1),  # the survivor went on, and failed later
        (2, 50.0, [50.0, 60.0], 0),
        (2, None, [0.5, 50.0], 1),  # in an earlier run
    ],
)
def test_a_run_that_goes_back_although_not_all_its_workers_were_struck_is_noticed(
    replicas: int, lost_at: float | None, faults: list[float], unexplained: int
) -> None:
    assert report_chaos(went_back(replicas=replicas, lost_at=lost_at), faults).unexplained == unexplained


def test_a_world_whose_first_worker_has_a_clock_ahead_was_formed_before_the_next_one() -> None:
    start, *steps, again = went_back(replicas=1, lost_at=None)
    ahead = replace(start, time=start.time + 86400)
    assert report_chaos([ahead, *steps, again], [50.0]).unexplained == 0


def test_a_run_that_resumes_where_it_was_went_back_nowhere() -> None:
    assert report_chaos([started(0), stepped(4, 4), started(4), stepped(8, 4)], []).unexplained == 0
