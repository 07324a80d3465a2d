"""The demo's table: one row per run, kept up to date, with the elastic run's events below it."""

from __future__ import annotations

import time
from dataclasses import dataclass

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from swell.core.events import Event, Stepped
from swell.demo.history import Moment
from swell.demo.training import Result

_FRAME_S = 0.1
_HEADINGS = ("accuracy", "steps", "samples", "workers", "batch", "lr", "loss")


@dataclass
class _Row:
    name: str
    latest: Stepped | None = None
    smallest: int = 0  # global batch so far
    largest: int = 0
    result: Result | None = None


class Scoreboard:
    """Rows that are filled during the runs: live on a terminal, printed once at the end elsewhere."""

    def __init__(self, names: list[str], *, console: Console) -> None:
        self._rows = [_Row(name) for name in names]
        self._began_at: float | None = None  # time of the first moment, in seconds since the epoch
        self._moments: list[Moment] = []
        self._console = console
        self._live = Live(self._display(), console=console, auto_refresh=False) if console.is_terminal else None
        self._drawn_at = 0.0

    def __enter__(self) -> Scoreboard:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *failure: object) -> None:
        if self._live is not None:
            self._live.update(self._display(), refresh=True)
            self._live.stop()
        elif failure[0] is None:
            self._console.print(self._table())

    def sink(self, name: str) -> RowSink:
        """The sink for the events of a run."""
        return RowSink(self, self._row(name))

    def begin(self, text: str) -> None:
        """The elastic run begins: its moments are timed from now."""
        self._began_at = time.time()
        self.add(Moment(self._began_at, text, ""))

    def add(self, moment: Moment) -> None:
        """Show a moment of the elastic run."""
        self._moments.append(moment)
        if self._live is None:
            self._console.print(self._line(moment))
        else:
            self._live.update(self._display(), refresh=True)

    def finish(self, name: str, result: Result) -> None:
        """Show a run's result in its row."""
        self._row(name).result = result
        if self._live is None:
            self._console.print(f"{name}: {result.accuracy:.1%} after {result.steps:,} steps")

    def refresh(self) -> None:
        """Draw again, unless the last time was just now."""
        now = time.monotonic()
        if self._live is not None and now - self._drawn_at >= _FRAME_S:
            self._drawn_at = now
            self._live.update(self._display(), refresh=True)

    def _row(self, name: str) -> _Row:
        return next(row for row in self._rows if row.name == name)

    def _display(self) -> RenderableType:
        return Group(self._table(), *(self._line(moment) for moment in self._moments))

    def _line(self, moment: Moment) -> Text:
        seconds = moment.time - (self._began_at or moment.time)
        return Text.assemble((f"  {seconds:5.1f} s  ", "cyan"), moment.text)

    def _table(self) -> Table:
        table = Table(box=box.SIMPLE_HEAD, header_style="bold cyan", pad_edge=False)
        table.add_column("")
        for heading in _HEADINGS:
            table.add_column(heading, justify="right", min_width=max(5, len(heading)))
        for row in self._rows:
            table.add_row(row.name, *_cells(row), style=None if row.latest else "dim")
        return table


class RowSink:
    """Shows one run's events in its row."""

    def __init__(self, board: Scoreboard, row: _Row) -> None:
        self._board, self._row = board, row

    def emit(self, event: Event) -> None:
        if isinstance(event, Stepped):
            row = self._row
            row.smallest = event.global_batch if row.latest is None else row.smallest
            row.latest = event
            row.largest = max(row.largest, event.global_batch)
            self._board.refresh()

    def close(self) -> None:
        pass


def _cells(row: _Row) -> list[str]:
    latest, result = row.latest, row.result
    if latest is None:
        return [""] * len(_HEADINGS)
    return [
        f"{result.accuracy:.1%}" if result else "…",
        f"{result.steps if result else latest.step:,}",
        f"{result.samples if result else latest.samples:,}",
        f"{latest.replicas}",
        f"{row.smallest}" if row.largest == row.smallest else f"{row.smallest}–{row.largest}",
        f"×{latest.lr_factor[0]:.2f}",
        "" if latest.loss is None else f"{latest.loss:.3f}",
    ]
