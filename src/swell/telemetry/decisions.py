"""Why the batch changed, in sentences: the policy is asked again with what it saw."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from swell.core.events import BatchChanged, Event, GrowthTakenBack, Resized, StepSkipped
from swell.core.types import Observation
from swell.errors import SwellError
from swell.policies import observation_from_dict
from swell.policies.decision import checked_batch, explanation, follows_noise
from swell.policies.parse import policy_from_text


@dataclass(frozen=True, kw_only=True)
class Account:
    """One change, in sentences."""

    step: int
    headline: str
    reasons: tuple[str, ...] = ()
    before: int | None = None
    after: int | None = None


def accounts(events: Iterable[Event]) -> Iterator[Account]:
    """Every change of batch, world or memory, with the reasons that the policy gives when it is asked again."""
    for event in events:
        told = account_of(event)
        if told is not None:
            yield told


def account_of(event: Event) -> Account | None:
    """The account of one event; None if it changed neither batch, world nor memory."""
    if isinstance(event, Resized):
        pause = "" if event.pause_s is None else f"; training paused for {_seconds(event.pause_s)}"
        headline = f"the world went from {event.before} to {event.after} replicas ({event.reason}){pause}."
        return Account(step=event.step, headline=headline)
    if isinstance(event, StepSkipped) and event.max_micro is not None:
        limit = f"the step is repeated in micro-batches of at most {event.max_micro} samples"
        return Account(step=event.step, headline=f"{event.reason}; {limit}.")
    if isinstance(event, GrowthTakenBack):
        return Account(step=event.step, headline=_taken_back(event))
    if isinstance(event, BatchChanged):
        return Account(
            step=event.step,
            headline=_headline(event),
            reasons=tuple(_reasons(event)),
            before=event.before,
            after=event.after,
        )
    return None


def _taken_back(event: GrowthTakenBack) -> str:
    return (
        f"the loss rose from {event.loss_before:.4g} to {event.loss_after:.4g} after the batch had grown from "
        f"{event.before} to {event.after}; the batch is at most {event.before} until {event.until:,} samples are done, "
        f"and the learning rate follows it."
    )


def _headline(event: BatchChanged) -> str:
    if event.after == event.before:
        return f"micro-batches went from {event.micro_before} to {event.micro_after} samples."
    verb = "grew" if event.after > event.before else "shrank"
    several = "" if event.changes == 1 else f", in {event.changes} changes"
    return f"the global batch {verb} from {event.before} to {event.after}{several}."


def _reasons(event: BatchChanged) -> list[str]:
    """The policy's reasons for what it saw; the policy is built again from its text in the log."""
    if event.after == event.seen.get("ceiling"):
        return [f"The loss rose at a larger batch, so it is at most {event.after} for now."]
    try:
        policy, observation = policy_from_text(event.policy), observation_from_dict(event.seen)
        batch, decision = checked_batch(policy, observation), explanation(policy, observation)
    # An observation that no run has made can break a policy in any way; it gets a line, not a traceback.
    except (SwellError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError, RecursionError):
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
