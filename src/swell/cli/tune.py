"""``swell tune``: how fast a script runs at other batch sizes, and how much of that is worth having."""

from __future__ import annotations

import json
from argparse import REMAINDER, ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from swell.cli.command import Command
from swell.cli.table import print_note, print_table
from swell.errors import ConfigError


def _options(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("--base", type=int, required=True, metavar="B", help="the batch the learning rate was tuned for")
    add("--max", type=int, required=True, metavar="B", help="the largest global batch to consider")
    add("--micro", metavar="LOW-HIGH", help="micro-batches to consider (default: up to the base batch)")
    add("--seconds", type=float, default=60.0, metavar="S", help="measure no longer than this (60)")
    add("--after", type=int, default=0, metavar="N", help="train N steps before measuring (default: 0)")
    add("--workers", type=int, default=1, metavar="N", help="processes to measure with (1)")
    add("--plot", metavar="PNG", help="draw throughput and goodput against batch size")
    add("--json", action="store_true", help="write the table as JSON")
    add("script", metavar="SCRIPT", help="a script that trains with swell.Job")
    add("arguments", nargs=REMAINDER, metavar="...", help="its own arguments")


def _run(args: Namespace) -> int:
    from swell.cli.rehearse import rehearse
    from swell.core.goodput import candidates

    low, high = _bounds(args.micro, args.base)
    found = candidates(replicas=args.workers, base=args.base, max_batch=args.max, micro=(low, high))
    tried = _spread(list(zip(found.global_batch.tolist(), found.micro_batch.tolist(), strict=True)))
    findings = rehearse(
        args.script, args.arguments, workers=args.workers, seconds=args.seconds, after=args.after, layouts=tried
    )
    rows = _rows(found, findings, args)
    if args.plot:
        from swell.telemetry.noise_plot import draw_goodput

        draw_goodput(rows, Path(args.plot))
    if args.json:
        print(json.dumps(rows, indent=2))
        return 0
    _show(rows, findings, args.base)
    if args.micro is None:
        print_note(
            f"Micro-batches of at most {high} samples, the base batch, were considered; swell.Goodput tries "
            f"larger ones. Give --micro {args.max} to look beyond."
        )
    return 0


def _bounds(text: str | None, base: int) -> tuple[int, int]:
    if text is None:
        return 1, base
    low, dash, high = text.partition("-")
    try:
        bounds = (int(low), int(high)) if dash else (1, int(low))
    except ValueError:
        bounds = (0, 0)
    if not 1 <= bounds[0] <= bounds[1]:
        raise ConfigError(f"--micro {text!r} is no range of micro-batches: write 64 or 16-256, smallest first.")
    return bounds


def _spread(layouts: list[tuple[int, int]], most: int = 8) -> tuple[tuple[int, int], ...]:
    """At most so many layouts, from the first to the last, the smallest first."""
    if len(layouts) <= most:
        return tuple(layouts)
    return tuple(layouts[round(i * (len(layouts) - 1) / (most - 1))] for i in range(most))


def _rows(found: Any, findings: dict[str, Any], args: Namespace) -> list[dict[str, Any]]:
    from swell.core.moments import efficiency
    from swell.core.throughput import fit
    from swell.core.types import StepSummary

    if not findings["profile"]:
        raise ConfigError("no layout ran often enough to be timed. Give --seconds more.")
    law = fit([StepSummary(**summary) for summary in findings["profile"]])
    measured = {(s["micro_batch"], s["accumulation"]): s["step_s"] for s in findings["profile"]}
    noise = findings["noise"]
    scale = noise["noise"] / noise["signal"] if noise and noise["signal"] > 0 else float("inf")
    rows = []
    for batch, micro, accumulation in zip(found.global_batch, found.micro_batch, found.accumulation, strict=True):
        guess = law.predict(replicas=args.workers, nodes=1, micro_batch=micro, accumulation=accumulation)
        seconds = float(measured.get((int(micro), int(accumulation)), guess.step_s))
        eff = efficiency(float(batch), base_batch=args.base, noise_scale=scale) if noise else None
        rows.append(
            {
                "batch": int(batch),
                "micro": int(micro),
                "accumulation": int(accumulation),
                "samples_s": float(batch) / seconds,
                "measured": (int(micro), int(accumulation)) in measured,
                "error": float(guess.error),
                "efficiency": eff,
                "goodput": None if eff is None else eff * float(batch) / seconds,
            }
        )
    return rows


def _show(rows: list[dict[str, Any]], findings: dict[str, Any], base: int) -> None:
    key = "goodput" if rows[0]["goodput"] is not None else "samples_s"
    first = next((row for row in rows if row["batch"] == base), rows[0])
    best = max(rows, key=lambda row: row[key])
    seen: dict[int, dict[str, Any]] = {}
    for row in rows:  # of each batch the fastest layout
        if row["batch"] not in seen or row[key] > seen[row["batch"]][key]:
            seen[row["batch"]] = row
    table = [
        (
            f"{row['batch']}{' *' if row is best else ''}",
            f"{row['micro']}",
            f"{row['accumulation']}",
            f"{row['samples_s']:.0f}{'' if row['measured'] else ' ~'}",
            "?" if row["efficiency"] is None else f"{row['efficiency']:.2f}",
            f"{first[key] / row[key]:.2f}",
        )
        for row in seen.values()
    ]
    headings = ("batch", "micro-batch", "accumulation", "samples/s", "efficiency", "time to target")
    print_table(headings, table, title=f"Relative to a batch of {base}")
    print_note("* is the fastest way to the target; ~ is predicted from the others, not measured.")
    if findings["noise"] is None or not findings["noise"]["sure"]:
        print_note("The gradient noise is not sure yet: measure longer (--seconds) or later in training (--after).")


COMMAND = Command(
    summary="measure a script at other batch sizes",
    description=(
        "Run a training script for a minute at batches from --base to --max without changing its weights, and print "
        "for each layout the samples a second, the statistical efficiency and the time to the same result."
    ),
    example="swell tune --base 128 --max 4096 --micro 64-512 train.py",
    options=_options,
    run=_run,
)
