"""The supervisor's decisions keep the protocol's promises whatever happens, in whatever order."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swell.errors import ConfigError
from swell.supervisor.actions import Announce, Kill, Log, Start
from swell.supervisor.membership import Membership
from swell.supervisor.notice import EXIT_RESUME
from swell.supervisor.patience import Patience
from swell.supervisor.sizes import parse_sizes
from swell.supervisor.stall import Activity
from tests.supervisor.simulated_run import SimulatedRun

PATIENCE = Patience(settle_s=0.25, linger_s=2.0, start_s=60.0, hang_s=10.0, grace_s=30.0)


def start(sizes: str = "1:4", target: int = 2, **options: Any) -> SimulatedRun:
    return SimulatedRun(Membership(parse_sizes(sizes), target=target, patience=PATIENCE, **options))


def settled(sizes: str = "1:4", target: int = 2, **options: Any) -> SimulatedRun:
    run = start(sizes, target, **options)
    run.settle()
    return run


EVENTS = st.tuples(
    st.sampled_from(
        [
            "move",
            "move",
            "move",
            "cut",
            "kill",
            "crash",
            "hang",
            "resize",
            "take away",
            "leave",
            "tick",
            "stop",
            "no room",
        ]
    ),
    st.integers(0, 7),
)


@settings(max_examples=300, deadline=None)
@given(
    sizes=st.sampled_from(["1:6", "2:6", "2,4", "3", "1:8:2"]),
    on_failure=st.sampled_from(["restart", "shrink", "stop"]),
    max_restarts=st.integers(0, 4),
    events=st.lists(EVENTS, max_size=60),
)
def test_every_history_keeps_the_invariants_and_comes_to_rest(
    sizes: str, on_failure: Any, max_restarts: int, events: list[tuple[str, int]]
) -> None:
    allowed = parse_sizes(sizes).allowed
    run = start(sizes, allowed[-1], on_failure=on_failure, max_restarts=max_restarts)
    resizes = 0
    for event, number in events:
        if run.ended is not None:
            break
        names = sorted(run.workers)
        member = names[number % len(names)] if names else 0
        if event == "move":
            run.move(member)
        elif event == "cut":
            run.cut(member)
        elif event == "kill":
            run.exit(member, -9)
        elif event == "crash":
            run.exit(member, 1)
        elif event == "hang" and member:
            run.workers[member].hung = True
        elif event in ("resize", "take away") and not (run.members.end.stopping or run.members.end.finishing):
            run.do(run.members.resize(allowed[number % len(allowed)], run.now, kill=event == "take away"))
            resizes += 1
        elif event == "leave":
            run.do(run.members.asked_to_leave(member, "SIGTERM", run.now))
        elif event == "tick":
            run.tick(float(number))
        elif event == "no room":
            run.startable = not run.startable
        elif event == "stop" and number == 0:
            run.do(run.members.stop("test", run.now))
    run.startable = True
    if run.ended is None:
        run.settle()
    if run.ended is None:
        assert len(run.training()) == run.members.target, run.picture()
        assert sorted(run.training()) == sorted(run.generations[-1].members)
        run.do(run.members.stop("test", run.now))
        run.settle()
    assert run.ended is not None
    if not resizes:
        assert run.started <= allowed[-1] * (1 + max_restarts * (on_failure == "restart"))


def test_the_first_generation_waits_for_all_that_were_asked_for() -> None:
    run = start(target=3)
    run.move(1)
    run.move(3)
    run.tick(30.0)
    assert not run.generations
    run.move(2)
    assert run.generations[0].members == (1, 2, 3)


def test_newcomers_join_only_when_they_are_ready_and_come_last() -> None:
    run = settled(target=2)
    run.do(run.members.resize(3, run.now))
    run.tick(30.0)
    assert len(run.generations) == 1
    run.settle()
    assert run.generations[1].members == (1, 2, 3)
    assert run.members.restarts == 0


def test_newcomers_that_are_ready_wait_a_moment_for_the_others() -> None:
    run = settled(target=1)
    run.do(run.members.resize(3, run.now))
    run.move(2)
    run.tick(0.1)
    assert len(run.generations) == 1
    run.tick(2.0)
    assert run.generations[-1].members == (1, 2)
    run.settle()
    assert run.generations[-1].members == (1, 2, 3)


def test_the_newest_workers_are_dismissed_first_and_get_notice() -> None:
    run = settled(target=3)
    run.do(run.members.resize(1, run.now))
    assert run.generations[-1].members == (1,)
    assert run.generations[-1].dismissed == (2, 3)
    notice = run.workers[3].notice
    assert notice is not None
    assert notice.leave
    run.settle()
    assert sorted(run.workers) == [1]
    assert run.members.restarts == 0


def test_a_death_is_answered_at_once_and_again_when_the_replacement_is_ready() -> None:
    run = settled(target=3)
    run.exit(1, -9)
    assert run.generations[-1].members == (2, 3)
    assert run.generations[-1].alive == (2, 3, 4)
    run.settle()
    assert run.generations[-1].members == (2, 3, 4)
    assert run.members.restarts == 1


def test_a_lost_connection_without_a_death_waits_a_moment_for_one() -> None:
    run = settled(target=2)
    run.do(run.members.left(1, 1, run.now))
    assert len(run.generations) == 1
    run.tick(0.3)
    assert run.generations[-1].members == (1, 2)
    assert run.generations[-1].number == 2


def test_workers_that_cannot_connect_to_one_another_are_given_up() -> None:
    run = settled(target=2)
    for _ in range(20):
        if run.ended is None:
            newest = run.generations[-1].number
            run.do(run.members.left(1, newest, run.now))
            run.tick(0.3)
            run.tick(20.0)  # the pauses get longer
    assert run.ended == 1


def test_all_workers_lost_at_once_are_one_incident_and_all_come_back() -> None:
    run = settled(target=3, max_restarts=1)
    for member in (1, 2, 3):
        run.exit(member, 1)
    run.settle()
    assert run.generations[-1].members == (4, 5, 6)
    assert run.members.restarts == 1
    for member in (4, 5, 6):
        run.exit(member, 1)
    assert run.ended == 1


def test_a_worker_that_fails_while_it_starts_uses_the_budget_each_time() -> None:
    run = start(target=1, max_restarts=3)
    for member in (1, 2, 3, 4):
        assert run.ended is None
        run.exit(member, 5)
    assert run.ended == 5


def test_with_the_budget_spent_the_survivors_go_on_if_they_are_enough() -> None:
    run = settled(target=3, max_restarts=0)
    run.exit(2, -9)
    run.settle()
    assert run.training() == [1, 3]
    assert run.started == 3


def test_too_few_survivors_finish_what_they_began_and_wait_for_the_replacement() -> None:
    run = settled("3", 3)
    run.exit(2, -9)
    assert (run.generations[-1].members, run.generations[-1].interim) == ((1, 3), True)
    for member in (1, 3, 1, 3, 1, 3):
        run.move(member)
    run.tick(1.0)
    assert len(run.generations) == 2
    run.settle()
    assert (run.generations[-1].members, run.generations[-1].interim) == ((1, 3, 4), False)


def test_survivors_beyond_an_allowed_number_are_kept_in_reserve() -> None:
    run = settled("2,4", 4)
    run.exit(1, -9)
    assert (run.generations[-1].members, run.generations[-1].interim) == ((2, 3, 4), True)
    for member in (2, 3, 4) * 3:
        run.move(member)
    assert (run.generations[-1].members, run.generations[-1].interim) == ((2, 3), False)
    assert run.generations[-1].dismissed == ()
    run.settle()
    assert run.generations[-1].members == (2, 3, 4, 5)


def test_a_newcomer_that_is_ready_when_a_member_is_lost_joins_after_the_survivors_are_together() -> None:
    run = settled("1:4", 3)
    run.do(run.members.resize(4, run.now))
    run.move(4)
    run.tick(PATIENCE.linger_s)
    assert run.generations[-1].members == (1, 2, 3, 4)  # announced, and nobody has acted on it
    run.exit(2, -9)
    assert run.generations[-1].members == (1, 3)
    run.settle()
    assert run.generations[-1].members == (1, 3, 4, 5)


def test_a_hung_worker_is_killed_and_replaced() -> None:
    run = settled(target=2)
    run.workers[2].hung = True
    for _ in range(12):
        run.tick(1.0)
    assert 2 not in run.workers
    run.settle()
    assert run.generations[-1].members == (1, 3)
    assert run.members.restarts == 1


def test_a_supervisor_that_slept_does_not_take_its_workers_for_hung() -> None:
    run = settled(target=2)
    run.now += 3600.0
    run.do(run.members.tick(run.now))
    assert sorted(run.workers) == [1, 2]


def test_members_that_make_no_step_for_too_long_are_restarted_together() -> None:
    members = Membership(parse_sizes("2"), target=2, patience=Patience(stall_s=20.0))
    run = SimulatedRun(members)
    run.settle()
    killed = []
    for second in range(30):
        for member in (1, 2):
            members.beat(member, 7, run.now + second)
        killed += [action for action in members.tick(run.now + second) if isinstance(action, Kill)]
    assert [action.member for action in killed] == [1, 2]


def test_a_worker_that_is_asked_to_go_leaves_and_the_others_go_on() -> None:
    run = settled(target=3)
    run.do(run.members.asked_to_leave(1, "SIGTERM", run.now))
    run.settle()
    assert run.training() == [2, 3]
    assert (run.members.target, run.members.restarts) == (2, 0)


@pytest.mark.parametrize("joins", [False, True])
def test_the_only_worker_with_the_state_leaves_after_it_has_shared_it_with_newcomers(joins: bool) -> None:
    run = settled(target=1)
    run.do(run.members.resize(2, run.now))
    run.move(2)  # it is ready, and the generation of both announced
    if joins:
        run.move(2)
    run.do(run.members.asked_to_leave(1, "SIGTERM", run.now))
    assert run.generations[-1].members == (1, 2)
    run.settle()
    assert run.training() == [2] and run.ended is None
    assert (run.members.target, run.members.restarts) == (1, 0)


def test_a_worker_that_fails_while_another_leaves_does_not_take_the_place_of_the_last_one() -> None:
    run = settled(target=3)
    run.do(run.members.done(2, run.now))  # a script that raised says so, and exits a moment later
    run.do(run.members.asked_to_leave(1, "SIGTERM", run.now))
    run.exit(2, 1)
    assert run.generations[-1].members == (3,)
    run.settle()
    assert run.training() == [3]


def test_when_the_newcomers_are_lost_before_they_have_the_state_the_run_stops_and_saves() -> None:
    run = settled(target=1, max_restarts=0)
    run.do(run.members.resize(2, run.now))
    run.move(2)
    run.do(run.members.asked_to_leave(1, "SIGTERM", run.now))
    run.exit(2, -9)
    run.settle()
    assert run.ended == EXIT_RESUME


def test_when_the_last_worker_is_asked_to_go_the_run_stops() -> None:
    run = settled(target=1)
    run.do(run.members.asked_to_leave(1, "SIGTERM", run.now))
    run.settle()
    assert run.ended == EXIT_RESUME


def test_a_stop_lets_all_save_and_says_resume_me() -> None:
    run = settled(target=3)
    run.do(run.members.stop("swell stop", run.now))
    run.settle()
    assert run.ended == EXIT_RESUME


def test_a_death_while_stopping_does_not_keep_the_others_from_saving() -> None:
    run = settled("3", 3)
    run.do(run.members.stop("swell stop", run.now))
    run.exit(1, -9)
    assert run.generations[-1].members == (2, 3)
    run.settle()
    assert run.ended == EXIT_RESUME
    assert run.started == 3


def test_whoever_does_not_stop_in_time_is_killed() -> None:
    run = settled(target=2)
    run.workers[1].hung = run.workers[2].hung = True
    run.do(run.members.stop("swell stop", run.now, grace_s=5.0))
    for _ in range(7):
        if run.ended is None:
            run.tick(1.0)
    assert run.ended == 128 + 9, "nobody said that anything was saved"


def test_members_that_have_saved_may_go_one_after_the_other() -> None:
    run = settled(target=3)
    run.do(run.members.stop("swell stop", run.now))
    run.exit(1, EXIT_RESUME)
    run.tick(1.0)
    assert len(run.generations) == 1, "those still saving are not disturbed"
    run.do(run.members.left(2, 1, run.now))
    assert run.workers[2].released, "there is nobody to form a world with"
    run.exit(2, 0)
    run.exit(3, EXIT_RESUME)
    assert run.ended == EXIT_RESUME


def test_a_newcomer_that_formed_a_world_without_the_others_has_no_state_to_go_on_with() -> None:
    run = settled(target=2)
    run.do(run.members.resize(3, run.now))
    [newcomer] = set(run.workers) - {1, 2}
    while run.workers[newcomer].state == "building" or len(run.generations[-1].members) < 3:
        run.move(newcomer)
        run.tick(0.1)
    for member in (1, 2, newcomer):
        while run.workers[member].state != "forming":
            run.move(member)
    run.move(newcomer)
    assert run.workers[newcomer].formed == run.generations[-1].number
    run.cut(1)
    run.exit(2, -9)
    assert run.generations[-1].members == (1,)
    run.settle()
    assert len(run.training()) == 3


def test_nobody_is_sent_home_for_a_worker_that_is_being_killed() -> None:
    run = start("1:2", 2)
    for member in (1, 2, 1):
        run.move(member)
    run.workers[1].hung = True  # while it forms the first world
    run.do(run.members.resize(1, run.now))
    run.settle()
    assert run.training() == [2] and run.started == 2


def test_who_saves_in_place_of_workers_that_failed_makes_it_a_clean_stop() -> None:
    run = settled(target=3)
    run.do(run.members.stop("swell stop", run.now))
    run.exit(2, 1)
    run.exit(3, 1)
    run.settle()
    assert [generation.members for generation in run.generations][-1] == (1,)
    assert run.ended == EXIT_RESUME


def test_a_failure_while_saving_is_not_called_a_clean_stop() -> None:
    run = settled(target=2)
    run.do(run.members.stop("swell stop", run.now))
    run.exit(1, 1)
    run.exit(2, EXIT_RESUME)
    assert run.ended == 1


def test_the_end_of_training_ends_the_run_and_sends_newcomers_home() -> None:
    run = settled(target=2)
    run.do(run.members.resize(4, run.now))
    run.move(3)
    run.finish()
    run.settle()
    assert run.ended == 0


def test_a_newcomer_that_waits_for_members_who_have_finished_is_sent_home() -> None:
    run = settled("1:4", 1)
    run.do(run.members.resize(2, run.now))
    run.move(2)
    run.tick(PATIENCE.linger_s)
    run.move(2)  # begins to form a world with worker 1, which comes to its end instead
    run.do(run.members.done(1, run.now))
    run.exit(1, 0)
    run.settle()
    assert run.ended == 0


def test_a_worker_that_said_it_is_about_to_exit_may_be_silent_until_its_deadline() -> None:
    run = settled("1:4", 2)
    run.do(run.members.done(1, run.now))
    run.workers[1].hung = True
    run.tick(PATIENCE.hang_s + 1)
    run.tick(1.0)
    assert 1 in run.workers
    run.tick(PATIENCE.grace_s)
    assert 1 not in run.workers


def test_on_failure_stop_saves_and_reports_the_failure() -> None:
    run = settled(target=3, on_failure="stop")
    run.exit(2, 9)
    run.settle()
    assert run.ended == 9
    assert run.started == 3


def test_a_job_that_cannot_be_laid_out_on_so_many_is_given_fewer() -> None:
    run = settled("1:4", 4)
    run.do(run.members.restrict([1, 2, 3, 6], run.now, why="batch=6"))
    run.settle()
    assert run.training() == [1, 2, 3]
    assert run.ended is None
    run.do(run.members.restrict([12], run.now, why="batch=6"))
    assert run.ended == 2


def test_a_worker_that_the_bounds_rule_out_is_told_which_they_are_and_others_that_they_are_not_needed() -> None:
    run = start("1:4", 4)
    actions = run.members.restrict([1, 2], run.now, why="max=8, micro=(4, 8)")
    reasons = [action.reason for action in actions if isinstance(action, Kill)]
    assert reasons == 2 * ["the job's batch (max=8, micro=(4, 8)) can be laid out on 1, 2 workers only, not 4"]
    run.do(actions)
    assert not run.members.restrict([1, 2], run.now, why="max=8, micro=(4, 8)")
    reasons = [action.reason for action in run.members.resize(1, run.now) if isinstance(action, Kill)]
    assert reasons == ["not needed any more"]


def test_a_resize_for_which_no_process_can_be_started_is_taken_back() -> None:
    run = settled("1:4", 2)
    run.startable = False
    run.do(run.members.resize(4, run.now))
    assert (run.members.target, sorted(run.workers)) == (2, [1, 2])
    assert "no room" in run.members.refusal
    run.startable = True
    run.settle()
    assert run.training() == [1, 2]


def test_a_replacement_that_cannot_be_started_is_tried_again_after_longer_and_longer_pauses() -> None:
    run = settled("1:4", 2)
    run.startable = False
    run.exit(1, -9)
    tried_at = []
    for _ in range(600):
        before = run.attempts
        run.tick(0.5)
        tried_at += [run.now] if run.attempts > before else []
    pauses = [later - earlier for earlier, later in pairwise(tried_at)]
    assert pauses == sorted(pauses) and pauses[0] <= 2.0 and pauses[-1] <= 60.5
    assert 2 in run.workers, "the survivor goes on"
    run.startable = True
    run.settle()
    assert len(run.training()) == 2


def test_where_too_few_are_left_and_none_can_be_started_for_long_the_rest_saves_and_stops() -> None:
    run = settled("2", 2)
    run.startable = False
    run.exit(1, -9)
    for _ in range(40):
        if run.ended is None:
            run.tick(4.0)
            for member in list(run.workers):
                run.move(member)
    assert run.ended == 1 and not run.workers


def test_a_run_that_cannot_start_any_worker_ends_with_the_reason() -> None:
    members = Membership(parse_sizes("2"), target=2, patience=PATIENCE)
    members.begin(0.0)
    members.not_started(1, "no room", 0.0)
    actions = members.not_started(2, "no room", 0.0)
    assert any(isinstance(action, Log) and "no worker can be started (no room)" in action.text for action in actions)


def test_a_run_that_is_ending_cannot_be_resized() -> None:
    run = settled(target=2)
    run.do(run.members.stop("swell stop", run.now))
    with pytest.raises(ConfigError, match="coming to its end"):
        run.members.resize(3, run.now)


def test_a_number_that_is_not_allowed_is_refused_and_nothing_changes() -> None:
    run = settled("2,4", 2)
    with pytest.raises(ConfigError, match=r"3.*2, 4"):
        run.members.resize(3, run.now)
    assert run.members.target == 2


def test_actions_are_told_in_words() -> None:
    members = Membership(parse_sizes("1"), target=1)
    assert members.begin(0.0) == [Start(1, 0)]
    assert isinstance(members.ready(1, 0.0)[0], Announce)
    assert any(isinstance(action, Log) for action in members.formed(1, 1, 0.0))


ERROR = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\nKeyError: 3'


def fail_all(run: SimulatedRun, error: str) -> None:
    """Every worker that is there now ends by the error of its script."""
    for member in list(run.workers):
        if member in run.workers and run.ended is None:
            run.exit(member, 1, error=error)


@pytest.mark.parametrize("sizes", ["1:4", "2"])
def test_a_script_error_that_comes_again_before_the_first_step_ends_the_run(sizes: str) -> None:
    run = start(sizes, max_restarts=3)
    fail_all(run, ERROR)
    assert run.ended is None, "the first time may have been bad luck"
    fail_all(run, ERROR)
    assert run.ended == 1 and run.started == 4


def test_another_error_or_a_worker_that_has_trained_is_tried_again() -> None:
    run = start("1:4", max_restarts=3)
    fail_all(run, ERROR)
    fail_all(run, ERROR.replace("KeyError", "OSError"))
    assert run.ended is None
    run = settled("1", 1, max_restarts=3)
    for _ in range(2):
        (member,) = run.workers
        run.do(run.members.beat(member, 1, run.now, Activity(steps=1)))
        run.exit(member, 1, error=ERROR)
        run.settle()
    assert run.ended is None and len(run.training()) == 1


def test_newcomers_that_fail_alike_are_not_replaced_for_ever_and_the_others_go_on() -> None:
    run = settled("1:4", 2, max_restarts=99)
    for member in run.training():
        run.do(run.members.beat(member, 1, run.now, Activity(steps=1)))
    run.do(run.members.resize(3, run.now))
    before = run.started
    for _ in range(6):
        newcomers = [member for member in run.workers if member > 2]
        if not newcomers:
            break
        run.exit(newcomers[0], 1, error=ERROR)
    run.settle()
    assert run.training() == [1, 2] and run.started == before + 1 and run.ended is None


def test_a_script_with_a_process_group_of_its_own_is_refused_at_once() -> None:
    run = start("1:4", max_restarts=3)
    fail_all(
        run, "Traceback (most recent call last):\n  ...\nValueError: environment variable RANK expected, but not set"
    )
    assert run.ended == 2 and run.started == 2
