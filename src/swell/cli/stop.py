"""``swell stop``: make a run save and end."""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace

from swell.cli.active_run import add_run_argument
from swell.cli.command import Command
from swell.errors import ConfigError


def _options(parser: ArgumentParser) -> None:
    add_run_argument(parser)
    parser.add_argument(
        "--grace", type=float, metavar="S", help="seconds until workers are killed (default: the run's)"
    )
    parser.add_argument("--wait", type=float, metavar="S", help="wait at most S seconds until it has ended")


def _run(args: Namespace) -> int:
    from swell.supervisor.control import ask

    ask(args.run_dir, "stop", token_file=args.token_file, grace_s=args.grace)
    deadline = time.monotonic() + (args.wait or 0.0)
    while args.wait is not None:
        try:
            ask(args.run_dir, "status", token_file=args.token_file)
        except ConfigError:
            break  # no supervisor answers any more
        if time.monotonic() > deadline:
            print(f"after {args.wait:g} s the run has not ended")
            return 1
        time.sleep(0.1)
    return 0


COMMAND = Command(
    summary="make a run save and end",
    description=(
        "Ask every worker of a run to stop after the same step, save and exit; swell resume brings the run back. The "
        "status is 0 if the request was accepted, 1 if --wait ran out."
    ),
    example="swell stop runs/digits --wait 60",
    options=_options,
    run=_run,
)
