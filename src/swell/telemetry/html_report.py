"""One HTML file that shows runs: it opens anywhere, offline, and loads nothing."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from swell.errors import ConfigError
from swell.telemetry.log_reader import require_log
from swell.telemetry.page import page
from swell.telemetry.run_document import POINTS, RunDocument
from swell.telemetry.run_folder import RunFolder
from swell.version import __version__

_ALL_POINTS = 6000  # of all runs together


def write_report(runs: Sequence[str | os.PathLike[str]], out: str | os.PathLike[str]) -> Path:
    """Write the report of one or several runs, each given by its folder or its log; returns the file's path.

    A run without a step is listed as such. Raises ``ConfigError`` if a folder holds no run, or nothing that can be
    read.
    """
    if not runs:
        raise ConfigError(
            "no run was given; expected the folder of at least one. Give a folder, for example runs/digits."
        )
    out = Path(out)
    text = report_html(runs)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"the report cannot be written to {out} ({error.strerror or error}); expected a file in a folder you can "
            f"write to. Give another path with --out."
        ) from error
    return out


def report_html(runs: Sequence[str | os.PathLike[str]]) -> str:
    """The report as text."""
    points = max(600, min(POINTS, _ALL_POINTS // len(runs)))
    documents = []
    for number, (path, name) in enumerate(zip(runs, names_of(runs), strict=True)):
        require_log(path)
        folder = RunFolder(path)
        folder.poll()
        folder.reader.close()
        problem = folder.reader.problem
        if problem is not None and not folder.model.starts and not folder.model.num_steps:
            raise ConfigError(f"{problem} Give the folder of a run.")
        document = RunDocument(folder.model, name=name).whole(state=folder.state(), problem=problem, points=points)
        documents.append({"id": str(number), **document})
    title = documents[0]["name"] if len(documents) == 1 else f"{len(documents)} runs"
    written = time.strftime("%Y-%m-%d %H:%M")
    footer = f"Written by swell {__version__} on {written}. Charts by uPlot 1.6.32, © 2022 Leon Sorokin, MIT licence."
    return page(title=title, runs=documents, footer=footer)


def names_of(paths: Sequence[str | os.PathLike[str]]) -> list[str]:
    """A name for each run: the last part of its path, or more of it where two are the same.

    >>> names_of(["runs/a/x", "runs/b/x", "runs/c"])
    ['a/x', 'b/x', 'c']
    """
    folders = [Path(path).parent if Path(path).is_file() else Path(path) for path in paths]
    parts = [[part for part in folder.resolve().parts if part != os.sep] for folder in folders]
    lengths = [1] * len(parts)
    for _ in range(8):
        names = ["/".join(part[-length:]) for part, length in zip(parts, lengths, strict=True)]
        again = [names.count(name) > 1 for name in names]
        if not any(again):
            break
        lengths = [length + twice for length, twice in zip(lengths, again, strict=True)]
    return names
