"""Small values that replicas exchange: allreduce and broadcast of plain Python objects.

The original sent pickles to an open port, so anyone who reached it could run code in the job. Here values travel over
the process group as text and bytes. They are plain values only: numbers, text, containers, tensors, numpy arrays.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import reduce
from typing import Any, Generic, TypeVar

from swell.checkpoint.transfer import gather_values, share_state
from swell.compat.adaptdl.opening import close, open_session
from swell.compat.adaptdl.session import current_session

Value = TypeVar("Value")


def initialize(
    master_addr: str | None = None,
    master_port: int | None = None,
    replica_rank: int | None = None,
    num_replicas: int | None = None,
) -> None:
    """Join the other replicas over gloo; ``adaptdl.torch.init_process_group`` does this too, so call one of them."""
    open_session("gloo", address=master_addr, port=master_port, rank=replica_rank, size=num_replicas)


def allreduce(value: Value, reduce_fn: Callable[[Any, Any], Any] = operator.add) -> Value:
    """The values of all replicas, reduced in rank order; every replica calls it and gets the same result."""
    return reduce(reduce_fn, gather_values(current_session().collective, value))


class Reduction(Generic[Value]):
    """A reduction that is done; ``result()`` returns its value."""

    def __init__(self, value: Value) -> None:
        self._value = value

    def result(self) -> Value:
        """The reduced value."""
        return self._value


def allreduce_async(value: Value, reduce_fn: Callable[[Any, Any], Any] = operator.add) -> Reduction[Value]:
    """As :func:`allreduce`, with the original's way to get the result; the exchange is done at once."""
    return Reduction(allreduce(value, reduce_fn))


def broadcast(value: Value) -> Value:
    """Rank 0's value, on every replica."""
    return share_state(value, collective=current_session().collective, source=0, device="cpu")


def teardown() -> None:
    """End the session; unlike in the original, the process may open another one."""
    close()
