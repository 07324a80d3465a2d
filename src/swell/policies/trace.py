"""Batch sizes written down beforehand, one for each optimizer step."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from swell.core.types import Observation
from swell.errors import TraceError
from swell.policies.arguments import as_whole, assign, samples, word
from swell.policies.trace_file import Row, read_trace

AtEnd = Literal["hold", "stop", "error"]
TraceUnit = Literal["rows", "steps"]


@dataclass(frozen=True, slots=True, init=False)
class Trace:
    """Batch sizes from a list or a CSV file ``step,batchsize``: the n-th row is the n-th optimizer step's.

    ``source`` is a path, a sequence (list, tuple, array) or one number, which then holds for ever.

    ``unit`` says what places a row. ``"rows"``: its position alone; the file's step column is not read, as in ETH's
    variable_batch_size. ``"steps"``: the file's step column, which must rise from 0; each size then holds until the
    next row's step, and the last row is one step long.

    ``at_end`` says what happens when the trace is over and the run is not: ``"hold"`` keeps the last size, ``"stop"``
    ends the run, ``"error"`` raises ``TraceError``.

    ``base`` is the batch the learning rate was tuned for, the first of the trace unless you say otherwise.

    A trace that cannot be read, is empty, or holds anything but whole numbers of at least 1 is a ``TraceError``.

    >>> from swell.policies import Trace
    >>> Trace([64, 64, 128], at_end="stop")
    Trace(source='3 sizes', unit='rows', at_end='stop', base=64)
    """

    source: str
    unit: TraceUnit
    at_end: AtEnd
    base: int
    sizes: tuple[int, ...] = field(repr=False)
    steps: tuple[int, ...] = field(repr=False)  # where each size begins, with unit="steps"

    def __init__(
        self,
        source: str | os.PathLike[str] | Sequence[int] | np.ndarray | int,
        *,
        base: int | None = None,
        at_end: AtEnd = "hold",
        unit: TraceUnit = "rows",
    ) -> None:
        word(at_end, "at_end", ("hold", "stop", "error"))
        word(unit, "unit", ("rows", "steps"))
        steps: tuple[int, ...] = ()
        if isinstance(source, (str, os.PathLike)):
            rows = read_trace(source, steps=unit == "steps")
            name, sizes = os.fspath(source), tuple(row.batch for row in rows)
            steps = _rising(name, rows) if unit == "steps" else ()
        elif unit == "steps":
            raise TraceError(
                f"unit='steps' reads the step column of a CSV file, and the source is {type(source).__name__}. "
                "Use unit='rows' for a list, or a Schedule for sizes that hold for a while."
            )
        elif as_whole(source) is not None:
            name, sizes, at_end = "a number", _sizes([source]), "hold"
        else:
            sizes = _sizes(source)
            name = f"{len(sizes)} sizes"
        base = samples(sizes[0] if base is None else base, "base")
        assign(self, source=name, unit=unit, at_end=at_end, base=base, sizes=sizes, steps=steps)

    def __len__(self) -> int:
        """Optimizer steps the trace has a size for."""
        return self.steps[-1] + 1 if self.steps else len(self.sizes)

    def finished(self, seen: Observation) -> bool:
        return self.at_end == "stop" and seen.step >= len(self)

    def batch(self, seen: Observation) -> int:
        if seen.step >= len(self) and self.at_end != "hold":
            raise TraceError(
                f"the trace ({self.source}) has sizes for {len(self)} steps, and step {seen.step} was asked for "
                f"with at_end={self.at_end!r}. Lengthen the trace, shorten the run, or use at_end='hold' to keep its "
                "last size."
            )
        row = bisect_right(self.steps, seen.step) - 1 if self.steps else seen.step
        return self.sizes[min(row, len(self.sizes) - 1)]


def _rising(name: str, rows: list[Row]) -> tuple[int, ...]:
    """The rows' steps, once they are known to rise from 0."""
    steps: list[int] = []
    for row in rows:
        if row.step <= steps[-1] if steps else row.step:
            wanted = f"more than {steps[-1]}, the step of the row before" if steps else "0 in the first row"
            raise TraceError(
                f"trace {name!r}, line {row.line}: step is {row.step}; expected {wanted}. "
                "Mend the step column, or use unit='rows' to go by the order of rows alone."
            )
        steps.append(row.step)
    return tuple(steps)


def _sizes(source: object) -> tuple[int, ...]:
    """The entries of a list or an array, each checked."""
    if isinstance(source, np.ndarray) and source.ndim != 1:
        raise TraceError(f"the trace is an array of shape {source.shape}; expected one dimension. Pass source.ravel().")
    if not isinstance(source, (Sequence, np.ndarray)) or isinstance(source, (bytes, bytearray)):
        raise TraceError(
            f"the trace is {source!r} of type {type(source).__name__}; expected the path of a CSV file, a list, a "
            "tuple, an array or a whole number. Pass list(source) where it is another kind of collection."
        )
    sizes = []
    for index, entry in enumerate(source):
        size = as_whole(entry)
        if size is None or size < 1:
            raise TraceError(
                f"the trace's entry {index} is {entry!r}; expected a whole number, 1 or more. Mend or delete the "
                "entry; for numbers with a point, pass [int(size) for size in sizes]."
            )
        sizes.append(size)
    if not sizes:
        raise TraceError("the trace is empty; expected one size for each step. Give at least one, for example [128].")
    return tuple(sizes)
