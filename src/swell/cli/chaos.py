"""``swell chaos``: run a script while its workers are struck down, and say what that cost."""

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
    from swell.telemetry.chaos_report import Endurance

_OWN = ("mtbf", "kinds", "seed", "duration", "max_faults", "fail_at", "json")


def _options(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("--mtbf", type=float, metavar="S", help="strike a worker every S seconds on average")
    add("--kinds", default="kill", metavar="K,K", help="by what, at random: kill, term, stop (default: kill)")
    add("--seed", type=int, default=0, metavar="N", help="of the strikes (0)")
    add("--duration", type=float, metavar="S", help="stop the run after S seconds (default: when it ends)")
    add("--max-faults", type=int, metavar="N", help="strike N times at most")
    add(
        "--fail-at",
        action="append",
        default=[],
        metavar="F",
        help="RANK:STEP:POINT[:KIND]; may be given again. Points: backward, reduce, commit, save, join, load. Kinds: "
        "kill, term, stop, exception, exit, oom",
    )
    add("--json", action="store_true", help="write the report as JSON")
    run.add_options(parser, max_restarts=1_000_000)


def _run(args: Namespace) -> int:
    from swell.runtime.faults import Faults, parse_fault
    from swell.supervisor.chaos import Chaos, ChaosOptions
    from swell.telemetry import LOG_NAME
    from swell.telemetry.chaos_report import endurance
    from swell.telemetry.log import read_events

    if args.mtbf is None and not args.fail_at:
        raise ConfigError("nothing to strike with: give --mtbf SECONDS, or --fail-at RANK:STEP:POINT, or both.")
    if args.engine != "inplace":
        raise ConfigError("swell chaos strikes workers of its own machine: leave --engine as it is.")
    planned = [parse_fault(text) for text in args.fail_at]
    strikes = None
    if args.mtbf is not None:
        kinds = tuple(kind.strip() for kind in args.kinds.split(","))
        limits = {"seed": args.seed, "duration_s": args.duration, "max_faults": args.max_faults}
        strikes = ChaosOptions(mtbf_s=args.mtbf, kinds=kinds, **limits)
    folder = _new_folder(run.folder_of(args) / "chaos")
    faults, log = Faults(planned, folder), folder / LOG_NAME
    options = {name: value for name, value in vars(args).items() if name not in ("run", "command", *_OWN)}
    variables = {**faults.variables(), "SWELL_EVENTS": str(log.resolve())}
    chaos = None if strikes is None else Chaos(run.folder_of(args), strikes, write=lambda line: print_note(f"! {line}"))
    with chaos or nullcontext():
        status = run.start(options, variables=variables)
    if not log.exists():
        raise ConfigError(
            f"the run ended with status {status} and told nothing of its steps: either it failed before the first one "
            f"(see {run.folder_of(args) / 'logs'}), or its script does not train with swell.Job."
        )
    found = endurance(read_events(log))
    struck = {} if chaos is None else dict(chaos.strikes)
    for record in faults.happened():
        name = f"{record['kind']} in {record['point']}"
        struck[name] = struck.get(name, 0) + 1
    missed = len(planned) - len(faults.happened())
    _report(args, found, struck, missed, status)
    expected = status == 0 or (status == 143 and chaos is not None and chaos.stopped)
    return 0 if found.whole and expected else 1


def _new_folder(above: Path) -> Path:
    """A folder of its own for each time; ``chaos/1``, ``chaos/2`` and so on."""
    number = 1
    while (above / str(number)).exists():
        number += 1
    (above / str(number)).mkdir(parents=True)
    return above / str(number)


def _report(args: Namespace, found: Endurance, struck: dict[str, int], missed: int, status: int) -> None:
    if args.json:
        shown: dict[str, Any] = {"status": status, "faults": struck, "faults_not_reached": missed, **asdict(found)}
        shown |= {"median_pause_s": found.median_pause_s, "longest_pause_s": found.longest_pause_s}
        print(json.dumps(shown, indent=2))
        return
    kinds = ", ".join(f"{count} {name}" for name, count in sorted(struck.items())) or "none"
    print_note(
        f"faults   {sum(struck.values())}: {kinds}" + (f"; {missed} planned ones were not reached" * (missed > 0))
    )
    print_note(f"steps    {found.steps:,} committed; {found.redone:,} broke and were done again, {_rewound(found)}")
    print_note(
        f"pause    median {found.median_pause_s:.2f} s, longest {found.longest_pause_s:.2f} s, in "
        f"{len(found.pauses_s)} changes of the world"
    )
    print_note(f"samples  {found.samples:,} checked: {found.lost:,} lost, {found.repeated:,} repeated")
    print_note(f"the run ended with status {status}")


def _rewound(found: Endurance) -> str:
    """How many steps were done again, and from where."""
    if found.from_beginning == 0:
        return f"{found.rewound:,} were done again from a checkpoint"
    if found.from_beginning == found.rewound:
        return f"{found.rewound:,} were done again from the beginning, for there was no checkpoint"
    saved = found.rewound - found.from_beginning
    return f"{saved:,} were done again from a checkpoint, {found.from_beginning:,} from the beginning"


COMMAND = Command(
    summary="strike the workers of a run, and say what that cost",
    description=(
        "Run a script as swell run does, and kill, stop or ask to go one of its workers every now and then, or at a "
        "chosen point of a chosen step. At the end say how many steps had to be done again, how long the others "
        "waited, and whether every sample was committed once. Takes the options of swell run.\n"
        "The status is 0 if nothing was lost or repeated and the run came to its end (or to --duration), otherwise 1, "
        "or 2 when the request cannot be met."
    ),
    example="swell chaos --mtbf 20 --kinds kill,term,stop --duration 300 --workers 1:4 train.py",
    options=_options,
    run=_run,
)
