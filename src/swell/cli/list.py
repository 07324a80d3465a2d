"""``swell list``: all runs below a folder, with state, progress and result."""

from __future__ import annotations

import json
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from swell.cli.command import Command
from swell.cli.table import print_note, print_table


def _options(parser: ArgumentParser) -> None:
    parser.add_argument("folder", nargs="?", default="runs", metavar="DIR", help="where to look (default: runs)")
    parser.add_argument("--json", action="store_true", help="write the list as JSON")


def _run(args: Namespace) -> int:
    from swell.telemetry.run_folder import find_runs
    from swell.telemetry.run_listing import listing

    rows = [listing(path, below=Path(args.folder)) for path in find_runs(args.folder)]
    if args.json:
        print(json.dumps(rows, indent=2))
    elif not rows:
        print_note(f"There is no run in {args.folder}.")
    else:
        print_table(
            ("run", "state", "done", "steps", "samples", "workers", "result", "last event"),
            [_cells(row) for row in rows],
            title=args.folder,
        )
    return 0


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    from swell.telemetry.run_summary import compact

    result = ", ".join(f"{name} {value:.3g}" for name, value in row["metrics"].items() if value is not None)
    if not result and row["loss"] is not None:
        result = f"loss {row['loss']:.3g}"
    return (
        row["name"],
        row["state"],
        "" if row["done"] is None else f"{row['done']:.0%}",
        f"{row['steps']:,}",
        compact(row["samples"]),
        str(row["workers"] or ""),
        result,
        "" if row["last_time"] is None else _ago(time.time() - row["last_time"]),
    )


def _ago(seconds: float) -> str:
    """How long ago, in the largest unit of which there are two.

    >>> [_ago(seconds) for seconds in (-1, 119, 120, 7200, 260_000)]
    ['0 s ago', '119 s ago', '2 min ago', '2 h ago', '3 days ago']
    """
    for unit, size in (("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{max(0.0, seconds):.0f} s ago"


COMMAND = Command(
    summary="list the runs below a folder with state, progress and result",
    description=(
        "List all runs in a folder and below it: whether each is running, finished, stopped or silent (no event for "
        "two minutes), how far it is, and its last metrics or its loss. The run with the newest event comes first."
    ),
    example="swell list runs",
    options=_options,
    run=_run,
)
