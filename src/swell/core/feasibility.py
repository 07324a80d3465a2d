r"""Which global batches fit on which replicas, within bounds on the micro-batch.

A batch ``B`` can be laid out on ``R`` replicas if some number ``K >= R`` of micro-batches (each replica computes at
least one) satisfies

.. math:: K \cdot m_{min} \le B \le K \cdot m_{max}

or, if all micro-batches must have one size ``m`` within these bounds, ``K * m = B``. The number of replicas appears
only in ``R <= K``, so a batch that fits on ``R`` replicas fits on fewer. All searches take ``O(sqrt(B))`` steps or
fewer.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass

from swell.core.counts import whole_number
from swell.errors import ConfigError, PlanError


@dataclass(frozen=True, slots=True)
class MicroBounds:
    """Sizes a micro-batch may have, in samples, both ends included; ``constant`` requires one size in a whole step."""

    low: int = 1
    high: int = sys.maxsize
    constant: bool = False

    @classmethod
    def of(cls, *, min_micro: int | None, max_micro: int | None, constant_micro: bool) -> MicroBounds:
        """The bounds that a user gives; ``ConfigError`` if they cross."""
        low = 1 if min_micro is None else whole_number(min_micro, name="min_micro")
        high = sys.maxsize if max_micro is None else whole_number(max_micro, name="max_micro")
        if low > high:
            raise ConfigError(
                f"min_micro is {low} and max_micro is {high}; expected bounds that do not cross. Lower min_micro to "
                f"{high} or less, or raise max_micro to {low} or more."
            )
        return cls(low=low, high=high, constant=bool(constant_micro))

    @property
    def bounded(self) -> bool:
        """Whether there is an upper bound."""
        return self.high != sys.maxsize

    def __str__(self) -> str:
        sizes = f"{self.low} to {self.high}" if self.bounded else f"at least {self.low}"
        sizes = str(self.low) if self.low == self.high else sizes
        return f"micro-batches of {sizes} samples" + (", all of one size" if self.constant else "")


def feasible_replicas(
    global_batch: int,
    *,
    among: Iterable[int],
    max_micro: int | None = None,
    min_micro: int | None = None,
    constant_micro: bool = False,
    max_batch: int | None = None,
) -> list[int]:
    """The replica counts in ``among`` on which ``global_batch`` samples can be laid out, in the same order.

    With ``max_batch`` a count is listed if any batch from ``global_batch`` to ``max_batch`` fits.

    >>> feasible_replicas(256, among=range(1, 9), max_micro=64, min_micro=48)
    [1, 2, 3, 4, 5]
    >>> feasible_replicas(128, among=[8, 10, 11], min_micro=100, max_batch=1000)
    [8, 10]
    """
    lowest, highest = _batches(global_batch, global_batch if max_batch is None else max_batch)
    bounds = MicroBounds.of(min_micro=min_micro, max_micro=max_micro, constant_micro=constant_micro)
    most = most_micro_batches(lowest, highest, bounds)
    return [count for count in (whole_number(item, name="replicas") for item in among) if count <= most]


def batch_bounds(
    replicas: int,
    *,
    max_batch: int,
    min_batch: int = 1,
    max_micro: int | None = None,
    min_micro: int | None = None,
    constant_micro: bool = False,
) -> tuple[int, int]:
    """The smallest and the largest batch from ``min_batch`` to ``max_batch`` that fit on these replicas.

    Not every batch between the two must fit. Raises ``PlanError``, with the numbers to change, if none fits.

    >>> batch_bounds(8, min_batch=128, max_batch=1000, min_micro=100)
    (800, 1000)
    >>> batch_bounds(11, min_batch=128, max_batch=1000, min_micro=100)
    Traceback (most recent call last):
    ...
    swell.errors.PlanError: a maximum batch of 1000 cannot feed 11 replicas in micro-batches of at least 100 samples:
    that takes 1100 per step. Raise the maximum batch to 1100 or more, lower min_micro to 90 or less, or run on at
    most 10 replicas.
    """
    replicas = whole_number(replicas, name="replicas")
    lowest, highest = _batches(min_batch, max_batch)
    bounds = MicroBounds.of(min_micro=min_micro, max_micro=max_micro, constant_micro=constant_micro)
    most = most_micro_batches(lowest, highest, bounds)
    if most >= replicas:
        below = batch_at_most(highest, replicas, bounds)
        assert below is not None
        return batch_at_least(lowest, replicas, bounds), below
    if highest < replicas * bounds.low:
        remedies = [f"Raise the maximum batch to {replicas * bounds.low} or more"]
        if highest >= replicas:
            remedies.append(f"lower min_micro to {highest // replicas} or less")
        if most:
            remedies.append(f"run on at most {_counted(most)}")
        raise PlanError(
            f"a maximum batch of {highest} cannot feed {_counted(replicas)} in {bounds}: that takes "
            f"{replicas * bounds.low} per step. {_either(remedies)}."
        )
    raise PlanError(
        f"no batch from {lowest} to {highest} can be laid out on {_counted(replicas)} in {bounds}. "
        f"{_near(lowest, highest, replicas, bounds)}, or widen the bounds on micro-batches."
    )


def nearest_batches(
    global_batch: int,
    replicas: int,
    *,
    max_micro: int | None = None,
    min_micro: int | None = None,
    constant_micro: bool = False,
) -> tuple[int | None, int]:
    """The largest batch that fits up to ``global_batch`` (``None`` without one), and the smallest from there on.

    >>> nearest_batches(1000, 3, min_micro=64, max_micro=64)
    (960, 1024)
    >>> nearest_batches(100, 3, min_micro=64, max_micro=64)
    (None, 192)
    """
    global_batch = whole_number(global_batch, name="global_batch")
    replicas = whole_number(replicas, name="replicas")
    bounds = MicroBounds.of(min_micro=min_micro, max_micro=max_micro, constant_micro=constant_micro)
    return batch_at_most(global_batch, replicas, bounds), batch_at_least(global_batch, replicas, bounds)


def require_fit(global_batch: int, replicas: int, bounds: MicroBounds) -> None:
    """Raise ``PlanError``, with the numbers to change, unless the batch can be laid out."""
    most = most_micro_batches(global_batch, global_batch, bounds)
    if most >= replicas:
        return
    least = replicas * bounds.low
    if global_batch < least:
        need = f"at least {bounds.low} sample{'s' if bounds.low > 1 else ''} per step"
        why = f" (min_micro={bounds.low})" if bounds.low > 1 else ""
        remedies = [f"Raise the batch size to {least} or more"]
        if bounds.low > 1 and global_batch >= replicas:
            remedies.append(f"lower min_micro to {global_batch // replicas} or less")
        if most:
            remedies.append(f"run on at most {_counted(most)}")
        raise PlanError(
            f"global batch {global_batch} cannot feed {_counted(replicas)}: each needs {need}{why}. "
            f"{_either(remedies)}."
        )
    fewer = f", run on at most {_counted(most)}" if most else ""
    raise PlanError(
        f"global batch {global_batch} cannot be laid out on {_counted(replicas)} in {bounds}. "
        f"{_near(global_batch, global_batch, replicas, bounds)}{fewer}, or widen the bounds on micro-batches."
    )


def most_micro_batches(lowest: int, highest: int, bounds: MicroBounds) -> int:
    """The most micro-batches into which any batch from ``lowest`` to ``highest`` can be cut; 0 if none can."""
    low, high = bounds.low, bounds.high
    if not bounds.constant:
        most = highest // low
        return most if most and most * high >= lowest else 0
    root = math.isqrt(highest)
    for size in range(low, min(high, root) + 1):  # small sizes, in falling order of their number ...
        number = highest // size
        if number * size >= lowest:
            return number
    for number in range(highest // max(low, root + 1), 0, -1):  # ... then small numbers of large ones
        size = max(low, -(-lowest // number))
        if size <= high and number * size <= highest:
            return number
    return 0


def batch_at_most(limit: int, replicas: int, bounds: MicroBounds) -> int | None:
    """The largest batch up to ``limit`` that fits; ``None`` without one."""
    low, high = bounds.low, bounds.high
    if limit < replicas * low:
        return None
    if not bounds.constant:
        return min(limit, limit // low * high)
    root = math.isqrt(limit)
    best = 0
    for size in range(low, min(high, root, limit // replicas) + 1):
        best = max(best, limit // size * size)
    for number in range(replicas, limit // (root + 1) + 1):
        size = min(high, limit // number)
        if size >= low:
            best = max(best, number * size)
    return best or None


def batch_at_least(limit: int, replicas: int, bounds: MicroBounds) -> int:
    """The smallest batch from ``limit`` on that fits; there is always one."""
    low, high = bounds.low, bounds.high
    if not bounds.constant:
        return max(limit, max(replicas, -(-limit // high)) * low)
    root = math.isqrt(limit) + 1
    best = max(replicas, -(-limit // low)) * low
    for size in range(low, min(high, root) + 1):
        best = min(best, max(replicas, -(-limit // size)) * size)
    for number in range(replicas, max(replicas, root) + 1):
        size = max(low, -(-limit // number))
        if size <= high:
            best = min(best, number * size)
    return best


def _near(lowest: int, highest: int, replicas: int, bounds: MicroBounds) -> str:
    below, above = batch_at_most(lowest, replicas, bounds), batch_at_least(highest, replicas, bounds)
    return f"Use {below} or {above}, the nearest that can"


def _counted(replicas: int) -> str:
    return f"{replicas} replica{'s' if replicas > 1 else ''}"


def _either(remedies: list[str]) -> str:
    return remedies[0] if len(remedies) == 1 else ", ".join(remedies[:-1]) + ", or " + remedies[-1]


def _batches(lowest: int, highest: int) -> tuple[int, int]:
    lowest = whole_number(lowest, name="the smallest batch")
    highest = whole_number(highest, name="max_batch")
    if lowest > highest:
        raise ConfigError(
            f"the smallest batch is {lowest} and max_batch is {highest}; expected bounds that do not cross. Raise "
            f"max_batch to {lowest} or more, or lower the batch to {highest} or less."
        )
    return lowest, highest
