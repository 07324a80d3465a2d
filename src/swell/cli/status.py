"""``swell status``: the state of a run."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, Any

from swell.cli.active_run import add_run_argument
from swell.cli.command import Command
from swell.cli.table import print_note, print_table

if TYPE_CHECKING:
    from swell.telemetry.run_summary import RunSummary


def _options(parser: ArgumentParser) -> None:
    add_run_argument(parser)
    parser.add_argument("--json", action="store_true", help="write the status as JSON")


def _run(args: Namespace) -> int:
    from swell.supervisor.control import ask

    status = ask(args.run_dir, "status", token_file=args.token_file)
    figures = _figures(args.run_dir)
    if args.json:
        status["training"] = None if figures is None else _as_json(figures)
        print(json.dumps(status, indent=2))
        return 0
    rows = [
        (
            "-" if worker["rank"] is None else str(worker["rank"]),
            *(str(worker[name]) for name in ("member", "machine", "pid", "slot", "phase", "steps", "silent_s")),
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
    for machine in status["machines"] if len(status["machines"]) > 1 else []:
        leaving = f", leaving ({machine['leaving']})" if machine["leaving"] else ""
        print_note(f"machine {machine['machine']}: {machine['name']}, {machine['slots']} slots{leaving}")
    newest = status.get("newest_state")
    if newest:
        mirrored = f", and {newest['mirrored']} in the mirror" if newest["mirrored"] else ""
        print_note(f"newest state: {newest['name']} on {', '.join(newest['machines'])}{mirrored}")
    for trouble in status.get("troubles", []):
        print_note(f"! {trouble}")
    if figures is not None:
        fields = [f"{field.label} {field.value}" for field in figures.fields(times="x")]
        print_note("  ".join([figures.title(), *fields]))
    print_table(
        ("rank", "worker", "machine", "pid", "slot", "phase", "steps", "silent s"), rows, title=str(args.run_dir)
    )
    return 0


def _figures(run_dir: str) -> RunSummary | None:
    """The latest figures of the run's log; None before the first step, or if the job has no folder."""
    from swell.telemetry.log_reader import find_log
    from swell.telemetry.log_tail import recent_events
    from swell.telemetry.run_summary import RunSummary

    events = recent_events(find_log(run_dir))
    if not events:
        return None
    summary = RunSummary()
    for event in events:
        summary.take(event)
    return summary


def _as_json(figures: RunSummary) -> dict[str, Any]:
    return {
        "epoch": figures.epoch,
        "epochs": figures.epochs,
        "samples": figures.samples,
        "total_samples": figures.total_samples,
        "batch": figures.batch,
        "replicas": figures.replicas,
        "loss": figures.loss,
        "progress": figures.progress,
        "samples_per_s": figures.samples_per_s,
        "left_s": figures.left_s,
    }


COMMAND = Command(
    summary="show the state of a run",
    description=(
        "Show how training goes (epoch, samples, batch, loss, time left) and the workers of a run: ranks, processes, "
        "and seconds since their last message."
    ),
    example="swell status runs/digits",
    options=_options,
    run=_run,
)
