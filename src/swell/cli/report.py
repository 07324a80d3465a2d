"""``swell report``: one HTML file that shows runs."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from swell.cli.command import Command


def _options(parser: ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", metavar="RUN", help="the folders of one or several runs, or their logs")
    parser.add_argument("--out", metavar="FILE", help="file to write (default: report.html in the first run's folder)")


def _run(args: Namespace) -> int:
    from swell.telemetry.html_report import write_report

    first = Path(args.runs[0])
    out = Path(args.out) if args.out else (first if first.is_dir() else first.parent) / "report.html"
    path = write_report(args.runs, out)
    print(f"{path} ({path.stat().st_size / 1000:,.0f} kB); open it in a browser: {path.resolve().as_uri()}")
    return 0


COMMAND = Command(
    summary="write one HTML file that shows one or several runs",
    description=(
        "Write one HTML file that shows one or several runs: workers, batch, loss, learning rate, gain, noise and "
        "speed, where the time went, and every decision with its reasons. The file needs no network and no server: "
        "send it to somebody, print it, open it on a phone. It works during a run too, and shows the run as it is then."
    ),
    example="swell report runs/digits runs/digits-fixed --out compare.html",
    options=_options,
    run=_run,
)
