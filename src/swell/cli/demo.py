"""``swell demo``: one small model trained three ways, and once more on workers that come, go and die."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from swell.cli.command import Command


def _options(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("swell-demo"),
        metavar="DIR",
        help="folder for the runs and the pictures (default: swell-demo)",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of model and data order (default: 0)")


def _run(args: Namespace) -> int:
    from swell.demo import show

    return 0 if show(args.out, seed=args.seed).holds else 1


COMMAND = Command(
    summary="train a small model three ways, and on workers that come and go",
    description=(
        "Train one small network on handwritten digits three ways: with the small batch its learning rate was tuned "
        "for, with a large batch and nothing else changed, and with swell, which grows the batch and adapts the "
        "learning rate to the gradient noise. Then train it once more with swell: on one worker, on two, after kill "
        "-9, stopped, and resumed. Show accuracy, steps and samples side by side, count the samples, draw "
        "pictures, and write a report for the browser.\n"
        "The status is 1 if a claim does not hold."
    ),
    example="swell demo",
    options=_options,
    run=_run,
)
