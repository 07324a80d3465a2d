"""A line that shows how a run is doing: live on a terminal and in a notebook, plain text now and then elsewhere."""

from __future__ import annotations

import atexit
import contextlib
import time
from collections.abc import Callable

from rich.console import Console, ConsoleOptions, RenderResult
from rich.errors import LiveError
from rich.live import Live
from rich.text import Text

from swell.core.events import (
    EpochEnded,
    EpochStarted,
    Event,
    Faulted,
    GrowthTakenBack,
    Noticed,
    Resized,
    RunEnded,
    RunStarted,
    Satisfied,
    Stepped,
    StepSkipped,
    Warned,
)
from swell.telemetry.notebook import ShowHtml, as_html, show_html
from swell.telemetry.run_summary import RunSummary, SummaryField, compact, duration

_FRAME_S = 0.1  # a live line is drawn at most this often
_TIMES_ITS_COST = 400  # and so seldom that drawing takes a quarter of a percent of the time
_SMALLEST_BAR, _LARGEST_BAR, _GAP = 10, 40, 2  # columns


class ProgressLine:
    """Shows epoch, samples, batch, replicas, lr factor, gain, speed and loss of a run.

    On a terminal one line is kept up to date, and the program's own output appears above it. In a notebook there is one
    such line below each cell that trains. Elsewhere (a file, a pipe) it is plain text without escape codes, one line
    every ``every_s`` seconds. Ends of epochs, resizes, notices, faults and warnings get their own lines. Output that
    fails (a closed pipe) ends the line, not the run. Drawing takes at most about a quarter of a percent of the time.

    A total is shown if the events contain it (``EpochStarted``).
    """

    def __init__(
        self,
        *,
        console: Console | None = None,
        every_s: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
        show: ShowHtml = show_html,
    ) -> None:
        self._console = console or Console(highlight=False, soft_wrap=True)
        self._notebook, self._show_html = self._console.is_jupyter, show
        self._replace_html: Callable[[str], None] | None = None
        self._every_s, self._clock = every_s, clock
        self._summary = RunSummary()
        self._live: Live | None = None
        self._broken = self._plain = False
        self._next_at = -float("inf")  # when the line may be drawn again
        self._epoch_began_at: float | None = None
        self._reasons: set[str] = set()

    @property
    def live(self) -> bool:
        """Whether one line is kept up to date, instead of printed from time to time."""
        if self._notebook:
            return not self._plain
        return self._console.is_terminal and not self._console.is_dumb_terminal and not self._plain

    def emit(self, event: Event) -> None:
        if self._broken:
            return
        self._summary.take(event)
        if isinstance(event, EpochStarted):
            self._epoch_began_at = event.time
        elif isinstance(event, RunStarted):
            self._replace_html = None  # another cell, perhaps
        text = self._describe(event)
        try:
            if text is not None:
                self._print(text)
            if isinstance(event, EpochEnded) and self._notebook:
                self._draw_in_notebook()  # it stays when the loop is over
            elif isinstance(event, (Stepped, EpochStarted)):
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
        if now < self._next_at:
            return
        if not self.live:
            if self._summary.batch is not None:  # otherwise there is nothing to show yet
                self._next_at = now + self._every_s
                self._print(_in_a_row(self._summary.title(), self._summary.fields(times="x")))
            return
        is_first = self._live is None and self._replace_html is None
        self._draw_in_notebook() if self._notebook else self._draw()
        cost = 0.0 if is_first else self._clock() - now  # the first has to import and to begin
        self._next_at = now + max(_FRAME_S, _TIMES_ITS_COST * cost)

    def _draw_in_notebook(self) -> None:
        html = as_html(_Line(self._summary))
        try:
            if self._replace_html is None:
                self._replace_html = self._show_html(html)
            else:
                self._replace_html(html)
        except Exception:  # a notebook of another kind
            self._plain = True

    def _draw(self) -> None:
        if self._live is None:
            # Without a thread: it is drawn when events come. Transient, so that nothing of it remains.
            live = Live(console=self._console, auto_refresh=False, transient=True)
            try:
                live.start()
            except LiveError:  # the program has its own live display, and this version of rich allows only one
                self._plain = True
                return
            self._live = live
            atexit.register(self.close)  # restores the cursor if nobody closes the run
        self._live.update(_Line(self._summary), refresh=True)

    def _print(self, text: str) -> None:
        if self.live and not self._notebook:
            self._console.print(Text(text))
        else:
            encoding = self._console.encoding or "utf-8"
            print(text.encode(encoding, "replace").decode(encoding), file=self._console.file, flush=True)

    def _describe(self, event: Event) -> str | None:
        """The line for an event that gets its own, else None."""
        if isinstance(event, EpochEnded):
            return self._describe_epoch(event)
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
            self._reasons.add(event.reason)  # a gradient scaler skips many; the log contains them all
            return f"skipped a step after step {event.step:,}: {event.reason}"
        if isinstance(event, RunEnded):
            return f"{event.reason} after {event.step:,} steps, {event.samples:,} samples{self._price(event)}"
        if isinstance(event, Satisfied):
            return f"enough at step {event.step:,}: {event.reason}"
        if isinstance(event, GrowthTakenBack):
            rise = f"the loss rose from {event.loss_before:.4g} to {event.loss_after:.4g}"
            return f"batch back from {event.after} to {event.before} after step {event.step:,}: {rise}"
        return None

    def _price(self, event: RunEnded) -> str:
        """What the steps were worth beside the base run's; nothing for a run that was one."""
        price = self._summary.price
        if price.steps == event.step:
            words = price.words()
            return "" if words is None else f" in {duration(price.seconds)}\n{words}"
        if not event.progress or not event.base_batch or abs(event.progress - event.step) < 0.5:
            return ""
        samples = event.samples / (event.progress * event.base_batch)  # the run was resumed: its end has the sums alone
        return f"\nworth {event.progress:,.0f} steps of {event.base_batch}: {samples:.2f} times the base run's samples"

    def _describe_epoch(self, event: EpochEnded) -> str:
        time_taken = ""
        if self._epoch_began_at is not None and event.time > self._epoch_began_at:
            time_taken = f" in {duration(event.time - self._epoch_began_at)}"
        fields = [SummaryField(name, f"{value:.4g}", 0) for name, value in event.metrics.items()]
        outcome = "done" if event.complete else "left early"
        return _in_a_row(f"{self._summary.title()} {outcome}: {event.samples:,} samples{time_taken}", fields)


class _Line:
    """The live line: a bar if the run's length is known, and as many fields as fit on the terminal."""

    def __init__(self, summary: RunSummary) -> None:
        self._summary = summary

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        title = Text(no_wrap=True).append(self._summary.title(), "bold")
        done = self._summary.done
        fields = self._summary.fields(times="x" if options.ascii_only else "×")
        room = options.max_width - len(title.plain) - _GAP
        bar = _SMALLEST_BAR + _GAP + len("100 %") + _GAP
        if room < bar + _width([min(fields, key=lambda field: field.rank)]):
            done = None  # the most important field comes before the bar
        if done is not None:
            room -= bar
        while fields and _width(fields) > room:
            fields.remove(max(fields, key=lambda field: field.rank))
        row = title  # one text and no table, because it is drawn often
        if done is not None:
            width = min(_LARGEST_BAR, _SMALLEST_BAR + room - _width(fields))
            filled, sign = int(width * done), "-" if options.ascii_only else "━"
            row.append(" " * _GAP).append(sign * filled, "green").append(sign * (width - filled), "bright_black")
            row.append(f"{' ' * _GAP}{100 * done:3.0f} %")
        for field in fields:
            row.append(" " * _GAP).append(f"{field.label} ", "dim").append(field.value, "cyan")
        yield row


def _width(fields: list[SummaryField]) -> int:
    return sum(len(field.label) + 1 + len(field.value) + _GAP for field in fields) - (_GAP if fields else 0)


def _in_a_row(title: str, fields: list[SummaryField]) -> str:
    return "  ".join([title, *(f"{field.label} {field.value}" for field in fields)])


def _replicas(count: int) -> str:
    return f"{compact(count)} replica{'s' if count != 1 else ''}"
