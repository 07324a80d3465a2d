"""``swell resume``: bring a stopped or killed run back as it was started."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace

from swell.cli import run
from swell.cli.command import Command
from swell.errors import ConfigError


def _options(parser: ArgumentParser) -> None:
    parser.add_argument("run_dir", metavar="RUN", help="the run's folder")
    parser.add_argument("--workers", metavar="N", help="new allowed numbers of workers (default: as before)")
    parser.add_argument("--start", type=int, metavar="N", help="number of workers at the start")


def _run(args: Namespace) -> int:
    from swell.supervisor.run_dir import RunDir

    record = RunDir(args.run_dir).read_record()
    try:
        os.chdir(record["folder"])
        options = dict(record["options"])
    except (KeyError, TypeError, OSError) as error:
        raise ConfigError(
            f"the record of the run in {args.run_dir} cannot be used ({error}); expected its folder and options. Start "
            f"its script again with `swell run`: it resumes from its newest checkpoint."
        ) from error
    if args.workers is not None:
        options.update(workers=args.workers, start=None)
    if args.start is not None:
        options["start"] = args.start
    return run.start(options)


COMMAND = Command(
    summary="bring a stopped or killed run back",
    description=(
        "Start a run again with its original command line, folder and options. Its script resumes from the newest "
        "checkpoint, on any number of workers. The status is that of swell run."
    ),
    example="swell resume runs/digits --workers 1:4",
    options=_options,
    run=_run,
)
