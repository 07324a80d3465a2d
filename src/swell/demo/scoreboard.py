"""The demo's table: one row a run, kept up to date while the run goes on."""

from __future__ import annotations

import time
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Table

from swell.core.events import Event, Stepped
from swell.demo.training import Result

_FRAME_S = 0.1


@dataclass
class _Row:
    name: str
    latest: Stepped | None = None
    largest: int = 0  # global batch so far
    result: Result | None = None


class Scoreboard:
    """Rows that fill while runs go on: live on a terminal, printed once at the end elsewhere."""

    def __init__(self, names: list[str], *, console: Console) -> None:
        self._rows = [_Row(name) for name in names]
        self._console = console
        self._live = Live(self._table(), console=console, auto_refresh=False) if console.is_terminal else None
        self._shown_s = 0.0

    def __enter__(self) -> Scoreboard:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *failure: object) -> None:
        if self._live is not None:
            self._live.update(self._table(), refresh=True)
            self._live.stop()
        elif failure[0] is None:
            self._console.print(self._table())

    def sink(self, name: str) -> RowSink:
        """What a job tells its events to."""
        return RowSink(self, self._row(name))

    def finish(self, name: str, result: Result) -> None:
        """Put a run's result in its row."""
        self._row(name).result = result
        if self._live is None:
            self._console.print(f"{name}: {result.accuracy:.1%} after {result.steps:,} steps")

    def refresh(self) -> None:
        """Draw anew, if the last time was long enough ago to be seen."""
        now = time.monotonic()
        if self._live is not None and now - self._shown_s >= _FRAME_S:
            self._shown_s = now
            self._live.update(self._table(), refresh=True)

    def _row(self, name: str) -> _Row:
        return next(row for row in self._rows if row.name == name)

    def _table(self) -> Table:
        table = Table(box=box.SIMPLE_HEAD, header_style="bold cyan")
        table.add_column("")
        for heading in ("accuracy", "steps", "samples", "largest batch", "lr factor", "loss"):
            table.add_column(heading, justify="right", min_width=len(heading))
        for row in self._rows:
            table.add_row(row.name, *_cells(row), style=None if row.latest else "dim")
        return table


class RowSink:
    """Takes one run's events to its row."""

    def __init__(self, board: Scoreboard, row: _Row) -> None:
        self._board, self._row = board, row

    def emit(self, event: Event) -> None:
        if isinstance(event, Stepped):
            self._row.latest = event
            self._row.largest = max(self._row.largest, event.global_batch)
            self._board.refresh()

    def close(self) -> None:
        pass


def _cells(row: _Row) -> list[str]:
    latest = row.latest
    if latest is None:
        return [""] * 6
    return [
        f"{row.result.accuracy:.1%}" if row.result else "…",
        f"{row.result.steps if row.result else latest.step:,}",
        f"{row.result.samples if row.result else latest.samples:,}",
        f"{row.largest:,}",
        f"{latest.lr_factor[0]:.2f}",
        "" if latest.loss is None else f"{latest.loss:.3f}",
    ]
