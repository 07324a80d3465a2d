"""A line that shows how the run goes: live on a terminal, now and then as plain text elsewhere."""

from __future__ import annotations

import atexit
import contextlib
import time
from collections.abc import Callable

from rich.console import Console, ConsoleOptions, RenderResult
from rich.errors import LiveError
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from swell.core.events import (
    EpochEnded,
    EpochStarted,
    Event,
    Faulted,
    Noticed,
    Resized,
    RunEnded,
    RunStarted,
    Stepped,
    StepSkipped,
    Warned,
)
from swell.telemetry.run_summary import Part, Standing, compact, duration

_FRAME_S = 0.1  # a live line is drawn at most this often
_SMALLEST_BAR, _LARGEST_BAR, _GAP = 10, 40, 2  # columns


class ProgressLine:
    """Shows epoch, samples, batch, replicas, lr factor, gain, speed and loss of a run.

    On a terminal one line is kept up to date, and what a program prints appears above it. Elsewhere (a file, a pipe, a
    notebook) it is plain text without escape codes: a line every ``every_s`` seconds. Ends of epochs, resizes, notices,
    faults and warnings get a line of their own. Output that fails (a closed pipe) ends the line, not the run.

    A total is shown where the events tell it (``EpochStarted``).
    """

    def __init__(
        self, *, console: Console | None = None, every_s: float = 5.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._console = console or Console(highlight=False, soft_wrap=True)
        self._every_s, self._clock = every_s, clock
        self._standing = Standing()
        self._live: Live | None = None
        self._broken = self._plain = False
        self._shown_s = -float("inf")
        self._epoch_s: float | None = None
        self._reasons: set[str] = set()

    @property
    def live(self) -> bool:
        """Whether one line is kept up to date, and not one printed now and then."""
        return self._console.is_terminal and not self._console.is_dumb_terminal and not self._plain

    def emit(self, event: Event) -> None:
        if self._broken:
            return
        self._standing.take(event)
        if isinstance(event, EpochStarted):
            self._epoch_s = event.time
        text = self._telling(event)
        try:
            if text is not None:
                self._say(text)
            if isinstance(event, (Stepped, EpochStarted)):
                self._show()
        except (OSError, ValueError):  # a closed pipe, a closed file
            self._broken = True
            with contextlib.suppress(OSError, ValueError):
                self.close()

    def close(self) -> None:
        if self._live is not None:
            atexit.unregister(self.close)
            live, self._live = self._live, None
            live.stop()

    def _show(self) -> None:
        now = self._clock()
        if now - self._shown_s < (_FRAME_S if self.live else self._every_s):
            return
        if not self.live and self._standing.batch is None:
            return  # nothing to tell yet
        self._shown_s = now
        if not self.live:
            self._say(_in_a_row(self._standing.title(), self._standing.parts(times="x")))
            return
        if self._live is None:
            # No thread of its own: it is drawn as events come, and transient, so that nothing of it stays behind.
            live = Live(console=self._console, auto_refresh=False, transient=True)
            try:
                live.start()
            except LiveError:  # the program draws a live display of its own, and this version of rich allows but one
                self._plain = True
                return
            self._live = live
            atexit.register(self.close)  # gives the cursor back where nobody closes the run
        self._live.update(_Line(self._standing), refresh=True)

    def _say(self, text: str) -> None:
        if self.live:
            self._console.print(Text(text))
        else:
            encoding = self._console.encoding or "utf-8"
            print(text.encode(encoding, "replace").decode(encoding), file=self._console.file, flush=True)

    def _telling(self, event: Event) -> str | None:
        """The event in a line of its own, where it deserves one."""
        if isinstance(event, EpochEnded):
            return self._epoch_in_words(event)
        if isinstance(event, RunStarted) and event.samples:
            return f"resumed at {event.samples:,} samples on {_replicas(event.replicas)}"
        if isinstance(event, Resized):
            pause = f" in {duration(event.pause_s)}" if event.pause_s is not None else ""
            return f"resized from {event.before} to {_replicas(event.after)}{pause}: {event.reason}"
        if isinstance(event, Noticed):
            left = f", {duration(event.deadline_s)} left" if event.deadline_s is not None else ""
            return f"asked to stop by {event.source}{left}"
        if isinstance(event, Faulted):
            return f"{'failed' if event.fatal else 'recovered'} at step {event.step:,}: {event.message}"
        if isinstance(event, Warned):
            return f"warning: {event.message}"
        if isinstance(event, StepSkipped) and event.reason not in self._reasons:
            self._reasons.add(event.reason)  # a gradient scaler skips many; the log has them all
            return f"skipped a step after step {event.step:,}: {event.reason}"
        if isinstance(event, RunEnded):
            return f"{event.reason} after {event.step:,} steps, {event.samples:,} samples"
        return None

    def _epoch_in_words(self, event: EpochEnded) -> str:
        took = ""
        if self._epoch_s is not None and event.time > self._epoch_s:
            took = f" in {duration(event.time - self._epoch_s)}"
        parts = [Part(name, f"{value:.4g}", 0) for name, value in event.metrics.items()]
        ended = "done" if event.complete else "left early"
        return _in_a_row(f"{self._standing.title()} {ended}: {event.samples:,} samples{took}", parts)


class _Line:
    """The live line: a bar where the run's length is known, and as many figures as the terminal has room for."""

    def __init__(self, standing: Standing) -> None:
        self._standing = standing

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        title = Text(self._standing.title(), style="bold")
        done = self._standing.done
        parts = self._standing.parts(times="x" if options.ascii_only else "×")
        room = options.max_width - len(title.plain) - _GAP
        bar = _SMALLEST_BAR + _GAP + len("100 %") + _GAP
        if room < bar + _width([min(parts, key=lambda part: part.rank)]):
            done = None  # the most important figure comes before the bar
        if done is not None:
            room -= bar
        while parts and _width(parts) > room:
            parts.remove(max(parts, key=lambda part: part.rank))
        row: list[ProgressBar | Text] = [title]
        if done is not None:
            width = min(_LARGEST_BAR, _SMALLEST_BAR + room - _width(parts))
            row.append(ProgressBar(total=1.0, completed=done, width=width, complete_style="green"))
            row.append(Text(f"{100 * done:3.0f} %"))
        row += [Text.assemble((f"{part.label} ", "dim"), (part.value, "cyan")) for part in parts]
        grid = Table.grid(padding=(0, _GAP, 0, 0))
        for _ in row:
            grid.add_column(no_wrap=True)
        grid.add_row(*row)
        yield grid


def _width(parts: list[Part]) -> int:
    return sum(len(part.label) + 1 + len(part.value) + _GAP for part in parts) - (_GAP if parts else 0)


def _in_a_row(title: str, parts: list[Part]) -> str:
    return "  ".join([title, *(f"{part.label} {part.value}" for part in parts)])


def _replicas(count: int) -> str:
    return f"{compact(count)} replica{'s' if count != 1 else ''}"
