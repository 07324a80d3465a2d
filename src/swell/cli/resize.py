"""``swell resize``: give a run another number of workers."""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace

from swell.cli.command import Command


def _options(parser: ArgumentParser) -> None:
    parser.add_argument("run_dir", metavar="RUN", help="the run's folder")
    parser.add_argument("workers", type=int, metavar="N", help="how many workers it shall have")
    parser.add_argument("--kill", action="store_true", help="take workers away without notice")
    parser.add_argument("--wait", type=float, metavar="S", help="wait up to S seconds until they train together")


def _run(args: Namespace) -> int:
    from swell.supervisor.control import ask

    ask(args.run_dir, "resize", workers=args.workers, kill=args.kill)
    deadline = time.monotonic() + (args.wait or 0.0)
    while args.wait is not None:
        seen = ask(args.run_dir, "status")
        if seen["state"] == "training" and len(seen["members"]) == args.workers == len(seen["workers"]):
            break
        if time.monotonic() > deadline:
            print(f"after {args.wait:g} s the run has {len(seen['members'])} of {args.workers} workers")
            return 1
        time.sleep(0.1)
    return 0


COMMAND = Command(
    summary="give a run another number of workers",
    description=(
        "Give a run another number of workers. New ones join when they have built their model; those too many leave "
        "after a step. The status is 0 when the request was taken up, 1 when --wait ran out."
    ),
    example="swell resize runs/digits 4 --wait 30",
    options=_options,
    run=_run,
)
