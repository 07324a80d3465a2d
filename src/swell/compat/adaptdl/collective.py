"""Small values agreed between replicas: allreduce and broadcast of plain Python objects.

The original sent pickles to an open port, so whoever reached it could run code in the job. Here values travel over the
process group as text and bytes, and are made of plain kinds only: numbers, text, containers, tensors, numpy arrays.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import reduce
from typing import Any, Generic, TypeVar

from swell.checkpoint.transfer import gather_values, share_state
from swell.compat.adaptdl import session as sessions

Value = TypeVar("Value")


def initialize(
    master_addr: str | None = None,
    master_port: int | None = None,
    replica_rank: int | None = None,
    num_replicas: int | None = None,
) -> None:
    """Join the others; ``adaptdl.torch.init_process_group`` does this too, so call one of them. Over gloo."""
    sessions.open_session("gloo", address=master_addr, port=master_port, rank=replica_rank, size=num_replicas)


def allreduce(value: Value, reduce_fn: Callable[[Any, Any], Any] = operator.add) -> Value:
    """Every replica's value, folded in rank order; every replica calls it, and all get the same."""
    return reduce(reduce_fn, gather(value))


class Reduction(Generic[Value]):
    """A result that is there; ``result()`` gives it."""

    def __init__(self, value: Value) -> None:
        self._value = value

    def result(self) -> Value:
        """The reduced value."""
        return self._value


def allreduce_async(value: Value, reduce_fn: Callable[[Any, Any], Any] = operator.add) -> Reduction[Value]:
    """As :func:`allreduce`, with the original's way to ask for the result; the exchange itself is done at once."""
    return Reduction(allreduce(value, reduce_fn))


def broadcast(value: Value) -> Value:
    """Rank 0's value, on every replica."""
    return share_state(value, collective=sessions.session().collective, source=0, device="cpu")


def teardown() -> None:
    """End the session, so that another can be opened in this process; the original could not."""
    sessions.close()


def gather(value: Any) -> list[Any]:
    """Every replica's value, in rank order."""
    return gather_values(sessions.session().collective, value)
