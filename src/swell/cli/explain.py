"""``swell explain``: why the batch changed when it did."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from swell.cli.command import Command
from swell.cli.table import print_note

if TYPE_CHECKING:
    from swell.core.events import BatchChanged, Event
    from swell.core.types import Observation


@dataclass(frozen=True, kw_only=True)
class Account:
    """One thing that happened, in sentences."""

    step: int
    headline: str
    reasons: tuple[str, ...] = ()
    before: int | None = None
    after: int | None = None


def _options(parser: ArgumentParser) -> None:
    parser.add_argument("run_dir", metavar="RUN", help="the run's folder, or its events.jsonl")
    parser.add_argument("--last", type=int, metavar="N", help="only the last N changes")
    parser.add_argument("--json", action="store_true", help="write it as JSON")


def _run(args: Namespace) -> int:
    from swell.errors import ConfigError
    from swell.telemetry import LOG_NAME
    from swell.telemetry.log import read_events

    if args.last is not None and args.last < 1:
        raise ConfigError(f"--last {args.last} leaves nothing to tell: give a number of changes, 1 or more.")
    path = Path(args.run_dir)
    log = path / LOG_NAME if path.is_dir() else path
    events = list(read_events(log)) if log.exists() else []
    if not events:
        lacks = "holds no events" if log.exists() else f"has no {LOG_NAME}" if path.exists() else "is not there"
        raise ConfigError(f"{path} {lacks}: give the folder that a script's swell.Job was made with, or its log.")
    told = list(accounts(events))
    told = told if args.last is None else told[-args.last :]
    if args.json:
        print(json.dumps([vars(account) for account in told], indent=2))
    elif not told:
        print_note(f"The batch never changed in {path}.")
    else:
        for account in told:
            print_note(f"Step {account.step:,}: {account.headline}")
            for reason in account.reasons:
                print_note(f"  {reason}")
    return 0


def accounts(events: Iterable[Event]) -> Iterator[Account]:
    """Every change of batch, world or memory, with the reasons the policy gives when it is asked again."""
    from swell.core.events import BatchChanged, Resized, StepSkipped

    for event in events:
        if isinstance(event, Resized):
            pause = "" if event.pause_s is None else f"; training paused for {_seconds(event.pause_s)}"
            headline = f"the world went from {event.before} to {event.after} replicas ({event.reason}){pause}."
            yield Account(step=event.step, headline=headline)
        elif isinstance(event, StepSkipped) and event.max_micro is not None:
            again = f"the step is done again, in micro-batches of at most {event.max_micro} samples"
            yield Account(step=event.step, headline=f"{event.reason}; {again}.")
        elif isinstance(event, BatchChanged):
            headline = _headline(event)
            yield Account(
                step=event.step,
                headline=headline,
                reasons=tuple(_reasons(event)),
                before=event.before,
                after=event.after,
            )


def _headline(event: BatchChanged) -> str:
    if event.after == event.before:
        return f"micro-batches went from {event.micro_before} to {event.micro_after} samples."
    verb = "grew" if event.after > event.before else "shrank"
    return f"the global batch {verb} from {event.before} to {event.after}."


def _reasons(event: BatchChanged) -> list[str]:
    """What the policy that chose, built again from its text in the log, says of what it saw."""
    from swell.errors import SwellError
    from swell.policies import observation_from_dict
    from swell.policies.decision import checked_batch, explanation, follows_noise
    from swell.policies.parse import policy_from_text

    try:
        policy, seen = policy_from_text(event.policy), observation_from_dict(event.seen)
        again, decision = checked_batch(policy, seen), explanation(policy, seen)
    except SwellError:
        return [f"{event.policy} chose it."]
    where = f"{seen.samples:,} samples were done"
    if seen.done is not None:
        where += f", {seen.done:.1%} of the run"
    said = [f"{where}, on {seen.replicas} replica{'s' if seen.replicas > 1 else ''}."]
    if decision is not None:
        said += decision.reasons
    else:
        said += [_noise(seen)] if follows_noise(policy) else []
        said.append(f"{event.policy} chose it.")
    if decision is not None and decision.chosen.global_batch != again:
        said.append(f"{type(policy).__name__} made {again} of {decision.chosen.global_batch}.")
    if again != event.after:
        said.append(f"Asked again, the policy chooses {again}: the log is of another version of swell.")
    return said


def _seconds(time: float) -> str:
    return f"{time:.1f} s" if time >= 1 else f"{time * 1000:.0f} ms"


def _noise(seen: Observation) -> str:
    """What was known of the gradient noise, for a policy that follows it and says nothing of it."""
    if seen.noise is None:
        return "The gradient noise was not measured yet."
    low, high = seen.noise.interval
    told = f"{seen.noise.total.noise_scale:,.0f} samples" if seen.noise.sure else "not sure"
    return f"The noise scale was {told} ({low:,.0f} to {high:,.0f})."


COMMAND = Command(
    summary="say why the batch changed when it did",
    description=(
        "Say in sentences why the batch changed when it did: what was seen at that step, what the policy expected of "
        "the change, and which changes of the world, or steps done again because memory ran out, came between. Read "
        "from the run's log, during the run or after."
    ),
    example="swell explain runs/digits --last 5",
    options=_options,
    run=_run,
)
