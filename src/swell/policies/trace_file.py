"""Reads a trace of batch sizes: a CSV file with one row for each optimizer step, or for each change."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

from swell.errors import TraceError

_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")  # no float, no underscore, nothing longer than any data set
_EXPECTED = "a CSV file with the header `step,batchsize` and whole numbers in every row"


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRow:
    """One row of a trace."""

    line: int  # of the file
    step: int  # by the step column, or the row's position if that is not read
    batch: int


def read_trace(path: str | os.PathLike[str], *, steps: bool) -> list[TraceRow]:
    """The rows of a trace file in order; the step column is read only with ``steps``.

    The first line names the columns. ``batchsize`` is required, ``step`` only with ``steps``; other columns and empty
    lines are ignored. Anything else is a ``TraceError`` with the line's number.
    """
    name = os.fspath(path)
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            rows = list(_rows(name, file, steps=steps))
    except OSError as error:
        raise TraceError(
            f"trace {name!r} cannot be read ({error.strerror or error}); expected {_EXPECTED}. "
            "Check the path and its permissions; a relative path starts in the current folder."
        ) from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise TraceError(f"trace {name!r} is not text ({error}); expected {_EXPECTED}. Save it as UTF-8.") from error
    if not rows:
        raise TraceError(
            f"trace {name!r} has no rows; expected {_EXPECTED}. Add a row for each step, for example 0,128."
        )
    return rows


def _rows(name: str, file: Iterator[str], *, steps: bool) -> Iterator[TraceRow]:
    lines = csv.reader(file)
    header = [column.strip().lower() for column in next(lines, [])]
    for column in ("batchsize", "step") if steps else ("batchsize",):
        if header.count(column) != 1:
            raise TraceError(
                f"trace {name!r}, line 1: {header.count(column) or 'no'} columns are named {column!r} (columns: "
                f"{', '.join(map(repr, header)) or 'none'}); expected {_EXPECTED}. Name the columns in the first line."
            )
    batch_column, step_column = header.index("batchsize"), header.index("step") if steps else None
    position = 0
    for cells in lines:
        if not any(cell.strip() for cell in cells):
            continue
        place = f"trace {name!r}, line {lines.line_num}"
        batch = _whole(cells, batch_column, place, "batchsize", at_least=1)
        step = position if step_column is None else _whole(cells, step_column, place, "step", at_least=0)
        yield TraceRow(line=lines.line_num, step=step, batch=batch)
        position += 1


def _whole(cells: list[str], column: int, place: str, name: str, *, at_least: int) -> int:
    text = cells[column].strip() if column < len(cells) else ""
    value = int(text) if _WHOLE.fullmatch(text) else None
    if value is None or value < at_least:
        raise TraceError(
            f"{place}: {name} is {text!r}; expected a whole number, {at_least} or more. "
            "Write the number alone, without a point or a unit, or delete the line."
        )
    return value
