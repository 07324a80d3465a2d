"""``swell plan``: how one global batch is laid out on each number of replicas."""

from __future__ import annotations

import dataclasses
import json
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence

from swell.cli.command import Command
from swell.cli.table import print_table
from swell.core.types import Plan
from swell.errors import ConfigError, PlanError

_HEADINGS = ("replicas", "accumulation", "micro-batch", "samples a replica")


def _options(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--batch", type=int, required=True, metavar="B", help="samples of one optimizer step, over all replicas"
    )
    parser.add_argument(
        "--replicas", default="1-8", metavar="LIST", help="replicas to lay it out on: 4, 1-8 or 1,2,4-6 (default: 1-8)"
    )
    parser.add_argument(
        "--max-micro", type=int, metavar="N", help="most samples a replica can hold at once (its memory)"
    )
    parser.add_argument(
        "--min-micro", type=int, default=1, metavar="N", help="fewest samples worth a forward pass (default: 1)"
    )
    parser.add_argument("--json", action="store_true", help="write the layouts as JSON")


def _run(args: Namespace) -> int:
    from swell.core.planning import plan

    layouts: dict[int, Plan] = {}
    refused: dict[int, PlanError] = {}
    for replicas in parse_replicas(args.replicas):
        try:
            layouts[replicas] = plan(args.batch, replicas, min_micro=args.min_micro, max_micro=args.max_micro)
        except PlanError as error:
            refused[replicas] = error
    if args.json:
        records = [
            _record(replicas, layouts.get(replicas), refused.get(replicas)) for replicas in sorted({*layouts, *refused})
        ]
        print(json.dumps(records, indent=2))
        return 0
    rows = [_row(replicas, layouts.get(replicas)) for replicas in sorted({*layouts, *refused})]
    print_table(_HEADINGS, rows, title=f"A global batch of {args.batch}")
    for replicas, error in refused.items():
        print(f"{replicas} replicas: {error}")
    return 0


def parse_replicas(text: str) -> list[int]:
    """The numbers a list of numbers and ranges names, in order and each once.

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
                f"--replicas {text!r} is no list of replicas at {part!r}: write 4, 1-8 or 1,2,4-6, smallest first."
            )
        numbers.update(range(low, high + 1))
    return sorted(numbers)


def _row(replicas: int, layout: Plan | None) -> Sequence[str]:
    if layout is None:
        return (str(replicas), "-", "-", "")
    return (str(replicas), str(layout.accumulation), str(layout.micro_batch), _sizes(layout))


def _sizes(layout: Plan) -> str:
    sizes = layout.share_sizes()
    counted = {size: sizes.count(size) for size in sorted(set(sizes), reverse=True)}
    if len(counted) == 1:
        return str(sizes[0])
    return ", ".join(f"{count}×{size}" for size, count in counted.items())


def _record(replicas: int, layout: Plan | None, error: PlanError | None) -> dict[str, object]:
    if layout is None:
        return {"replicas": replicas, "feasible": False, "reason": str(error)}
    shares = [[dataclasses.asdict(micro) for micro in share] for share in layout.shares]
    return {
        "replicas": replicas,
        "feasible": True,
        "global_batch": layout.global_batch,
        "accumulation": layout.accumulation,
        "micro_batch": layout.micro_batch,
        "share_sizes": list(layout.share_sizes()),
        "shares": shares,
    }


COMMAND = Command(
    summary="show how a global batch is laid out on each number of replicas",
    description=(
        "Show how one global batch is laid out on each number of replicas: how often each accumulates, how many "
        "samples it holds at once and how many are its share. Every layout computes the same gradient."
    ),
    example="swell plan --batch 256 --max-micro 64 --replicas 1-8",
    options=_options,
    run=_run,
)
