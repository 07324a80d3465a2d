"""Who is stuck is found by what each worker does; whoever waits for others is never to blame."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swell.supervisor.actions import Kill
from swell.supervisor.membership import Membership
from swell.supervisor.patience import Patience
from swell.supervisor.sizes import parse_sizes
from swell.supervisor.stall import DOING, LEAST_S, LONG, STEPS, Activity, describe_stall, stall_limit
from tests.supervisor.simulated_run import SimulatedRun

USUAL = st.none() | st.floats(0, 1e4)
ACTIVITIES = st.builds(
    Activity,
    doing=st.sampled_from(sorted(DOING)),
    waiting=st.booleans(),
    still_s=st.floats(0, 1e5),
    idle=st.booleans(),
    usual_s=USUAL,
)


@given(activity=ACTIVITIES, awaited=st.booleans(), stall_s=st.none() | st.floats(0.1, 1e4))
def test_a_limit_is_never_short_of_the_floor_and_never_holds_for_one_that_waits(
    activity: Activity, awaited: bool, stall_s: float | None
) -> None:
    limit = stall_limit(activity, awaited=awaited, stall_s=stall_s)
    if activity.waiting:
        assert limit == math.inf
    elif stall_s is not None:
        assert limit == stall_s
    else:
        assert limit >= max(LEAST_S, STEPS * (activity.usual_s or 0.0))
        in_step = activity.doing in ("training", "evaluating") and activity.usual_s is not None
        assert (limit < LONG * LEAST_S) <= (in_step and activity.idle)
        assert stall_limit(activity, awaited=True, stall_s=None) < math.inf, "whoever is awaited has a limit"


@given(ACTIVITIES)
def test_the_reason_says_what_it_did_and_how_to_change_the_limit(activity: Activity) -> None:
    text = describe_stall(activity, for_s=70.0, limit_s=60.0, stall_s=None)
    assert DOING[activity.doing] in text and "--stall-timeout" in text and "70 s" in text


def train(idle: dict[int, bool], waiting: dict[int, bool], *, stop: bool = False, seconds: int = 200) -> list[str]:
    """Two workers of which neither makes a step any more; who is killed, and why."""
    members = Membership(parse_sizes("2"), target=2, patience=Patience(grace_s=60.0))
    run = SimulatedRun(members)
    run.settle()
    began = run.now
    if stop:
        members.stop("swell stop", began)
    killed = []
    for second in range(seconds):
        now = began + second
        for member in (1, 2):
            facts = {"still_s": float(second), "idle": idle[member], "waiting": waiting[member], "usual_s": 0.2}
            members.beat(member, 7, now, Activity(**facts))  # type: ignore[arg-type]
        killed += [
            f"{action.member} after {second} s: {action.reason}"
            for action in members.tick(now)
            if isinstance(action, Kill)
        ]
    return killed


def test_by_default_an_idle_worker_for_which_another_waits_is_ended_and_it_alone() -> None:
    (killed,) = train({1: True, 2: True}, {1: True, 2: False})
    assert killed.startswith("2 after 61 s: made no progress for 61 s in a step and computed nothing, a step usually")


def test_a_worker_that_computes_has_ten_times_as_long() -> None:
    assert train({1: True, 2: False}, {1: True, 2: False}, seconds=600) == []
    assert len(train({1: True, 2: False}, {1: True, 2: False}, seconds=620)) == 1


def test_workers_that_all_wait_are_not_ended() -> None:
    assert train({1: True, 2: True}, {1: True, 2: True}, seconds=5000) == []


@pytest.mark.parametrize(("absent", "killed"), [((), (2,)), ((1,), (1,))])
def test_one_that_gets_stuck_while_it_forms_a_world_is_ended_once_nobody_is_missing(
    absent: tuple[int, ...], killed: tuple[int, ...]
) -> None:
    members = Membership(parse_sizes("2"), target=2, patience=Patience(stall_s=8.0))
    members.begin(0.0)
    for member in (1, 2):
        members.ready(member, 0.0)
    for member in {1, 2} - set(absent):
        members.joined(member, 1, 0.0)
    ended = []
    for second in range(130):
        for member in (1, 2):
            waits = member == 1 and not absent
            activity = Activity(doing="starting", waiting=waits, still_s=0.0 if waits else float(second))
            members.beat(member, 0, float(second), activity)
        ended += [action.member for action in members.tick(float(second)) if isinstance(action, Kill)]
    assert tuple(ended) == killed


def test_at_a_stop_the_culprit_goes_first_so_that_the_others_have_time_to_save() -> None:
    killed = train({1: True, 2: False}, {1: True, 2: False}, stop=True, seconds=55)
    assert [text.split(" after ")[0] for text in killed] == ["2"]
    assert killed[0].startswith("2 after 31 s")


@pytest.mark.parametrize("doing", ["saving"])
def test_a_worker_that_saves_on_notice_is_left_in_peace(doing: str) -> None:
    members = Membership(parse_sizes("2"), target=2, patience=Patience(grace_s=60.0))
    run = SimulatedRun(members)
    run.settle()
    members.stop("swell stop", run.now)
    for second in range(59):
        members.beat(1, 7, run.now + second, Activity(doing=doing, still_s=float(second)))
        members.beat(2, 7, run.now + second, Activity(waiting=True, still_s=float(second)))
        assert not [action for action in members.tick(run.now + second) if isinstance(action, Kill)]
