"""Which copies of a run's states must be made next, where machines have disks of their own: a pure decision."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from swell.supervisor.places import HERE
from swell.supervisor.saved_state import SavedState

_KEPT = 3  # states where copies come, in case the newest is damaged

Held = Mapping[int, Sequence[SavedState]]  # by machine; the head's own states are those of ``HERE``


@dataclass(frozen=True, slots=True)
class Copy:
    """One state from a machine to another; one of the two is the head's."""

    state: SavedState
    source: int
    target: int


def newest_state(held: Held) -> SavedState | None:
    """The state that was saved last, wherever it is."""
    return max((state for states in held.values() for state in states), key=lambda state: state.number, default=None)


def holders(held: Held, state: SavedState) -> list[int]:
    """The machines that have a state."""
    return [node for node, states in held.items() if any(each.digest == state.digest for each in states)]


def newest_safe_state(held: Held, *, copies: int) -> SavedState | None:
    """The newest state on that many machines, or on all where they are fewer; the newest of all where none is yet."""
    enough = min(copies, len(held))
    states = [state for states in held.values() for state in states]
    safe = [state for state in states if len(holders(held, state)) >= enough]
    return max(safe or states, key=lambda state: state.number, default=None)


def next_copies(
    held: Held,
    *,
    copies: int,
    urgent: Collection[int] = (),
    busy: Collection[int] = (),
    leaving: Collection[int] = (),
) -> list[Copy]:
    """The copies to make now, so that the newest state is with the head and on ``copies`` machines in all.

    The head is the hub: a newer state of another machine comes to it first, and goes out from it. Machines in
    ``urgent`` wait for the state and get it first. Those that have had copies before are preferred to others, so that
    few machines keep old ones. One copy at a time goes between the head and another machine (``busy`` has those on
    their way), and machines in ``leaving`` get none.

    >>> state = SavedState(name="000001-samples8-step1", number=1, digest="d", run_id="r")
    >>> next_copies({0: [], 2: [state], 3: []}, copies=2) == [Copy(state, 2, 0)]
    True
    >>> next_copies({0: [state], 2: [], 3: []}, copies=2) == [Copy(state, 0, 2)]
    True
    """
    newest = newest_state(held)
    if newest is None:
        return []
    have = holders(held, newest)
    if HERE not in have:
        source = next((node for node in have if node not in busy), None)
        return [] if source is None or HERE in busy else [Copy(newest, source, HERE)]
    lacking = [node for node in held if node not in have and node not in leaving]
    lacking.sort(key=lambda node: (node not in urgent, -max((s.number for s in held[node]), default=0), node))
    missing = max(copies - len(have), sum(node in urgent for node in lacking))
    return [Copy(newest, HERE, node) for node in lacking[:missing] if node not in busy]


def strays(states: Iterable[SavedState], known: Sequence[SavedState], *, open_end: bool) -> list[SavedState]:
    """Those of a machine's states that do not belong to the run as it went on.

    ``known`` are the states of the run. A state of another run is a stray; so is one with the number of another state.
    A newer one than all is a stray unless ``open_end``: a run that has not begun yet goes on from it.
    """
    numbers = {state.number: state.digest for state in known}
    last = max(numbers, default=0)
    run_ids = {state.run_id for state in known}

    def is_stray(state: SavedState) -> bool:
        other_run = bool(run_ids) and state.run_id not in run_ids
        replaced = numbers.get(state.number, state.digest) != state.digest
        return other_run or replaced or (state.number > last and not open_end)

    return [state for state in states if is_stray(state)]


def outdated(states: Iterable[SavedState], newest: SavedState) -> list[SavedState]:
    """Those of a machine's states that can go once it has the newest: all but the last few, and those with a name."""
    older = sorted((state for state in states if state.number < newest.number), key=lambda state: state.number)
    return [state for state in older[: 1 - _KEPT] if not state.named]
