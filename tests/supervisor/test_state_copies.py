"""Which copies of states are made: the newest one always comes to the head and to enough machines, and then no more."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from swell.supervisor.places import HERE
from swell.supervisor.saved_state import SavedState
from swell.supervisor.state_copies import holders, newest_safe_state, newest_state, next_copies, outdated, strays


def state(number: int, *, digest: str = "", run_id: str = "run", named: bool = False) -> SavedState:
    name = f"{number:06d}-samples{number * 8}-step{number}"
    return SavedState(name=name, number=number, digest=digest or f"digest {number}", run_id=run_id, named=named)


disks = st.lists(st.integers(1, 6), max_size=4, unique=True).map(lambda numbers: [state(n) for n in sorted(numbers)])
machines = st.dictionaries(st.integers(1, 5), disks, max_size=5)


@given(own=disks, others=machines, copies=st.integers(1, 4), urgent=st.sets(st.integers(1, 5)))
def test_copies_come_to_an_end_with_the_newest_state_on_enough_machines(
    own: list[SavedState], others: dict[int, list[SavedState]], copies: int, urgent: set[int]
) -> None:
    held = {HERE: own, **others}
    newest = newest_state(held)
    made = 0
    while planned := next_copies(held, copies=copies, urgent=urgent):
        for copy in planned:
            assert copy.state == newest and HERE in (copy.source, copy.target) and copy.source != copy.target
            assert copy.state in held[copy.source] and copy.state not in held[copy.target]
            held[copy.target] = [*held[copy.target], copy.state]
            made += 1
    assert made <= len(held), "no machine gets a state twice"
    if newest is not None:
        have = holders(held, newest)
        assert HERE in have and len(have) >= min(copies, len(held)) and urgent & set(held) <= set(have)
        assert newest_safe_state(held, copies=copies) == newest


@given(own=disks, others=machines, busy=st.sets(st.integers(0, 5)), leaving=st.sets(st.integers(1, 5)))
def test_nothing_is_planned_for_machines_that_are_busy_or_leave(
    own: list[SavedState], others: dict[int, list[SavedState]], busy: set[int], leaving: set[int]
) -> None:
    for copy in next_copies({HERE: own, **others}, copies=3, busy=busy, leaving=leaving):
        assert copy.target not in busy and copy.target not in leaving
        assert copy.source == HERE or copy.source not in busy


@given(states=disks, newest=st.integers(1, 7))
def test_a_machine_keeps_the_last_three_states_and_those_with_a_name(states: list[SavedState], newest: int) -> None:
    gone = outdated(states, state(newest))
    older = sorted(each.number for each in states if each.number < newest)
    assert [each.number for each in gone] == older[:-2], "two older ones stay beside the newest"
    named = [state(number, named=True) for number in range(1, 9)]
    assert outdated(named, state(9)) == []


def test_states_that_the_run_did_not_go_on_from_are_strays() -> None:
    known = [state(1), state(2)]
    assert strays([state(1), state(2)], known, open_end=False) == []
    assert strays([state(3)], known, open_end=False) == [state(3)], "the run went on from the second"
    assert strays([state(3)], known, open_end=True) == [], "it has not begun yet, and goes on from this one"
    other = state(2, digest="other")
    assert strays([other], known, open_end=True) == [other]
    foreign = state(3, run_id="another")
    assert strays([foreign], known, open_end=True) == [foreign]
    assert strays([foreign], [], open_end=True) == [], "the only one there is"
