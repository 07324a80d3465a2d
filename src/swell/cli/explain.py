"""``swell explain``: why the batch changed when it did."""

from __future__ import annotations

import json
import os
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from swell.cli.command import Command
from swell.cli.table import print_note

if TYPE_CHECKING:
    from swell.core.events import Event


def _options(parser: ArgumentParser) -> None:
    parser.add_argument("run_dir", metavar="RUN", help="the run's folder, or its events.jsonl")
    parser.add_argument("--last", type=int, metavar="N", help="show only the last N changes")
    parser.add_argument("--json", action="store_true", help="write the changes as JSON")


def _run(args: Namespace) -> int:
    from swell.errors import ConfigError
    from swell.telemetry import LOG_NAME
    from swell.telemetry.decisions import accounts
    from swell.telemetry.log import read_events
    from swell.telemetry.log_reader import find_log

    if args.last is not None and args.last < 1:
        raise ConfigError(f"--last is {args.last}; expected a number of changes, 1 or more.")
    path = Path(args.run_dir)
    named = not path.is_dir()  # by the user, who may name a link
    log = find_log(path)
    events = list(read_events(log, follow=named)) if os.path.lexists(log) else []
    if not events:
        problem = "has no events" if log.exists() else f"has no {LOG_NAME}" if path.exists() else "does not exist"
        raise ConfigError(
            f"{path} {problem}; expected the log of a run. Give the run folder of a script's swell.Job, or its log."
        )
    changes = list(accounts(events))
    changes = changes if args.last is None else changes[-args.last :]
    if args.json:
        print(json.dumps([vars(account) for account in changes], indent=2))
    elif not changes:
        print_note(f"The batch never changed in {path}.")
    else:
        for account in changes:
            print_note(f"Step {account.step:,}: {account.headline}")
            for reason in account.reasons:
                print_note(f"  {reason}")
    if not args.json:
        _show_price(events)
    return 0


def _show_price(events: list[Event]) -> None:
    """What the run took so far beside its base run; nothing for a run at the base batch."""
    from swell.telemetry.price import price_of
    from swell.telemetry.run_model import model_of
    from swell.telemetry.run_summary import duration

    model = model_of(events)
    if model.started is None:
        return
    power = model.started.settings.get("worth_power") or 1.0
    price = price_of(model.columns, base_batch=model.started.base_batch, worth_power=float(power))
    words = price.words()
    if words is not None:
        print_note(f"In all: {price.steps:,} steps, {price.samples:,} samples, {duration(price.seconds)}; {words}.")


COMMAND = Command(
    summary="explain why the batch changed",
    description=(
        "Explain in sentences why the batch changed: what the policy saw at that step and what it expected from the "
        "change. Changes of the world, and steps repeated because memory ran out, are listed too. The last line is the "
        "price: time, samples and worth beside the base run's. Reads the run's log, during the run or afterwards."
    ),
    example="swell explain runs/digits --last 5",
    options=_options,
    run=_run,
)
