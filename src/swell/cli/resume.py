"""``swell resume``: bring a stopped or killed run back as it was started."""

from __future__ import annotations

import contextlib
import os
from argparse import ArgumentParser, Namespace
from typing import Any

from swell.cli.command import Command
from swell.cli.run import start_run
from swell.errors import ConfigError


def _options(parser: ArgumentParser) -> None:
    parser.add_argument("run_dir", metavar="RUN", help="the run's folder, or the URL of its --mirror")
    parser.add_argument("--into", metavar="DIR", help="with a URL: the run's folder here (default: as before)")
    parser.add_argument("--workers", metavar="N", help="new allowed numbers of workers (default: as before)")
    parser.add_argument("--start", type=int, metavar="N", help="number of workers at the start")
    parser.add_argument("--listen", metavar="ADDRESS", help="where agents join now, if not where they did before")
    parser.add_argument("--slots", type=int, metavar="N", help="with --listen: workers on this machine at most")
    parser.add_argument(
        "--from-here", action="store_true", help="go on from the newest state here, even if another machine has a newer"
    )
    parser.add_argument("--fresh", action="store_true", help="start over: what the run folder holds is moved aside")
    parser.add_argument("--trust", action="store_true", help="run the command line even if other users can write it")


def _run(args: Namespace) -> int:
    record = _record(args)
    try:
        os.chdir(record["folder"])
        options = {"run_dir_given": False, **record["options"]}
    except (KeyError, TypeError, OSError) as error:
        raise ConfigError(
            f"the record of the run in {args.run_dir} cannot be used ({error}); expected its folder and options. Start "
            f"its script again with `swell run`: it resumes from its newest checkpoint."
        ) from error
    if args.workers is not None:
        options.update(workers=args.workers, start=None)
    if args.start is not None:
        options["start"] = args.start
    for name in ("listen", "slots"):
        if getattr(args, name) is not None:
            options[name] = getattr(args, name)
    options.update(fresh=args.fresh, from_here=args.from_here)
    return start_run(options)


def _record(args: Namespace) -> dict[str, Any]:
    """How the run was started, from its folder or from its mirror."""
    from swell.checkpoint.object_store import ObjectStore, is_url
    from swell.supervisor.run_dir import RunDir

    if not is_url(args.run_dir):
        if args.into is not None:
            raise ConfigError(f"--into is {args.into!r} and RUN is a folder; expected a URL with --into. Leave it out.")
        return RunDir(args.run_dir).read_record(trust=args.trust)
    if not args.trust:
        raise ConfigError(
            f"RUN is {args.run_dir!r}, and nothing says who can write there; expected --trust with a URL, because the "
            f"command line in it would run as you. Give --trust if the store is yours."
        )
    record = ObjectStore(args.run_dir).record()
    with contextlib.suppress(KeyError, TypeError):
        run_dir = record["options"]["run_dir"] if args.into is None else os.path.realpath(args.into)
        record["options"].update(run_dir=run_dir, mirror=args.run_dir)
    return record


COMMAND = Command(
    summary="bring a stopped or killed run back",
    description=(
        "Start a run again with its original command line, folder and options. Its script resumes from the newest "
        "checkpoint, on any number of workers. The status is that of swell run.\n"
        "On a machine that has lost the run's disk, or never had it, give the URL of the run's mirror: the newest "
        "state is fetched from there.\n"
        "A folder whose record belongs to another user, or that others can write, is refused, because its command line "
        "would run as you; --trust runs it."
    ),
    example="swell resume runs/digits --workers 1:4",
    options=_options,
    run=_run,
)
