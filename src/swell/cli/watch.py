"""``swell watch``: a run on the terminal, live."""

from __future__ import annotations

import json
import sys
import time
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from swell.cli.command import Command
from swell.errors import ConfigError

if TYPE_CHECKING:
    from swell.telemetry.run_folder import RunFolder

_FRAME_S = 0.25


def _options(parser: ArgumentParser) -> None:
    parser.add_argument("run_dir", metavar="RUN", help="the run's folder, or its events.jsonl")
    parser.add_argument("--once", action="store_true", help="show it once and end")
    parser.add_argument("--every", type=float, metavar="S", help="seconds between lines in a pipe (default: 5)")
    parser.add_argument("--json", action="store_true", help="write the figures as a line of JSON each time")


def _run(args: Namespace) -> int:
    from swell.telemetry.html_report import names_of
    from swell.telemetry.log_reader import require_log
    from swell.telemetry.run_folder import RunFolder

    if args.every is not None and not args.every > 0:
        raise ConfigError(f"--every is {args.every:g}; expected seconds above 0.")
    log = require_log(args.run_dir)
    run, (name,) = RunFolder(log.parent if log.name == "events.jsonl" else log), names_of([args.run_dir])
    run.poll()
    if run.reader.problem is not None:
        if not run.model.starts and not run.model.num_steps:
            raise ConfigError(f"{run.reader.problem} Give the folder of a run.")
        print(f"swell watch: {run.reader.problem}", file=sys.stderr)
    if args.json or not sys.stdout.isatty():
        _in_lines(run, name, args)
    else:
        _live(run, name, args)
    return 0


def _in_lines(run: RunFolder, name: str, args: Namespace) -> None:
    from swell.telemetry.watch_view import figures, line

    before = None
    while True:
        state = run.state()
        text = json.dumps(figures(run.model, name=name, state=state)) if args.json else line(run.model, state=state)
        if text != before:
            print(text, flush=True)
        before = text
        if args.once or state not in ("running", "empty"):
            return
        time.sleep(args.every or 5.0)
        run.poll()


def _live(run: RunFolder, name: str, args: Namespace) -> None:
    from rich.console import Console, RenderableType
    from rich.live import Live

    from swell.telemetry.watch_view import picture

    console = Console(highlight=False)

    def now(state: str) -> RenderableType:
        notes = max(0, min(12, console.height - 11))
        return picture(run.model, name=name, state=state, notes=notes, width=console.width)

    state = run.state()
    if args.once or state not in ("running", "empty"):
        console.print(now(state))
        return
    with Live(now(state), console=console, auto_refresh=False) as live:
        while state in ("running", "empty"):
            time.sleep(_FRAME_S)
            run.poll()
            state = run.state()
            live.update(now(state), refresh=True)


COMMAND = Command(
    summary="watch a run on the terminal",
    description=(
        "Show a run while it trains: progress and time left, workers, batch, learning rate, gain, noise, speed, where "
        "the time goes, and what happened last. It ends when the run does. In a pipe or a file it writes one plain "
        "line every few seconds, and only if something is new. Watching costs the run nothing: it only reads the log."
    ),
    example="swell watch runs/digits",
    options=_options,
    run=_run,
)
