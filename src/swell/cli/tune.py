"""``swell tune``: how fast a script runs at other batch sizes, and what that speed is worth."""

from __future__ import annotations

import json
from argparse import REMAINDER, ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from swell.cli.command import Command
from swell.cli.table import print_note, print_table
from swell.errors import ConfigError

if TYPE_CHECKING:
    from swell.cli.batch_table import BatchTable


_TIMES_BASE = 32  # the largest batch, in base batches, if neither the script nor the user names one


def _options(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("--base", type=int, metavar="B", help="the batch the learning rate was tuned for (default: the script's)")
    add(
        "--max",
        type=int,
        metavar="B",
        help="the largest global batch to consider (default: the script's, or 32 times the base)",
    )
    add("--micro", metavar="LOW-HIGH", help="micro-batches to consider (default: up to the base batch)")
    add(
        "--seconds",
        type=float,
        default=60.0,
        metavar="S",
        help="measure for S seconds, or less if all is sure earlier, but every layout once (default: 60)",
    )
    add("--after", type=int, default=0, metavar="N", help="train N steps before measuring (default: 0)")
    add("--workers", type=int, default=1, metavar="N", help="processes to measure with (default: 1)")
    add(
        "--branch",
        action="store_true",
        help="measure what steps are worth, and the critical batch size, by branches from one state",
    )
    add("--steps", type=int, default=96, metavar="N", help="with --branch: base steps of a branch (default: 96)")
    add(
        "--checkpoint",
        metavar="PATH",
        help="with --branch: a run folder or a checkpoint to branch from (default: the newest of the script's own "
        "folder, if it has one)",
    )
    add("--plot", metavar="PNG", help="draw throughput and goodput against batch size")
    add("--json", action="store_true", help="write the table as JSON")
    add("script", metavar="SCRIPT", help="a script that trains with swell.Job")
    add("arguments", nargs=REMAINDER, metavar="...", help="its own arguments")


def _run(args: Namespace) -> int:
    from swell.cli.batch_table import batch_table, layouts_to_try, with_base_between
    from swell.cli.rehearse import rehearse
    from swell.core.goodput import candidates

    if args.seconds < 0 or args.after < 0:
        raise ConfigError(f"--seconds is {args.seconds:g} and --after is {args.after}; expected 0 or more for both.")
    if args.branch:
        return _run_branches(args)
    base, most = _script_bounds(args) if args.base is None or args.max is None else (args.base, args.max)
    low, high = _bounds(args.micro, base)
    bounds = {"replicas": args.workers, "base": base, "max_batch": most}
    layouts = candidates(**bounds, micro=(low, high))
    trial = layouts_to_try(list(zip(layouts.global_batch.tolist(), layouts.micro_batch.tolist(), strict=True)))
    findings = rehearse(
        args.script,
        args.arguments,
        workers=args.workers,
        seconds=args.seconds,
        after=args.after,
        layouts=with_base_between(trial, base),
    )
    if findings["max_micro"] is not None and findings["profile"]:
        largest = max(layout["micro_batch"] for layout in findings["profile"])
        if not args.json:
            print_note(f"Memory ran out at micro-batches of more than {largest} samples: they are left out.")
        layouts = candidates(**bounds, micro=(min(low, largest), min(high, largest)))
    table = batch_table(layouts, findings, replicas=args.workers, base=base)
    rows = [row.to_dict() for row in table.rows]
    if args.plot:
        from swell.telemetry.noise_plot import draw_goodput

        draw_goodput([row.to_dict() for row in table.fastest], Path(args.plot), best=table.best.batch)
    if args.json:
        print(json.dumps(rows, indent=2))
        return 0
    _show(table)
    if findings["ended"] == "script" and not all(row.sure for row in table.fastest if row.measured):
        print_note("The script ended before the time was over: give it more epochs to measure longer.")
    if args.micro is None:
        print_note(
            f"Only micro-batches of at most {high} samples, the base batch, were considered; swell.Goodput tries "
            f"larger ones. Give --micro {most} to include them."
        )
    return 0


def _run_branches(args: Namespace) -> int:
    from swell.cli.branch_table import branch_table, show_branches
    from swell.cli.rehearse import rehearse

    if args.base is not None or args.micro is not None or args.plot is not None:
        raise ConfigError(
            "--base, --micro or --plot is given with --branch; expected none of them: branches take the script's own "
            "base batch and micro-batches. Leave them out."
        )
    if args.steps < 8:
        raise ConfigError(f"--steps is {args.steps}; expected 8 or more. Leave it out for 96.")
    findings = rehearse(
        args.script,
        args.arguments,
        workers=args.workers,
        seconds=args.seconds,
        after=args.after,
        branch=True,
        steps=args.steps,
        max=args.max,
        checkpoint=args.checkpoint,
    )
    if findings["refusal"] is not None:
        raise ConfigError(findings["refusal"])
    table = branch_table(findings)
    if args.json:
        print(json.dumps(table, indent=2))
    else:
        show_branches(table)
    return 0


def _script_bounds(args: Namespace) -> tuple[int, int]:
    """The base batch and the largest one; what is not given comes from the script, which is started once for that."""
    from swell.cli.rehearse import rehearse

    settings = rehearse(args.script, args.arguments, workers=args.workers, ask=True)
    base, most = settings["base"] if args.base is None else args.base, args.max
    if most is None:
        most = settings["max"] or _TIMES_BASE * base
        most = max(base, most if settings["epoch_size"] is None else min(most, settings["epoch_size"]))
    if not args.json:
        print_note(f"Batches from {base} to {most} samples.")
    return base, most


def _bounds(text: str | None, base: int) -> tuple[int, int]:
    if text is None:
        return 1, base
    low, dash, high = text.partition("-")
    try:
        bounds = (int(low), int(high)) if dash else (1, int(low))
    except ValueError:
        bounds = (0, 0)
    if not 1 <= bounds[0] <= bounds[1]:
        raise ConfigError(f"--micro is {text!r}; expected micro-batches such as 64 or 16-256, smallest first.")
    return bounds


def _show(table: BatchTable) -> None:
    from swell.core.layout_times import SURE

    best, first = table.best, table.reference
    lines = [
        (
            f"{row.batch}{' *' if row is best else ''}",
            f"{row.micro}",
            f"{row.accumulation}",
            f"{row.samples_s:.0f}{'' if row.sure else ' ~'}",
            "?" if row.error is None else f"{row.error:.1%}",
            "?" if row.efficiency is None else f"{row.efficiency:.2f}",
            row.time_to_target(first).words(),
            "?" if row.samples_to_target is None else row.samples_to_target.words(),
        )
        for row in table.fastest
    ]
    headings = (
        "batch",
        "micro-batch",
        "accumulation",
        "samples/s",
        "error",
        "efficiency",
        "time to target",
        "samples to target",
    )
    print_table(headings, lines, title=f"Relative to a batch of {first.batch}")
    print_note(
        f"* is the fastest way to the target of those surely faster than the base batch (by two standard errors), or "
        f"the base batch if there is none; ~ is not sure: predicted from other layouts, or "
        f"measured with a standard error above {SURE:.0%} (?: too few measurements). Bounds are by the 95 % interval "
        "of the gradient noise and two standard errors of the times."
    )
    if best is first:
        print_note(f"No batch was surely faster to the target than {first.batch}.")
    if not first.sure:
        print_note("The time of the base batch is not sure: measure longer (--seconds), or on an idle machine.")
    if not table.noise_sure:
        print_note("The gradient noise is not sure yet: measure longer (--seconds) or later in training (--after).")


COMMAND = Command(
    summary="measure a script at other batch sizes",
    description=(
        "Run a training script for a minute or less at batches from --base to --max without changing its weights, and "
        "print for each layout samples per second, statistical efficiency and time to the same result. With --branch "
        "the script trains from a checkpoint, in memory only, at the base batch and at larger ones, and the table says "
        "what a larger step is worth."
    ),
    example="swell tune --base 128 --max 4096 --micro 64-512 train.py",
    options=_options,
    run=_run,
)
