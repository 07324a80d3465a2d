"""Runs inside a notebook: the page of the report, as the result of a cell."""

from __future__ import annotations

import html
import os
from pathlib import Path

from swell.telemetry.html_report import report_html, write_report
from swell.telemetry.run_folder import RunFolder
from swell.telemetry.watch_view import line


class RunPlot:
    """What ``job.plot()`` returns: a notebook shows the report, elsewhere it is a line of text.

    The runs are read when it is shown, so a cell that is run again shows what is new. The page is in a frame of its own
    that may run its own scripts and nothing else.
    """

    def __init__(self, *runs: str | os.PathLike[str], height: int = 1100) -> None:
        self.runs, self.height = [Path(run) for run in runs], height

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the page to a file."""
        return write_report(self.runs, path)

    def _repr_html_(self) -> str:
        page = html.escape(report_html(self.runs), quote=True)
        size = f'width="100%" height="{self.height}"'
        return f'<iframe {size} style="border:0" sandbox="allow-scripts" srcdoc="{page}"></iframe>'

    def __repr__(self) -> str:
        lines = []
        for path in self.runs:
            run = RunFolder(path)
            run.poll()
            run.reader.close()
            lines.append(f"{path}: {line(run.model, state=run.state())}")
        return "\n".join(lines)
