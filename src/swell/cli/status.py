"""``swell status``: the state of a run."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace

from swell.cli.command import Command
from swell.cli.table import print_note, print_table


def _options(parser: ArgumentParser) -> None:
    parser.add_argument("run_dir", metavar="RUN", help="the run's folder")
    parser.add_argument("--json", action="store_true", help="write the status as JSON")


def _run(args: Namespace) -> int:
    from swell.supervisor.control import ask

    status = ask(args.run_dir, "status")
    if args.json:
        print(json.dumps(status, indent=2))
        return 0
    rows = [
        (
            "-" if worker["rank"] is None else str(worker["rank"]),
            *(str(worker[name]) for name in ("member", "pid", "slot", "phase", "steps", "silent_s")),
        )
        for worker in sorted(
            status["workers"], key=lambda worker: (worker["rank"] is None, worker["rank"], worker["member"])
        )
    ]
    print_note(
        f"{status['state']}: generation {status['generation']} of {len(status['members'])} workers, "
        f"{status['target']} wanted, {status['restarts']} of {status['max_restarts']} restarts used, up for "
        f"{status['uptime_s']:.0f} s"
    )
    print_table(("rank", "worker", "pid", "slot", "phase", "steps", "silent s"), rows, title=str(args.run_dir))
    return 0


COMMAND = Command(
    summary="show the state of a run",
    description="Show the workers of a run: ranks, processes, steps, and seconds since their last message.",
    example="swell status runs/digits",
    options=_options,
    run=_run,
)
