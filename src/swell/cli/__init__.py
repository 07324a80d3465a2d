"""The ``swell`` command: one file for each subcommand, all of them in one dict."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import swell
from swell.cli import (
    agent,
    chaos,
    dashboard,
    demo,
    explain,
    launch,
    log,
    noise,
    plan,
    report,
    resize,
    resume,
    run,
    status,
    stop,
    tune,
    watch,
)
from swell.cli import list as list_runs
from swell.cli.command import Command
from swell.cli.parser import Parser
from swell.cli.standard_streams import open_closed_streams
from swell.core.harmless import harmless
from swell.errors import SwellError

__all__ = ["COMMANDS", "main"]

COMMANDS: dict[str, Command] = {
    "demo": demo.COMMAND,
    "plan": plan.COMMAND,
    "noise": noise.COMMAND,
    "tune": tune.COMMAND,
    "explain": explain.COMMAND,
    "watch": watch.COMMAND,
    "log": log.COMMAND,
    "list": list_runs.COMMAND,
    "report": report.COMMAND,
    "dashboard": dashboard.COMMAND,
    "run": run.COMMAND,
    "agent": agent.COMMAND,
    "launch": launch.COMMAND,
    "status": status.COMMAND,
    "resize": resize.COMMAND,
    "stop": stop.COMMAND,
    "resume": resume.COMMAND,
    "chaos": chaos.COMMAND,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 0 done, 2 an invalid request, 130 interrupted.

    >>> main(["plan", "--batch", "256", "--max-micro", "64", "--replicas", "2"])
    replicas  accumulation  micro-batch  samples a replica
           2             2           64                128
    0
    """
    open_closed_streams()
    try:
        status = _run(_parser(), argv)
        sys.stdout.flush()  # now, so that a closed pipe is handled below
        return status
    except BrokenPipeError:  # the reader of the pipe has stopped reading; that is no error
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except SystemExit as error:
        if isinstance(error.__context__, BrokenPipeError):  # the same, seen by rich, which calls it a failure
            return 0
        raise


def _run(parser: Parser, argv: Sequence[str] | None) -> int:
    args = parser.parse_args(argv)
    if "run" not in args:
        parser.print_help()
        return 0
    try:
        return args.run(args)
    except SwellError as error:
        print(f"swell {args.command}: {harmless(' '.join(str(error).split()))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"swell {args.command}: interrupted", file=sys.stderr)
        return 130


def _parser() -> Parser:
    parser = Parser(
        prog="swell",
        description="Train with whatever workers you have: the batch size changes, the learning rate follows.",
        epilog="Examples:\n" + "\n".join(f"  $ {command.example}" for command in COMMANDS.values()),
    )
    parser.add_argument(
        "--version", action="version", version=f"swell {swell.__version__}", help="show the version and exit"
    )
    commands = parser.add_subparsers(title="Commands", metavar="COMMAND", dest="command")
    for name, command in COMMANDS.items():
        sub = commands.add_parser(
            name, help=command.summary, description=command.description, epilog=f"Example:\n  $ {command.example}"
        )
        command.options(sub)
        sub.set_defaults(run=command.run)
    return parser
