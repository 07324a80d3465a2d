"""``swell chaos``: run a script, strike its workers and what is around them, and report the cost."""

from __future__ import annotations

import importlib
import json
import shutil
import subprocess
import sys
from argparse import SUPPRESS, ArgumentParser, Namespace
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swell.cli.command import Command
from swell.cli.run import add_run_options, given_folder, run_folder, start_run
from swell.cli.table import print_note
from swell.errors import ConfigError

if TYPE_CHECKING:
    from swell.supervisor.forked_worker import ForkedProcess
    from swell.telemetry.chaos_report import ChaosReport

_OWN_OPTIONS = ("mtbf", "kinds", "at_once", "seed", "duration", "max_faults", "stop_after", "fail_at", "json", "disk")
_OWN_OPTIONS += ("keep", "preload", "inside")
_CODE = "import json, sys; from swell.cli.run import start_run; sys.exit(start_run(json.loads(sys.argv[1])))"
_STEPS_REPEATED = 3  # the status of a run that lost work, but no samples


def _options(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("--mtbf", type=float, metavar="S", help="strike every S seconds on average")
    add(
        "--kinds",
        default="kill",
        metavar="K,K",
        help="faults to choose from at random (default: kill); one that is named twice comes twice as often. Of a "
        "worker: kill, term, stop, stuck, spin, clock, exception, oom; of the run: resize, storm, supervisor, stale, "
        "writer, cleaner, terminal; of what is around it: disk, readonly, delay, drop, partition",
    )
    add("--at-once", type=int, default=1, metavar="N", help="strike up to N times at each moment (default: 1)")
    add(
        "--disk",
        type=int,
        default=64,
        metavar="MB",
        help="disk, network: size of the run folder's own file system (64)",
    )
    add("--keep", metavar="DIR", help="disk, network: copy the run folder there at the end")
    add(
        "--preload",
        metavar="M,M",
        help="import these modules once and fork the workers from there, so that lost ones are replaced in a moment",
    )
    add("--inside", action="store_true", help=SUPPRESS)  # in namespaces already
    add("--seed", type=int, default=0, metavar="N", help="seed of the strikes (default: 0)")
    add("--duration", type=float, metavar="S", help="stop the run after S seconds (default: let it end)")
    add("--max-faults", type=int, metavar="N", help="strike at most N times")
    add("--stop-after", type=int, metavar="N", help="stop the run after N strikes")
    add(
        "--fail-at",
        action="append",
        default=[],
        metavar="F",
        help="a fault as RANK:STEP:POINT[:KIND]; may be repeated. Points: backward, reduce, commit, save, join, load. "
        "Kinds: kill, term, stop, exception, exit, oom",
    )
    add("--json", action="store_true", help="write the report as JSON")
    add_run_options(parser, max_restarts=1_000_000)


def _run(args: Namespace) -> int:
    from swell.runtime.faults import Faults, parse_fault
    from swell.supervisor.chaos import RELAUNCHED, Chaos, ChaosOptions
    from swell.supervisor.relaunch import Tap, run_and_relaunch
    from swell.supervisor.surroundings import SURROUNDINGS, enter_namespaces, refuse_impossible
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
        limits |= {"at_once": args.at_once, "stop_after": args.stop_after}
        strikes = ChaosOptions(mtbf_s=args.mtbf, kinds=kinds, **limits)
    around = [] if strikes is None else [kind for kind in strikes.kinds if kind in SURROUNDINGS]
    if around and not args.inside:
        return enter_namespaces(["chaos", "--inside", *sys.argv[2:]], run_dir=run_folder(args), disk_mb=args.disk)
    refuse_impossible(around)
    folder = _new_folder(_beside(run_folder(args)) if around else run_folder(args) / "chaos")
    faults, log = Faults(plan, folder), folder / LOG_NAME
    options = {name: value for name, value in vars(args).items() if name not in ("run", "command", *_OWN_OPTIONS)}
    variables = {**faults.variables(), "SWELL_EVENTS": str(log.resolve()), "SWELL_STRIKES": "1"}
    chaos, tap = None, Tap()
    if strikes is not None:
        parts: dict[str, Any] = {"start_again": lambda: _start_again(args), "tap": tap}
        chaos = Chaos(run_folder(args), strikes, write=lambda line: print_note(f"! {line}"), **parts)
    kinds = () if strikes is None else strikes.kinds
    with chaos or nullcontext():
        if args.preload is not None or any(kind in RELAUNCHED for kind in kinds):
            struck = (lambda pid: None) if chaos is None else chaos.struck
            start = _starter(options, variables, preload=args.preload)
            may_stop = lambda: chaos is None or chaos.stopping  # noqa: E731
            status = run_and_relaunch(start, struck=struck, may_stop=may_stop, tap=tap)
        else:
            status = start_run(options, variables=variables)
    if args.keep is not None:
        shutil.copytree(run_folder(args), args.keep, ignore=shutil.ignore_patterns("control"), dirs_exist_ok=True)
    let_in, left_behind = (0, 0) if chaos is None else (chaos.let_in, chaos.left_behind)
    if not log.exists():
        raise ConfigError(
            f"the run ended with status {status} and wrote no events; expected a script that trains with swell.Job. If "
            f"it does, it failed before its first step: see {run_folder(args) / 'logs'}."
        )
    happened = faults.happened()
    times = [*(record["time"] for record in happened), *faults.struck_at()]
    times += [] if chaos is None else chaos.struck_at
    report = report_chaos(read_events(log), times)
    counts = {} if chaos is None else dict(chaos.strikes)
    for record in happened:
        name = f"{record['kind']} in {record['point']}"
        counts[name] = counts.get(name, 0) + 1
    missed = len(plan) - len(happened)
    facts = {"faults_not_reached": missed, "left_behind": left_behind, "let_in": let_in, "status": status}
    _report(args, report, counts, facts)
    expected = status == 0 or (status == 143 and chaos is not None and chaos.stopping)
    if not (report.whole and expected) or left_behind or let_in or report.unexplained:
        return 1
    return 0 if report.work_kept else _STEPS_REPEATED


def _starter(
    options: dict[str, Any], variables: dict[str, str], *, preload: str | None
) -> Callable[[int], subprocess.Popen[bytes] | ForkedProcess]:
    """What starts a supervisor with a given standard output; with ``preload``, by a fork of this process."""
    from swell.supervisor.relaunch import environment_with

    environ = environment_with(variables)
    if preload is None:
        line = [sys.executable, "-c", _CODE, json.dumps(options)]
        return lambda output: subprocess.Popen(line, env=environ, stdout=output)
    from swell.supervisor.forked_worker import ForkedWorker, fork

    for name in preload.split(","):
        importlib.import_module(name)
    return lambda output: fork(lambda: start_run(options, worker=ForkedWorker), environ, output=output)


def _start_again(args: Namespace) -> subprocess.Popen[bytes]:
    """Start the script by itself, as a user would by mistake."""
    from swell.supervisor.relaunch import environment_with

    line = [sys.executable, *(["-m"] if args.module else []), args.script, *args.arguments]
    nowhere = subprocess.DEVNULL
    return subprocess.Popen(
        line, env=environment_with(given_folder(args), ours=False), stdin=nowhere, stdout=nowhere, stderr=nowhere
    )


def _beside(run_dir: Path) -> Path:
    """Where the log of strikes is that must not be struck itself."""
    return run_dir.with_name(f"{run_dir.name}-chaos")


def _new_folder(parent: Path) -> Path:
    """A new folder in ``parent``: ``1``, ``2`` and so on."""
    number = 1
    while (parent / str(number)).exists():
        number += 1
    (parent / str(number)).mkdir(parents=True)
    return parent / str(number)


def _report(args: Namespace, report: ChaosReport, counts: dict[str, int], facts: dict[str, int]) -> None:
    missed, left_behind, status = facts["faults_not_reached"], facts["left_behind"], facts["status"]
    if args.json:
        values: dict[str, Any] = {**facts, "faults": counts, **asdict(report)}
        values |= {"median_pause_s": report.median_pause_s, "longest_pause_s": report.longest_pause_s}
        print(json.dumps(values, indent=2))
        return
    kinds = ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "none"
    print_note(
        f"faults   {sum(counts.values())}: {kinds}" + (f"; {missed} planned ones were not reached" * (missed > 0))
    )
    print_note(f"steps    {report.steps:,} committed; {report.redone:,} broke and were repeated, {_rewound(report)}")
    if report.rewinds:
        places = ", ".join(f"from {before:,} to {after:,}" for before, after in report.rewinds[:8])
        print_note(f"work     went back {places}{', ...' if len(report.rewinds) > 8 else ''}")
    print_note(
        f"pause    median {report.median_pause_s:.2f} s, longest {report.longest_pause_s:.2f} s, in "
        f"{len(report.pauses_s)} changes of the world"
    )
    print_note(f"samples  {report.samples:,} checked: {report.lost:,} lost, {report.repeated:,} repeated")
    if report.unexplained:
        print_note(
            f"workers  all failed without being struck, {_times(report.unexplained)}, and the run went back: the "
            f"script raised an error. See {run_folder(args) / 'logs'}"
        )
    if left_behind:
        print_note(f"workers  {left_behind} were left behind when the supervisor was killed")
    if facts["let_in"]:
        print_note(f"writers  a second one was let into the folder, {_times(facts['let_in'])}")
    print_note(f"the run ended with status {status}")


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


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
        "Run a script as swell run does, and kill one of its workers, stop it, let it get stuck or ask it to leave, at "
        "random times or at a chosen point of a chosen step; or strike the supervisor, the folders, the terminal, the "
        "disk or the network. At the "
        "end report how many steps were repeated and from where, how long the other workers waited, and whether every "
        "sample was committed once. Takes the options of swell run.\n"
        "The status is 0 if nothing was lost or repeated and the run reached its end (or --duration), 3 if the same "
        "holds, but committed steps had to be done again from a checkpoint because all workers were struck, 1 if they "
        "had to although not all were, or if anything was lost, or 2 if the request is invalid. Disk and network are "
        "struck in namespaces of the run, if the system allows them: its folder is a small file system in memory then, "
        "gone afterwards."
    ),
    example="swell chaos --mtbf 20 --kinds kill,term,stop --duration 300 --workers 1:4 train.py",
    options=_options,
    run=_run,
)
