"""Reading a batch size trace: a CSV file with one row for each optimizer step, or for each change."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

from swell.errors import TraceError

_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")  # no float, no underscore, nothing longer than any data set
_EXPECTED = "a CSV file with the header `step,batchsize` and one whole number a row"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of a trace, and where it stood."""

    line: int
    step: int  # its position in the file where the step column was not asked for
    batch: int


def read_trace(path: str | os.PathLike[str], *, steps: bool) -> list[Row]:
    """The rows of a trace file in their order; the step column is read only with ``steps``.

    The first line names the columns: ``batchsize`` must be there, ``step`` only with ``steps``, others are passed
    over, and so are empty lines. Anything else is a ``TraceError`` with the line's number.
    """
    name = os.fspath(path)
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            rows = list(_rows(name, file, steps=steps))
    except OSError as error:
        raise TraceError(
            f"trace {name!r} cannot be read ({error.strerror or error}); expected {_EXPECTED}. "
            "Check the path and its permissions; a relative path starts at the current folder."
        ) from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise TraceError(f"trace {name!r} is not text ({error}); expected {_EXPECTED}. Save it as UTF-8.") from error
    if not rows:
        raise TraceError(
            f"trace {name!r} has no rows; expected {_EXPECTED}. Add a row for each step, for example 0,128."
        )
    return rows


def _rows(name: str, file: Iterator[str], *, steps: bool) -> Iterator[Row]:
    lines = csv.reader(file)
    header = [column.strip().lower() for column in next(lines, [])]
    for wanted in ("batchsize", "step") if steps else ("batchsize",):
        if header.count(wanted) != 1:
            raise TraceError(
                f"trace {name!r}, line 1: {header.count(wanted) or 'no'} columns are named {wanted!r} (columns: "
                f"{', '.join(map(repr, header)) or 'none'}); expected {_EXPECTED}. Name the columns in the first line."
            )
    batch_column, step_column = header.index("batchsize"), header.index("step") if steps else None
    position = 0
    for cells in lines:
        if not any(cell.strip() for cell in cells):
            continue
        where = f"trace {name!r}, line {lines.line_num}"
        batch = _whole(cells, batch_column, where, "batchsize", least=1)
        step = position if step_column is None else _whole(cells, step_column, where, "step", least=0)
        yield Row(line=lines.line_num, step=step, batch=batch)
        position += 1


def _whole(cells: list[str], column: int, where: str, name: str, *, least: int) -> int:
    text = cells[column].strip() if column < len(cells) else ""
    value = int(text) if _WHOLE.fullmatch(text) else None
    if value is None or value < least:
        raise TraceError(
            f"{where}: {name} is {text!r}; expected a whole number, {least} or more. "
            f"Write the number alone, without a point or a unit, or delete the line."
        )
    return value
