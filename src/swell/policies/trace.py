"""Batch sizes from a list or a file, one for each optimizer step."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from swell.core.counts import as_whole, whole_number
from swell.core.types import Observation
from swell.errors import TraceError
from swell.policies.arguments import assign, word
from swell.policies.trace_file import TraceRow, read_trace

AtEnd = Literal["hold", "stop", "error"]
TraceUnit = Literal["rows", "steps"]


@dataclass(frozen=True, slots=True, init=False)
class Trace:
    """Batch sizes from a list or a CSV file ``step,batchsize``: the n-th row is the n-th optimizer step's.

    ``source`` is a path, a sequence (list, tuple, array) or one number, which holds for every step.

    With ``unit="rows"`` the file's step column is not read, as in ETH's variable_batch_size. With ``unit="steps"`` it
    says at which step a row starts. It must increase from 0; each size holds until the next row's step, and the last
    row is one step long.

    ``at_end`` says what happens if the trace ends before the run: ``"hold"`` keeps the last size, ``"stop"`` ends the
    run, ``"error"`` raises ``TraceError``.

    ``base`` is the batch the learning rate was tuned for, by default the first of the trace.

    A trace that cannot be read, is empty, or has a size that is not a whole number of at least 1 is a ``TraceError``.

    >>> from swell.policies import Trace
    >>> Trace([64, 64, 128], at_end="stop")
    Trace(source='3 sizes', unit='rows', at_end='stop', base=64)
    """

    source: str
    unit: TraceUnit
    at_end: AtEnd
    base: int
    sizes: tuple[int, ...] = field(repr=False)
    steps: tuple[int, ...] = field(repr=False)  # the first step of each size, with unit="steps"

    def __init__(
        self,
        source: str | os.PathLike[str] | Sequence[int] | np.ndarray | int,
        *,
        base: int | None = None,
        at_end: AtEnd = "hold",
        unit: TraceUnit = "rows",
    ) -> None:
        word(at_end, name="at_end", known=("hold", "stop", "error"))
        word(unit, name="unit", known=("rows", "steps"))
        steps: tuple[int, ...] = ()
        if isinstance(source, (str, os.PathLike)):
            rows = read_trace(source, steps=unit == "steps")
            name, sizes = os.fspath(source), tuple(row.batch for row in rows)
            steps = _increasing_steps(name, rows) if unit == "steps" else ()
        elif unit == "steps":
            raise TraceError(
                f"unit is 'steps' and source is {type(source).__name__}; expected the path of a CSV file with a step "
                "column. Use unit='rows' for a list, or a Schedule for sizes that hold for a while."
            )
        elif as_whole(source) is not None:
            name, sizes, at_end = "a number", _sizes([source]), "hold"
        else:
            sizes = _sizes(source)
            name = f"{len(sizes)} sizes"
        base = whole_number(sizes[0] if base is None else base, name="base")
        assign(self, source=name, unit=unit, at_end=at_end, base=base, sizes=sizes, steps=steps)

    def __len__(self) -> int:
        """How many optimizer steps have a size."""
        return self.steps[-1] + 1 if self.steps else len(self.sizes)

    def finished(self, seen: Observation) -> bool:
        return self.at_end == "stop" and seen.step >= len(self)

    def batch(self, seen: Observation) -> int:
        if seen.step >= len(self) and self.at_end != "hold":
            raise TraceError(
                f"step is {seen.step}; expected less than {len(self)}, the steps of the trace ({self.source}), because "
                f"at_end is {self.at_end!r}. Lengthen the trace, shorten the run, or use at_end='hold' to keep its "
                "last size."
            )
        row = bisect_right(self.steps, seen.step) - 1 if self.steps else seen.step
        return self.sizes[min(row, len(self.sizes) - 1)]


def _increasing_steps(name: str, rows: list[TraceRow]) -> tuple[int, ...]:
    """The rows' steps, or ``TraceError`` if they do not increase from 0."""
    steps: list[int] = []
    for row in rows:
        if row.step <= steps[-1] if steps else row.step:
            expected = f"more than {steps[-1]}, the step of the row before" if steps else "0 in the first row"
            raise TraceError(
                f"trace {name!r}, line {row.line}: step is {row.step}; expected {expected}. "
                "Fix the step column, or use unit='rows' to use the order of rows alone."
            )
        steps.append(row.step)
    return tuple(steps)


def _sizes(source: object) -> tuple[int, ...]:
    """The sizes in a list or an array; ``TraceError`` if one cannot be a batch."""
    if isinstance(source, np.ndarray) and source.ndim != 1:
        raise TraceError(f"the trace has shape {source.shape}; expected one dimension. Pass source.ravel().")
    if not isinstance(source, (Sequence, np.ndarray)) or isinstance(source, (bytes, bytearray)):
        raise TraceError(
            f"the trace is {source!r} of type {type(source).__name__}; expected the path of a CSV file, a list, a "
            "tuple, an array or a whole number. Pass list(source) if it is another collection."
        )
    sizes = []
    for index, entry in enumerate(source):
        size = as_whole(entry)
        if size is None or size < 1:
            raise TraceError(
                f"the trace's entry {index} is {entry!r}; expected a whole number, 1 or more. Change or delete the "
                "entry; for floats, pass [int(size) for size in sizes]."
            )
        sizes.append(size)
    if not sizes:
        raise TraceError("the trace is empty; expected one size for each step. Give at least one, for example [128].")
    return tuple(sizes)
