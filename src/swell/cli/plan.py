"""``swell plan``: how a global batch is laid out on each number of replicas."""

from __future__ import annotations

import dataclasses
import json
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence

from swell.cli.command import Command
from swell.cli.table import print_note, print_table
from swell.core.types import Plan
from swell.errors import ConfigError, PlanError

_HEADINGS = ("replicas", "accumulation", "micro-batch", "samples a replica")


def _options(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("--batch", type=int, required=True, metavar="B", help="samples per optimizer step, over all replicas")
    add("--replicas", metavar="LIST", help="replicas to lay it out on: 4, 1-8 or 1,2,4-6 (default: 1-8)")
    add("--max-micro", type=int, metavar="N", help="largest number of samples that fit in a replica's memory at once")
    add("--min-micro", type=int, metavar="N", help="smallest number of samples for a forward pass")
    add("--constant-micro", action="store_true", help="same size for every micro-batch (compiled models, batch norm)")
    add("--capacity", metavar="SPEEDS", help="relative speeds of unequal replicas, instead of --replicas: 2,1,1")
    add("--json", action="store_true", help="write the layouts as JSON")


def _run(args: Namespace) -> int:
    from swell.core.planning import plan

    capacity = None if args.capacity is None else parse_speeds(args.capacity)
    if capacity is not None and args.replicas is not None:
        raise ConfigError(
            "--capacity and --replicas are both given; expected one, because both set the number of replicas."
        )
    worlds = [len(capacity)] if capacity is not None else parse_replicas(args.replicas or "1-8")
    outcomes: dict[int, Plan | PlanError] = {}
    for replicas in worlds:
        try:
            outcomes[replicas] = plan(
                args.batch,
                replicas,
                max_micro=args.max_micro,
                min_micro=args.min_micro,
                constant_micro=args.constant_micro,
                capacity=capacity,
            )
        except PlanError as error:
            outcomes[replicas] = error
    if args.json:
        print(json.dumps([_record(replicas, outcome) for replicas, outcome in outcomes.items()], indent=2))
    else:
        rows = [_row(replicas, outcome) for replicas, outcome in outcomes.items()]
        print_table(_HEADINGS, rows, title=f"A global batch of {args.batch}")
        for replicas, outcome in outcomes.items():
            if isinstance(outcome, PlanError):
                print_note(f"On {replicas}: {outcome}")
    return 0 if any(isinstance(outcome, Plan) for outcome in outcomes.values()) else 2


def parse_replicas(text: str) -> list[int]:
    """The numbers in a list of numbers and ranges, sorted and without duplicates.

    >>> parse_replicas("1-3,8,2")
    [1, 2, 3, 8]
    """
    numbers: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        try:
            low, high = int(first), int(last if dash else first)
        except ValueError:
            low = high = 0
        if not 1 <= low <= high <= 100_000:
            raise ConfigError(
                f"--replicas is {text!r}, with {part!r} in it; expected 4, 1-8 or 1,2,4-6, ranges smallest first."
            )
        numbers.update(range(low, high + 1))
    return sorted(numbers)


def parse_speeds(text: str) -> list[float]:
    """The numbers in a comma-separated list.

    >>> parse_speeds("2,1,1")
    [2.0, 1.0, 1.0]
    """
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"--capacity is {text!r}; expected one speed per replica, such as 2,1,1.") from None


def _row(replicas: int, outcome: Plan | PlanError) -> Sequence[str]:
    if isinstance(outcome, PlanError):
        return (str(replicas), "-", "-", "does not fit")
    return (str(replicas), str(outcome.accumulation), str(outcome.micro_batch), _sizes(outcome.share_sizes()))


def _sizes(sizes: Sequence[int]) -> str:
    """One number if all are equal, in rank order if they are few, else each size with its count."""
    if len(set(sizes)) == 1:
        return str(sizes[0])
    if len(sizes) <= 4:
        return ", ".join(map(str, sizes))
    return ", ".join(f"{sizes.count(size)}×{size}" for size in sorted(set(sizes), reverse=True))


def _record(replicas: int, outcome: Plan | PlanError) -> dict[str, object]:
    if isinstance(outcome, PlanError):
        return {"replicas": replicas, "feasible": False, "reason": str(outcome)}
    return {
        "replicas": replicas,
        "feasible": True,
        "global_batch": outcome.global_batch,
        "accumulation": outcome.accumulation,
        "micro_batch": outcome.micro_batch,
        "share_sizes": outcome.share_sizes(),
        "shares": [[dataclasses.asdict(micro) for micro in share] for share in outcome.shares],
    }


COMMAND = Command(
    summary="show how a global batch is laid out on each number of replicas",
    description=(
        "Show how a global batch is laid out on each number of replicas: accumulation, micro-batch and samples per "
        "replica. Every layout computes the same gradient. The status is 0 if at least one layout fits."
    ),
    example="swell plan --batch 256 --max-micro 64 --replicas 1-8",
    options=_options,
    run=_run,
)
