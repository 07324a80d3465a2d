"""``swell chaos``: run a script, strike its workers, and report the cost."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swell.cli import run
from swell.cli.command import Command
from swell.cli.table import print_note
from swell.errors import ConfigError

if TYPE_CHECKING:
    from swell.telemetry.chaos_report import ChaosReport

_OWN_OPTIONS = ("mtbf", "kinds", "seed", "duration", "max_faults", "fail_at", "json")


def _options(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("--mtbf", type=float, metavar="S", help="strike a worker every S seconds on average")
    add(
        "--kinds",
        default="kill",
        metavar="K,K",
        help="faults to choose from at random: kill, term, stop (default: kill)",
    )
    add("--seed", type=int, default=0, metavar="N", help="seed of the strikes (0)")
    add("--duration", type=float, metavar="S", help="stop the run after S seconds (default: let it end)")
    add("--max-faults", type=int, metavar="N", help="strike at most N times")
    add(
        "--fail-at",
        action="append",
        default=[],
        metavar="F",
        help="a fault as RANK:STEP:POINT[:KIND]; may be repeated. Points: backward, reduce, commit, save, join, load. "
        "Kinds: kill, term, stop, exception, exit, oom",
    )
    add("--json", action="store_true", help="write the report as JSON")
    run.add_options(parser, max_restarts=1_000_000)


def _run(args: Namespace) -> int:
    from swell.runtime.faults import Faults, parse_fault
    from swell.supervisor.chaos import Chaos, ChaosOptions
    from swell.telemetry import LOG_NAME
    from swell.telemetry.chaos_report import report_chaos
    from swell.telemetry.log import read_events

    if args.mtbf is None and not args.fail_at:
        raise ConfigError("no fault was given; expected --mtbf SECONDS, --fail-at RANK:STEP:POINT or both. Give one.")
    if args.engine != "inplace":
        raise ConfigError(
            f"--engine is {args.engine}; expected inplace, because swell chaos strikes workers of this machine. "
            f"Leave it out."
        )
    plan = [parse_fault(text) for text in args.fail_at]
    strikes = None
    if args.mtbf is not None:
        kinds = tuple(kind.strip() for kind in args.kinds.split(","))
        limits = {"seed": args.seed, "duration_s": args.duration, "max_faults": args.max_faults}
        strikes = ChaosOptions(mtbf_s=args.mtbf, kinds=kinds, **limits)
    folder = _new_folder(run.folder_of(args) / "chaos")
    faults, log = Faults(plan, folder), folder / LOG_NAME
    options = {name: value for name, value in vars(args).items() if name not in ("run", "command", *_OWN_OPTIONS)}
    variables = {**faults.variables(), "SWELL_EVENTS": str(log.resolve())}
    chaos = None if strikes is None else Chaos(run.folder_of(args), strikes, write=lambda line: print_note(f"! {line}"))
    with chaos or nullcontext():
        status = run.start(options, variables=variables)
    if not log.exists():
        raise ConfigError(
            f"the run ended with status {status} and wrote no events; expected a script that trains with swell.Job. If "
            f"it does, it failed before its first step: see {run.folder_of(args) / 'logs'}."
        )
    report = report_chaos(read_events(log))
    counts = {} if chaos is None else dict(chaos.strikes)
    for record in faults.happened():
        name = f"{record['kind']} in {record['point']}"
        counts[name] = counts.get(name, 0) + 1
    missed = len(plan) - len(faults.happened())
    _report(args, report, counts, missed, status)
    expected = status == 0 or (status == 143 and chaos is not None and chaos.stopped)
    return 0 if report.whole and expected else 1


def _new_folder(parent: Path) -> Path:
    """A new folder in ``parent``: ``1``, ``2`` and so on."""
    number = 1
    while (parent / str(number)).exists():
        number += 1
    (parent / str(number)).mkdir(parents=True)
    return parent / str(number)


def _report(args: Namespace, report: ChaosReport, counts: dict[str, int], missed: int, status: int) -> None:
    if args.json:
        values: dict[str, Any] = {"status": status, "faults": counts, "faults_not_reached": missed, **asdict(report)}
        values |= {"median_pause_s": report.median_pause_s, "longest_pause_s": report.longest_pause_s}
        print(json.dumps(values, indent=2))
        return
    kinds = ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "none"
    print_note(
        f"faults   {sum(counts.values())}: {kinds}" + (f"; {missed} planned ones were not reached" * (missed > 0))
    )
    print_note(f"steps    {report.steps:,} committed; {report.redone:,} broke and were repeated, {_rewound(report)}")
    print_note(
        f"pause    median {report.median_pause_s:.2f} s, longest {report.longest_pause_s:.2f} s, in "
        f"{len(report.pauses_s)} changes of the world"
    )
    print_note(f"samples  {report.samples:,} checked: {report.lost:,} lost, {report.repeated:,} repeated")
    print_note(f"the run ended with status {status}")


def _rewound(report: ChaosReport) -> str:
    """How many steps were repeated, and from where."""
    if report.from_beginning == 0:
        return f"{report.rewound:,} were repeated from a checkpoint"
    if report.from_beginning == report.rewound:
        return f"{report.rewound:,} were repeated from the beginning, because there was no checkpoint"
    rest = report.rewound - report.from_beginning
    return f"{rest:,} were repeated from a checkpoint, {report.from_beginning:,} from the beginning"


COMMAND = Command(
    summary="strike the workers of a run and report the cost",
    description=(
        "Run a script as swell run does, and kill one of its workers, stop it or ask it to leave, at random times or "
        "at a chosen point of a chosen step. At the end report how many steps were repeated, how long the other "
        "workers waited, and whether every sample was committed once. Takes the options of swell run.\n"
        "The status is 0 if nothing was lost or repeated and the run reached its end (or --duration), otherwise 1, or "
        "2 if the request is invalid."
    ),
    example="swell chaos --mtbf 20 --kinds kill,term,stop --duration 300 --workers 1:4 train.py",
    options=_options,
    run=_run,
)
