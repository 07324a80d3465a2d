"""Replicas that are cut off in a moment between steps come together again, wherever in it the others are."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from swell.integrations.transformers.record import TrainerRecord


class Replica:
    """A trainer that counts what it has done, and a record of it."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.record = TrainerRecord(lambda: {"log": list(self.log)}, self._restore)

    def _restore(self, saved: dict[str, Any]) -> None:
        self.log = saved["log"]

    def go_through(self, step: int, evaluations: int, together: Callable[[int, Callable[[], None]], None]) -> None:
        """A moment with several evaluations, of which each leaves a line in the log, as a trainer does."""

        def act() -> None:
            self.log.append(f"step {step}")
            for number in range(evaluations):
                compute, run = partial("{}.{}".format, step, number), partial(together, number)
                self.log.append(self.record.evaluation(run, compute))

        self.record.at("step", step, act)


def alone(number: int, act: Callable[[], None]) -> None:
    act()


def expected(steps: int, evaluations: int) -> list[str]:
    return [line for step in range(1, steps + 1) for line in
            [f"step {step}", *(f"{step}.{number}" for number in range(evaluations))]]  # fmt: skip


@given(evaluations=st.integers(1, 3), lost=st.integers(0, 2), ahead=st.integers(1, 6))
def test_a_replica_that_misses_an_exchange_has_every_line_once(evaluations: int, lost: int, ahead: int) -> None:
    lost = min(lost, evaluations - 1)
    first, second = Replica(), Replica()
    for replica in (first, second):
        replica.go_through(1, evaluations, alone)
    states: list[dict[str, Any]] = []  # of the first, after each exchange, when the second takes one over

    def noted(number: int, act: Callable[[], None]) -> None:
        act()
        states.append(first.record.state_dict())

    first.go_through(2, evaluations, noted)
    states.append(first.record.state_dict())  # through with the moment
    taken = states[min(lost + ahead - 1, len(states) - 1)]

    def missing(number: int, act: Callable[[], None]) -> None:
        if number == lost:
            second.record.load_state_dict(taken)  # the others had finished this exchange, or more
        else:
            act()

    second.go_through(2, evaluations, missing)
    assert first.log == second.log == expected(2, evaluations)
    assert first.record.done == second.record.done


@given(evaluations=st.integers(1, 3), done=st.integers(0, 3))
def test_a_worker_that_joins_in_a_moment_finds_what_is_done_and_computes_the_rest(evaluations: int, done: int) -> None:
    first, joining = Replica(), Replica()
    first.go_through(1, evaluations, alone)
    states = [first.record.state_dict()]

    def noted(number: int, act: Callable[[], None]) -> None:
        act()
        states.append(first.record.state_dict())

    first.go_through(2, evaluations, noted)
    joining.record.load_state_dict(states[min(done, evaluations)])
    computed: list[int] = []

    def counted(number: int, act: Callable[[], None]) -> None:
        computed.append(number)
        act()

    joining.go_through(2, evaluations, counted)
    assert joining.log == expected(2, evaluations)
    assert computed == list(range(min(done, evaluations), evaluations))
