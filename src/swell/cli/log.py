"""``swell log``: the events of a run in sentences, or as JSON, to the end or as they come."""

from __future__ import annotations

import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from swell.cli.command import Command
from swell.core.harmless import harmless
from swell.errors import ConfigError

if TYPE_CHECKING:
    from swell.core.events import Event
    from swell.telemetry import LogReader

_POLL_S = 0.25


def _options(parser: ArgumentParser) -> None:
    parser.add_argument("run_dir", metavar="RUN", help="the run's folder, or its events.jsonl")
    parser.add_argument("-f", "--follow", action="store_true", help="wait for more until the run ends")
    parser.add_argument("--steps", action="store_true", help="show every step too")
    parser.add_argument("--last", type=int, metavar="N", help="start with the last N lines")
    parser.add_argument("--json", action="store_true", help="write every event as a line of JSON, steps in full")


def _run(args: Namespace) -> int:
    from swell.telemetry import LogReader
    from swell.telemetry.log_reader import require_log

    if args.last is not None and args.last < 0:
        raise ConfigError(f"--last is {args.last}; expected a number of lines, 0 or more.")
    log = require_log(args.run_dir)
    reader = LogReader(log)
    events = reader.poll()
    problem = reader.problem
    if problem is not None:
        if not events:
            raise ConfigError(f"{problem} Give the folder of a run.")
        print(f"swell log: {problem}", file=sys.stderr)
    lines = list(_lines(events, args))
    for line in lines if args.last is None else lines[len(lines) - min(args.last, len(lines)) :]:
        print(line)
    if not lines and not args.follow:
        print(f"swell log: {log} has no events yet", file=sys.stderr)
    if args.follow and not _ended(events):
        _follow(reader, args)
    return 0


def _follow(reader: LogReader, args: Namespace) -> None:
    while True:
        sys.stdout.flush()
        time.sleep(_POLL_S)
        events = reader.poll()
        for line in _lines(events, args):
            print(line)
        if _ended(events):
            return


def _ended(events: list[Event]) -> bool:
    from swell.core.events import RunEnded

    return bool(events) and isinstance(events[-1], RunEnded)


def _lines(events: Iterable[Event], args: Namespace) -> Iterator[str]:
    from swell.core.events import Stepped, to_json
    from swell.telemetry.run_summary import compact
    from swell.telemetry.sentences import sentence

    for event in events:
        if args.json:
            yield to_json(event)
            continue
        if isinstance(event, Stepped):
            if not args.steps:
                continue
            loss = "" if event.loss is None else f", loss {event.loss:.4g}"
            text = f"step {event.step:,}: {compact(event.samples)} samples, batch {event.global_batch:,}{loss}"
        else:
            text = sentence(event)
        if text is not None:
            yield f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(event.time))}  {harmless(text)}"


COMMAND = Command(
    summary="show what happened in a run, during it or afterwards",
    description=(
        "Show the events of a run in sentences: starts, changes of batch and workers, saves, epochs, warnings, ends. "
        "With --follow, wait for more and end when the run does. With --json, write every event as one line of JSON; "
        "the log itself shortens most steps to save space."
    ),
    example="swell log runs/digits --follow",
    options=_options,
    run=_run,
)
