"""Machines come, leave and are lost: the target follows their slots, and no worker is placed where there is none."""

from __future__ import annotations

import math

from hypothesis import example, given, settings
from hypothesis import strategies as st

from swell.supervisor.membership import Membership
from swell.supervisor.patience import Patience
from swell.supervisor.places import Node, Places
from swell.supervisor.sizes import from_runs, parse_sizes, to_runs
from tests.supervisor.simulated_run import SimulatedRun

PATIENCE = Patience(settle_s=1.0, linger_s=5.0, start_s=1000.0, hang_s=1000.0, stall_s=1000.0, grace_s=100.0)


def start(sizes: str = "1:8", *, slots: int = 1, **options: object) -> SimulatedRun:
    allowed = parse_sizes(sizes)
    places = Places([Node(0, "head", slots)])
    facts = {"target": allowed.largest, "patience": PATIENCE, "places": places, **options}
    return SimulatedRun(Membership(allowed, **facts))  # pyright: ignore[reportArgumentType]


def join(run: SimulatedRun, slots: int) -> int:
    node = run.members.places.join(f"node of {slots}", slots)
    run.settle()
    return node


def lose(run: SimulatedRun, node: int) -> None:
    """A machine is gone: its workers are, before anybody hears of it."""
    for member in [worker.member for worker in run.members.workers.values() if worker.node == node]:
        run.workers.pop(member, None)
    run.members.places.lose(node)
    run.do(run.members.fit(run.now))


def test_a_run_grows_and_shrinks_with_its_machines() -> None:
    run = start()
    run.settle()
    assert run.training() == [1]
    node = join(run, 2)
    assert run.training() == [1, 2, 3] and run.generations[-1].nodes == 2
    lose(run, node)
    run.settle()
    assert run.training() == [1] and run.generations[-1].nodes == 1
    assert run.members.restarts == 0 and run.ended is None


def test_the_target_is_an_allowed_number_and_surplus_slots_stay_empty() -> None:
    run = start("2,4,8")
    run.settle()
    assert run.training() == [], "one slot is too little, and waited for"
    join(run, 2)
    assert (len(run.training()), run.members.places.room) == (2, 3)
    join(run, 2)
    assert len(run.training()) == 4 and len(run.workers) == 4


def test_survivors_that_are_too_few_wait_for_a_machine() -> None:
    run = start("2:4", slots=0)
    one, two = join(run, 1), join(run, 1)
    assert len(run.training()) == 2
    lose(run, two)
    run.settle()
    assert run.ended is None and run.members.restarts == 0
    assert run.generations[-1].interim, "the survivor only completes what was begun"
    join(run, 1)
    assert len(run.training()) == 2 and one in run.members.places.nodes


def test_all_machines_may_be_lost_and_others_come() -> None:
    run = start(slots=0)
    lose(run, join(run, 2))
    run.settle()
    assert (run.workers, run.ended) == ({}, None)
    join(run, 3)
    assert len(run.training()) == 3 and run.members.restarts == 0


def test_a_machine_that_is_asked_to_leave_keeps_its_workers_until_the_next_world() -> None:
    run = start()
    node = join(run, 2)
    run.members.places.drain(node, "SIGTERM")
    run.do(run.members.fit(run.now))
    assert len(run.workers) == 3
    run.settle()
    assert run.training() == [1] and sorted(run.workers) == [1]


def test_a_machine_that_leaves_hands_the_state_to_a_newcomer_first() -> None:
    run = start(slots=0)
    old = join(run, 1)
    run.members.places.join("new", 1)
    run.tick(0.1)  # its worker starts
    run.members.places.drain(old, "SIGTERM")
    run.do(run.members.fit(run.now))
    run.settle()
    assert run.training() == [2] and run.ended is None
    assert [generation.members for generation in run.generations] == [(1,), (1, 2), (2,)]


def test_where_too_little_is_left_a_machine_that_leaves_stops_the_run() -> None:
    run = start("2:4")
    run.settle()
    node = join(run, 2)
    run.members.places.drain(node, "SIGTERM")
    run.do(run.members.fit(run.now))
    run.settle()
    assert run.ended == 143


def test_more_workers_than_there_is_room_for_are_wanted_until_there_is() -> None:
    run = start()
    run.do(run.members.resize(2, run.now))
    run.settle()
    assert (run.members.target, run.members.wanted) == (1, 2)
    join(run, 5)
    assert len(run.training()) == 2


def test_a_worker_that_is_asked_to_leave_takes_its_place_with_it() -> None:
    run = start()
    join(run, 2)
    run.do(run.members.asked_to_leave(2, "SIGTERM", run.now))
    run.settle()
    assert sorted(run.training()) == [1, 3]
    join(run, 1)
    assert len(run.training()) == 3


def test_a_machine_that_cannot_start_workers_holds_up_no_other() -> None:
    run = start()
    run.settle()
    run.startable = False
    run.members.places.join("broken", 1)
    run.tick(1.0)
    assert run.ended is None and run.attempts >= 1
    run.startable = True
    join(run, 1)
    assert len(run.training()) >= 2


# Six workers, the most there may be, all have to leave, and the one that stays has no state yet.
MOVES = ["join 0", "join 1", "join 2", "move 0", "drain 0", "drain 1", "move 0", "kill 0", "drain 2"]


@example([(move.split()[0], int(move.split()[1])) for move in MOVES])
@given(st.lists(st.tuples(st.sampled_from(["join", "lose", "drain", "kill", "move"]), st.integers(0, 9)), max_size=30))
@settings(max_examples=300, deadline=None)
def test_whatever_happens_to_machines_the_run_comes_to_train_on_what_there_is(events: list[tuple[str, int]]) -> None:
    run = start("1:6", max_restarts=1000)
    for event, number in events:
        if run.ended is not None:
            return
        others = [node for node in run.members.places.nodes if node]
        if event == "join":
            run.members.places.join("another", number % 3 + 1)
        elif event in ("lose", "drain") and others:
            node = others[number % len(others)]
            if event == "lose":
                lose(run, node)
            else:
                run.members.places.drain(node, "SIGTERM")
                run.do(run.members.fit(run.now))
        elif event == "kill" and run.workers:
            run.exit(sorted(run.workers)[number % len(run.workers)], -9)
        for member in list(run.workers):
            if event == "move":
                run.move(member)
        if run.ended is None:
            run.tick(0.1)
    run.settle()
    assert run.ended is None, "a run with a machine of its own never has too little"
    assert len(run.training()) == min(6, run.members.places.room) == run.members.target
    placed = [(worker.node, worker.slot) for worker in run.members.workers.values()]
    assert len(set(placed)) == len(placed)
    for node, slot in placed:
        assert slot < run.members.places.nodes[node].slots


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3)), max_size=60))
def test_a_slot_has_one_worker_and_the_room_is_counted_right(events: list[tuple[bool, int]]) -> None:
    places = Places([Node(0, "a", 2), Node(1, "b", 1), Node(2, "c", 3)])
    taken: list[tuple[int, int]] = []
    for take, number in events:
        if take:
            place = places.take(now=0.0)
            assert (place is None) == (len(taken) >= places.room)
            if place is not None:
                assert place not in taken
                taken.append(place)
        elif taken:
            places.free(*taken.pop(number % len(taken)))
    assert places.room == 6 and not places.endless


def test_a_machine_alone_has_room_for_all() -> None:
    places = Places()
    assert places.room == math.inf and places.endless
    assert [places.take(now=0.0) for _ in range(3)] == [(0, 0), (0, 1), (0, 2)]


@given(st.sets(st.integers(1, 50)))
def test_numbers_survive_as_runs(sizes: set[int]) -> None:
    assert from_runs(to_runs(sizes)) == sorted(sizes)
