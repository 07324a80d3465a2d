"""Decisions made again from a log, by the same policy or another one, on the same observations."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from swell.core.events import BatchChanged, Event
from swell.core.protocols import Policy
from swell.core.types import Moments, NoiseEstimate, Observation, StepSummary, StepTimes
from swell.errors import ConfigError
from swell.policies.decision import checked_batch, chosen_layout


class Replayed(NamedTuple):
    """One decision of a run, and the policy's decision on the same observation now.

    Micro-batches are None if the policy does not choose them.
    """

    step: int
    logged: int
    recomputed: int
    logged_micro: int | None = None
    recomputed_micro: int | None = None

    @property
    def same(self) -> bool:
        """Whether both decisions are equal."""
        return (self.logged, self.logged_micro) == (self.recomputed, self.recomputed_micro)


def replay(policy: Policy, events: Iterable[Event]) -> list[Replayed]:
    """Every decision in the log beside the policy's decision on the same observation.

    With the policy of the run both are equal, because a policy is a function of the observation alone. With another
    policy, see what it would have chosen. Events other than ``BatchChanged`` are ignored.

    >>> from swell.policies import Fixed
    >>> seen = dict(step=3, samples=96, epoch=0, epoch_samples=96, epoch_size=None, total_samples=None, progress=3.0,
    ...             base_batch=32, batch=32, batch_since=0, replicas=2)
    >>> log = [BatchChanged(time=0.0, step=3, before=32, after=64, policy="Fixed(64)", seen=seen)]
    >>> [(decision.logged, decision.recomputed, decision.same) for decision in replay(Fixed(64), log)]
    [(64, 64, True)]
    """
    return [_again(policy, event) for event in events if isinstance(event, BatchChanged)]


def _again(policy: Policy, event: BatchChanged) -> Replayed:
    seen = observation_from_dict(event.seen)
    layout = None if event.micro_after is None else chosen_layout(policy, seen)
    batch = checked_batch(policy, seen) if layout is None else layout.global_batch
    micro = None if layout is None else layout.micro_batch
    return Replayed(event.step, event.after, batch, event.micro_after, micro)


def observation_to_dict(seen: Observation) -> dict[str, Any]:
    """The observation as plain numbers, for an event's ``seen``."""
    return dataclasses.asdict(seen)


def observation_from_dict(fields: Mapping[str, Any]) -> Observation:
    """The observation that an event's ``seen`` was written from; fields unknown to this version are ignored."""
    try:
        plain = _known(Observation, fields)
        if plain.get("noise") is not None:
            noise = _known(NoiseEstimate, plain["noise"])
            noise["total"] = Moments(**_known(Moments, noise["total"]))
            noise["groups"] = tuple(Moments(**_known(Moments, group)) for group in noise["groups"])
            noise["interval"] = tuple(noise["interval"])
            plain["noise"] = NoiseEstimate(**noise)
        if plain.get("times") is not None:
            plain["times"] = StepTimes(**_known(StepTimes, plain["times"]))
        if "profile" in plain:
            plain["profile"] = tuple(StepSummary(**_known(StepSummary, summary)) for summary in plain["profile"])
        if "capacity" in plain:
            plain["capacity"] = tuple(plain["capacity"])
        return Observation(**plain)
    except (TypeError, KeyError, AttributeError) as error:
        raise ConfigError(
            f"the observation is {fields!r:.200} ({error}); expected the `seen` of a BatchChanged event, as "
            "observation_to_dict writes it. Read the log with the version of swell that wrote it."
        ) from error


def _known(cls: type, fields: Mapping[str, Any]) -> dict[str, Any]:
    names = {field.name for field in dataclasses.fields(cls)}
    return {name: value for name, value in fields.items() if name in names}
