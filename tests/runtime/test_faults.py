"""Faults on purpose happen where they were planned, once, and nowhere else."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from swell.errors import ConfigError
from swell.runtime.environment import Environment, read_environment
from swell.runtime.faults import (
    KINDS,
    POINTS,
    DeliberateError,
    FailingSamples,
    Faults,
    fail_at,
    parse_fault,
    read_faults,
)
from swell.runtime.strikes import take_strikes
from swell.supervisor.strike_signals import STRIKE_SIGNALS
from tests.workers import Died, run_processes


@pytest.fixture
def struck(tmp_path: Path) -> Iterator[Faults]:
    """This process as one that ``swell chaos`` may strike."""
    before = {name: signal.getsignal(getattr(signal, name)) for name in STRIKE_SIGNALS.values()}
    environment = read_environment({"SWELL_STRIKES": "1", **Faults([], tmp_path).variables()})
    take_strikes(environment)
    yield read_faults(environment)
    for name, handler in before.items():
        signal.signal(getattr(signal, name), handler)


@pytest.mark.parametrize(("kind", "error"), [("exception", DeliberateError), ("oom", torch.OutOfMemoryError)])
def test_a_strike_fails_at_the_next_point_and_only_there(kind: str, error: type[Exception], struck: Faults) -> None:
    assert struck.plans("reduce") and not struck.plans("load")
    struck.reach("backward", rank=0, step=3)
    os.kill(os.getpid(), getattr(signal, STRIKE_SIGNALS[kind]))
    struck.reach("load", rank=0, step=3)
    assert struck.struck_at() == []
    began_at = time.time()
    with pytest.raises(error, match="struck in commit after 3 steps"):
        struck.reach("commit", rank=0, step=3)
    struck.reach("commit", rank=0, step=3)
    [at] = struck.struck_at()
    assert began_at - 1 <= at <= time.time() + 1, "when it took effect, not when it was asked for"


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_can_be_written_in_one_word(point: str, kind: str) -> None:
    fault = fail_at(3, 14, point, kind)
    assert parse_fault(str(fault)) == fault
    assert parse_fault(f"3:14:{point}") == fail_at(3, 14, point, "kill")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "RANK:STEP:POINT"),
        ("1:reduce", "1:reduce"),
        ("1:2:reduce:kill:twice", "twice"),
        ("-1:2:reduce", "-1:2:reduce"),
        ("1:2:lunch", "point.*lunch.*backward, reduce"),
        ("1:2:reduce:shout", "kind.*shout.*kill, term"),
    ],
)
def test_a_fault_that_cannot_be_read_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_fault(text)


def test_a_fault_happens_once_to_its_rank_from_its_step_on(tmp_path: Path) -> None:
    faults = Faults([fail_at(1, 5, "backward", "exception")], tmp_path)
    for rank, step, point in ((0, 5, "backward"), (1, 4, "backward"), (1, 5, "commit")):
        faults.reach(point, rank=rank, step=step)
    assert faults.happened() == []
    with pytest.raises(DeliberateError, match="1:5:backward:exception"):
        faults.reach("backward", rank=1, step=7)
    faults.reach("backward", rank=1, step=7)
    read_faults(read_environment(faults.variables())).reach(
        "backward", rank=1, step=8
    )  # another worker that has the rank now
    (record,) = faults.happened()
    assert (record["at_step"], record["pid"], record["kind"]) == (7, os.getpid(), "exception")


def test_every_worker_is_told_the_same_plan(tmp_path: Path) -> None:
    faults = Faults([fail_at(0, 1, "save", "oom"), fail_at(2, 3, "load", "exit")], tmp_path)
    plan = read_faults(read_environment(faults.variables()))
    assert plan.variables() == faults.variables()
    assert plan.plans("save") and plan.plans("load") and not plan.plans("join")
    with pytest.raises(torch.OutOfMemoryError):
        plan.reach("save", rank=0, step=1)


def test_without_a_plan_nothing_happens() -> None:
    faults = read_faults(Environment())
    faults.reach("reduce", rank=0, step=0)
    assert not any(faults.plans(point) for point in POINTS)


@pytest.mark.parametrize("text", ["{}", "[]", "lunch", '{"faults": [{"rank": 1}], "folder": "."}'])
def test_a_plan_that_nobody_wrote_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="SWELL_FAULTS"):
        read_faults(read_environment({"SWELL_FAULTS": text}))


def test_a_plan_needs_a_folder() -> None:
    with pytest.raises(ConfigError, match="folder"):
        Faults([fail_at(0, 0, "join")])


def reach(folder: str, kind: str) -> Any:
    Faults([fail_at(0, 0, "commit", kind)], folder).reach("commit", rank=0, step=0)
    return "went on"


@pytest.mark.distributed
@pytest.mark.parametrize(("kind", "code"), [("kill", -signal.SIGKILL), ("term", -signal.SIGTERM), ("exit", 70)])
def test_a_process_ends_as_its_fault_says(tmp_path: Path, kind: str, code: int) -> None:
    (ended,) = run_processes(1, reach, str(tmp_path), kind, may_die=[0])
    assert ended == Died(code)


def test_samples_fail_where_loading_was_to_fail(tmp_path: Path) -> None:
    samples = FailingSamples(range(10), Faults([fail_at(1, 3, "load", "exception")], tmp_path))
    assert len(samples) == 10 and samples[4] == 4
    samples.place.copy_(torch.tensor([1, 3]))
    with pytest.raises(DeliberateError):
        samples[4]
    assert samples[4] == 4
