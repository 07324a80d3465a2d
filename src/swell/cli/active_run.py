"""How commands name a run that is active: by its folder, or by the address at which its supervisor listens."""

from __future__ import annotations

from argparse import ArgumentParser


def add_run_argument(parser: ArgumentParser) -> None:
    """The arguments of a command that asks the supervisor of a run."""
    parser.add_argument("run_dir", metavar="RUN", help="the run's folder, or the address at which it listens")
    parser.add_argument(
        "--token-file", metavar="FILE", help="the token of a run on another machine (default: $SWELL_TOKEN)"
    )
