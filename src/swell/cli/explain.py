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
    """One change, in sentences."""

    step: int
    headline: str
    reasons: tuple[str, ...] = ()
    before: int | None = None
    after: int | None = None


def _options(parser: ArgumentParser) -> None:
    parser.add_argument("run_dir", metavar="RUN", help="the run's folder, or its events.jsonl")
    parser.add_argument("--last", type=int, metavar="N", help="show only the last N changes")
    parser.add_argument("--json", action="store_true", help="write the changes as JSON")


def _run(args: Namespace) -> int:
    from swell.errors import ConfigError
    from swell.telemetry import LOG_NAME
    from swell.telemetry.log import read_events

    if args.last is not None and args.last < 1:
        raise ConfigError(f"--last is {args.last}; expected a number of changes, 1 or more.")
    path = Path(args.run_dir)
    log = path / LOG_NAME if path.is_dir() else path
    events = list(read_events(log)) if log.exists() else []
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
    return 0


def accounts(events: Iterable[Event]) -> Iterator[Account]:
    """Every change of batch, world or memory, with the reasons that the policy gives when it is asked again."""
    from swell.core.events import BatchChanged, Resized, StepSkipped

    for event in events:
        if isinstance(event, Resized):
            pause = "" if event.pause_s is None else f"; training paused for {_seconds(event.pause_s)}"
            headline = f"the world went from {event.before} to {event.after} replicas ({event.reason}){pause}."
            yield Account(step=event.step, headline=headline)
        elif isinstance(event, StepSkipped) and event.max_micro is not None:
            limit = f"the step is repeated in micro-batches of at most {event.max_micro} samples"
            yield Account(step=event.step, headline=f"{event.reason}; {limit}.")
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
    """The policy's reasons for what it saw; the policy is built again from its text in the log."""
    from swell.errors import SwellError
    from swell.policies import observation_from_dict
    from swell.policies.decision import checked_batch, explanation, follows_noise
    from swell.policies.parse import policy_from_text

    try:
        policy, observation = policy_from_text(event.policy), observation_from_dict(event.seen)
        batch, decision = checked_batch(policy, observation), explanation(policy, observation)
    except SwellError:
        return [f"{event.policy} chose it."]
    position = f"{observation.samples:,} samples were done"
    if observation.done is not None:
        position += f", {observation.done:.1%} of the run"
    sentences = [f"{position}, on {observation.replicas} replica{'s' if observation.replicas > 1 else ''}."]
    if decision is not None:
        sentences += decision.reasons
    else:
        sentences += [_noise(observation)] if follows_noise(policy) else []
        sentences.append(f"{event.policy} chose it.")
    if decision is not None and decision.chosen.global_batch != batch:
        sentences.append(f"{type(policy).__name__} made {batch} of {decision.chosen.global_batch}.")
    if batch != event.after:
        sentences.append(f"Asked again, the policy chooses {batch}: the log is from another version of swell.")
    return sentences


def _seconds(time: float) -> str:
    return f"{time:.1f} s" if time >= 1 else f"{time * 1000:.0f} ms"


def _noise(observation: Observation) -> str:
    """What was known about the gradient noise, for a policy that follows it without giving reasons."""
    if observation.noise is None:
        return "The gradient noise was not measured yet."
    low, high = observation.noise.interval
    scale = f"{observation.noise.total.noise_scale:,.0f} samples" if observation.noise.sure else "not sure"
    return f"The noise scale was {scale} ({low:,.0f} to {high:,.0f})."


COMMAND = Command(
    summary="explain why the batch changed",
    description=(
        "Explain in sentences why the batch changed: what the policy saw at that step and what it expected from the "
        "change. Changes of the world, and steps repeated because memory ran out, are listed too. Reads the run's log, "
        "during the run or afterwards."
    ),
    example="swell explain runs/digits --last 5",
    options=_options,
    run=_run,
)
