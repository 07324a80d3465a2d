"""``swell dashboard``: the runs below a folder, live in the browser."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from swell.cli.command import Command
from swell.errors import ConfigError


def _options(parser: ArgumentParser) -> None:
    parser.add_argument("folder", nargs="?", default="runs", metavar="DIR", help="where to look (default: runs)")
    parser.add_argument("--port", type=int, default=0, metavar="N", help="port on 127.0.0.1 (default: any free one)")
    parser.add_argument("--open", action="store_true", help="open it in the browser of this machine")


def _run(args: Namespace) -> int:
    from swell.telemetry.dashboard import Dashboard

    if not 0 <= args.port <= 65535:
        raise ConfigError(f"--port is {args.port}; expected 0 to 65535. Leave it out for any free one.")
    if not Path(args.folder).is_dir():
        raise ConfigError(
            f"{args.folder} is not a folder; expected one with runs in it, now or later. Give another one, or make it."
        )
    with Dashboard(args.folder, port=args.port) as server:
        print(f"Runs in {args.folder}: {server.url}")
        print(
            "The link works on this machine only, and lets its holder resize and stop runs. Ctrl-C ends it.", flush=True
        )
        if args.open:
            import webbrowser

            webbrowser.open(server.url)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()
    return 0


COMMAND = Command(
    summary="show runs live in the browser",
    description=(
        "Serve a live page of all runs in a folder and below it: compare them, follow them while they train, read the "
        "output of their workers, resize and stop them. The server listens on 127.0.0.1 only and asks for the token in "
        "the link that it prints. From another machine, forward the port: ssh -L 8642:127.0.0.1:8642 HOST, with --port "
        "8642."
    ),
    example="swell dashboard runs --port 8642",
    options=_options,
    run=_run,
)
