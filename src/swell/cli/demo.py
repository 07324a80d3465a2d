"""``swell demo``: one small model trained three ways, side by side."""

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
        help="folder for the runs and the picture (default: swell-demo)",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of model and data order (default: 0)")


def _run(args: Namespace) -> int:
    from swell.demo import show

    show(args.out, seed=args.seed)
    return 0


COMMAND = Command(
    summary="train a small model three ways and compare them",
    description=(
        "Train one small network on handwritten digits three ways: with the small batch its learning rate was tuned "
        "for, with a large batch and nothing else changed, and with swell, which grows the batch and lets the learning "
        "rate follow the gradient noise. Accuracy, steps and samples are shown side by side and drawn into a picture."
    ),
    example="swell demo",
    options=_options,
    run=_run,
)
