"""``swell status``: what a supervised run is doing."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace

from swell.cli.command import Command
from swell.cli.table import print_note, print_table


def _options(parser: ArgumentParser) -> None:
    parser.add_argument("run_dir", metavar="RUN", help="the run's folder")
    parser.add_argument("--json", action="store_true", help="write it as JSON")


def _run(args: Namespace) -> int:
    from swell.supervisor.control import ask

    seen = ask(args.run_dir, "status")
    if args.json:
        print(json.dumps(seen, indent=2))
        return 0
    rows = [
        (
            "-" if worker["rank"] is None else str(worker["rank"]),
            *(str(worker[name]) for name in ("member", "pid", "slot", "phase", "steps", "silent_s")),
        )
        for worker in sorted(
            seen["workers"], key=lambda worker: (worker["rank"] is None, worker["rank"], worker["member"])
        )
    ]
    print_note(
        f"{seen['state']}: generation {seen['generation']} of {len(seen['members'])} workers, {seen['target']} wanted, "
        f"{seen['restarts']} of {seen['max_restarts']} restarts used, up for {seen['uptime_s']:.0f} s"
    )
    print_table(("rank", "worker", "pid", "slot", "phase", "steps", "silent s"), rows, title=str(args.run_dir))
    return 0


COMMAND = Command(
    summary="show what a run is doing",
    description="Show the workers of a run: ranks, processes, how far they have come and when they were last heard.",
    example="swell status runs/digits",
    options=_options,
    run=_run,
)
