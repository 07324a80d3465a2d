"""The line under ``swell run`` that shows how the run is doing, and its figures for a cluster's monitoring."""

from __future__ import annotations

import contextlib
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from swell.cli.standard_streams import write_out
from swell.errors import ConfigError

Write = Callable[[str], None]

_FRAME_S = 0.5
_CLEAR = "\r\x1b[K"


@contextmanager
def watched(
    folder: Path, write: Write, *, metrics_port: int | None = None, metrics_host: str = "127.0.0.1"
) -> Iterator[Write]:
    """Show the run in ``folder`` while the block runs; gives the function that writes a line above it.

    Where the standard output is no terminal, lines are written as they are. With a ``metrics_port``, the figures are
    served there too (``swell.telemetry.prometheus``).
    """
    with ExitStack() as stack:
        if metrics_port is not None:
            from swell.telemetry.prometheus import MetricsServer

            if not 0 <= metrics_port <= 65535:
                raise ConfigError(f"--metrics-port is {metrics_port}; expected 0 to 65535. Give 0 for any free one.")
            server = stack.enter_context(MetricsServer(folder, port=metrics_port, host=metrics_host))
            write(f"[swell] metrics: http://{metrics_host}:{server.port}/metrics")
        if not sys.stdout.isatty():
            yield write
            return
        line = stack.enter_context(RunLine(folder, write))
        yield line.write


class RunLine:
    """The last line of the terminal, drawn again after every line that is written above it."""

    def __init__(self, folder: Path, write: Write, *, draw: Callable[[str], None] | None = None) -> None:
        from swell.telemetry.run_folder import RunFolder

        self._run, self._write = RunFolder(folder), write
        self._draw = write_out if draw is None else draw
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._text = ""
        self._thread = threading.Thread(target=self._tick, daemon=True, name="swell-line")

    def __enter__(self) -> RunLine:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        clear = threading.Thread(target=self._clear, daemon=True, name="swell-line-end")
        clear.start()
        clear.join(1.0)  # the terminal may take nothing, because nobody reads it

    def _clear(self) -> None:
        self._thread.join()
        with self._lock, contextlib.suppress(OSError, ValueError):
            self._draw(_CLEAR)
        self._run.reader.close()

    def write(self, line: str) -> None:
        """Write a line above the last one."""
        with self._lock:
            self._write(f"{_CLEAR}{line}" if self._text else line)
            if self._text:
                self._draw(self._text)

    def _tick(self) -> None:
        while not self._ended.wait(_FRAME_S):
            try:
                self.refresh()
            except (OSError, ValueError):  # the terminal is gone; the run is not
                return

    def refresh(self) -> None:
        """Read what is new and draw the line again."""
        from swell.telemetry.watch_view import line

        if not self._run.poll() or self._run.model.latest is None:
            return
        width = shutil.get_terminal_size().columns
        text = line(self._run.model, state="running", short=width < 110)[: width - 1]
        with self._lock:
            if not self._ended.is_set():
                self._text = text
                self._draw(f"{_CLEAR}{text}")
