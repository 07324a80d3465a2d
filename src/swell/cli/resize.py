"""``swell resize``: change the number of workers of a run."""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace

from swell.cli.active_run import add_run_argument
from swell.cli.command import Command


def _options(parser: ArgumentParser) -> None:
    add_run_argument(parser)
    parser.add_argument("workers", type=int, metavar="N", help="the new number of workers")
    parser.add_argument("--kill", action="store_true", help="remove workers without notice")
    parser.add_argument("--wait", type=float, metavar="S", help="wait at most S seconds until they train together")


def _run(args: Namespace) -> int:
    from swell.supervisor.control import ask

    reply = ask(args.run_dir, "resize", token_file=args.token_file, workers=args.workers, kill=args.kill)
    if reply["target"] < args.workers:
        print(f"there is room for {reply['target']} workers now; the run grows when machines join")
    deadline = time.monotonic() + (args.wait or 0.0)
    while args.wait is not None:
        status = ask(args.run_dir, "status", token_file=args.token_file)
        if status["state"] == "training" and len(status["members"]) == args.workers == len(status["workers"]):
            break
        if time.monotonic() > deadline:
            print(f"after {args.wait:g} s the run has {len(status['members'])} of {args.workers} workers")
            return 1
        time.sleep(0.1)
    return 0


COMMAND = Command(
    summary="change the number of workers of a run",
    description=(
        "Change the number of workers of a run. New workers join when they have built their model; surplus ones leave "
        "after a step. The status is 0 if the request was accepted, 1 if --wait ran out."
    ),
    example="swell resize runs/digits 4 --wait 30",
    options=_options,
    run=_run,
)
