"""Something that one replica computes for all of them: rollouts, labels, what is read from a service."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

from swell.checkpoint.encoding import decode, encode
from swell.checkpoint.transfer import gather_values, share_state
from swell.errors import ConfigError, LoopError
from swell.job.peers import Peers
from swell.job.planner import Planner
from swell.job.recovery import Recovery
from swell.job.run_state import RunState
from swell.job.shared_values import START, Place
from swell.job.steps import Steps

Value = TypeVar("Value")


class Sharing:
    """Computes on the first replica and gives every replica the result, once for each place in the run."""

    def __init__(self, state: RunState, peers: Peers, planner: Planner, steps: Steps, recovery: Recovery) -> None:
        self._state, self._peers, self._planner = state, peers, planner
        self._steps, self._recovery = steps, recovery
        self._place: tuple[int, str] | None = None  # of the latest call
        self._calls = 0  # at that place

    def share(self, function: Callable[[], Value]) -> Value:
        """The first replica's ``function()``, on every replica; a copy of its own on each."""
        if not callable(function):
            raise ConfigError(
                f"function is a {type(function).__name__}; expected a function without arguments. Give "
                f"job.share(lambda: ...), which only the first replica calls."
            )
        return self._once(lambda place: self._exchange(function, place))

    def gather(self, value: Value) -> list[Value]:
        """Every replica's ``value``, in the order of their ranks, on every replica; kept as ``share`` keeps one."""
        return self._once(lambda place: self._collect(value, place))

    def gather_parts(self, value: Value) -> list[Value] | None:
        """As ``gather``, for parts of one whole: None on every replica where one was lost, and its part with it."""
        self._require_between_steps()
        place = self._next_place()
        if place not in self._state.shared:
            self._recovery.attempt(lambda: self._collect_parts(value, place))
        return _copied(self._state.shared.get(place)) if place in self._state.shared else None

    def _once(self, act: Callable[[Place], None]) -> Any:
        """What ``act`` keeps for this place of the run; a replica that missed it has it by the others' state."""
        self._require_between_steps()
        place = self._next_place()
        if place not in self._state.shared:
            self._recovery.together(lambda: act(place))
        return _copied(self._state.shared.get(place))

    def _require_between_steps(self) -> None:
        if not self._planner.in_turn:
            raise LoopError(
                "job.share was called outside the loop over job.epochs; expected it inside, because a worker that "
                "joins later begins there and must find the same. Call it in the epoch's body: before the loop over "
                "the loader, after it, or between two steps. What is needed before the loop can be computed on every "
                "replica from a fixed seed."
            )
        step = self._steps.current
        if step is not None and not step.ended:
            raise LoopError(
                "job.share was called in the middle of a step; expected it between two, because a step may be done "
                "again. Call it when job.step() has returned True, or outside the loop over the loader."
            )

    def _next_place(self) -> Place:
        ledger = self._state.ledger
        where = START if self._planner.before_pass else str(ledger.cursor)
        if (ledger.epoch, where) != self._place:
            self._place, self._calls = (ledger.epoch, where), 0
        self._calls += 1
        return ledger.epoch, where, self._calls - 1

    def _exchange(self, function: Callable[[], Any], place: Place) -> None:
        message: dict[str, Any] = {}
        failure: Exception | None = None
        if self._peers.is_first:
            try:
                message = {"value": _copied(function())}
            except Exception as error:
                failure, message = error, {"error": f"{type(error).__name__}: {error}"}
        message = share_state(message, collective=self._peers.collective, source=0)
        if failure is not None:
            raise failure
        if "error" in message:
            raise LoopError(
                f"the function of job.share failed on rank 0 ({message['error']}); expected a value for every replica. "
                f"Fix the function: the traceback is in the output of rank 0."
            )
        self._state.shared.keep(place, message["value"], position=str(self._state.ledger.cursor))

    def _collect(self, value: Any, place: Place) -> None:
        values = gather_values(self._peers.collective, _copied(value))
        self._state.shared.keep(place, values, position=str(self._state.ledger.cursor))

    def _collect_parts(self, value: Any, place: Place) -> None:
        """As ``_collect``, with tensors sent as they are, because parts may be large."""
        collective, own = self._peers.collective, _copied(value)
        values = [share_state(own, collective=collective, source=rank) for rank in range(collective.size)]
        self._state.shared.keep(place, values, position=str(self._state.ledger.cursor))


def _copied(value: Any) -> Any:
    """A deep copy, of plain values, tensors and arrays; other kinds are refused with their place in the value."""
    return decode(encode(value, leaf=_clone, where="value"))


def _clone(where: str, tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone()
