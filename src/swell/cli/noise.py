"""``swell noise``: the gradient noise of a training script, and the cost of other batch sizes."""

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
    add("--after", type=int, default=0, metavar="N", help="train N steps before measuring (default: 0)")
    add("--seconds", type=float, default=60.0, metavar="S", help="measure for at most S seconds (default: 60)")
    add("--workers", type=int, default=1, metavar="N", help="processes to measure with (default: 1)")
    add("--plot", metavar="PNG", help="draw steps and samples against batch size")
    add("--json", action="store_true", help="write the findings as JSON")
    add("script", metavar="SCRIPT", help="a script that trains with swell.Job")
    add("arguments", nargs=REMAINDER, metavar="...", help="its own arguments")


def _run(args: Namespace) -> int:
    from swell.cli.rehearse import rehearse

    if args.seconds < 0 or args.after < 0:
        raise ConfigError(f"--seconds is {args.seconds:g} and --after is {args.after}; expected 0 or more for both.")
    findings = rehearse(args.script, args.arguments, workers=args.workers, seconds=args.seconds, after=args.after)
    noise = findings["noise"]
    if noise is None:
        raise ConfigError(
            "no step was measured in time; expected at least one with two samples or more, because noise is the "
            "difference between two halves of a step. Give a larger --seconds, or a larger batch."
        )
    if args.plot:
        _plot(noise, findings["base"], Path(args.plot))
    if args.json:
        print(json.dumps(findings, indent=2))
        return 0
    _show(noise, findings["base"])
    return 0


def _show(noise: dict[str, Any], base: int) -> None:
    critical = noise["noise"] / noise["signal"] if noise["signal"] > 0 else float("inf")
    low, high = noise["interval"]
    rows = []
    batch = max(1, base // 4)
    while batch <= base * 64:
        steps = 1 + critical / batch
        rows.append(
            (
                f"{batch}",
                f"{steps / (1 + critical / base):.2f}",
                f"{(critical + batch) / (critical + base):.2f}",
            )
        )
        batch *= 2
    print_table(("batch", "steps", "samples"), rows, title=f"Relative to a batch of {base}")
    ends = f"{low:.0f} to {'infinity' if high is None else f'{high:.0f}'}"
    print_note(
        f"Critical batch size {critical:.0f} samples (95 % interval {ends}), from {noise['observations']} measured "
        f"steps: signal {noise['signal']:.3g}, noise {noise['noise']:.3g}."
    )
    if not noise["sure"]:
        print_note(
            "The interval is wide: measure longer (--seconds, with enough epochs in the script) or later in training "
            "(--after)."
        )


def _plot(noise: dict[str, Any], base: int, path: Path) -> None:
    from swell.telemetry.noise_plot import draw_noise

    draw_noise(signal=noise["signal"], noise=noise["noise"], interval=tuple(noise["interval"]), base=base, path=path)


COMMAND = Command(
    summary="measure a script's gradient noise",
    description=(
        "Run a training script without changing its weights, measure the signal and noise of its gradients, and show "
        "how many steps and samples larger and smaller batches would need. With --after the script trains first: noise "
        "grows during training, so a measurement at the start says little about the end."
    ),
    example="swell noise --after 200 --plot noise.png train.py",
    options=_options,
    run=_run,
)
