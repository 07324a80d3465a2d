"""Policies around policies: bounds, patience, rounding.

Each takes a policy and is one, so they nest, the innermost deciding first: ``Clamp(RoundTo(Hysteresis(p)),
high=4096)``. Each is a function of the observation alone: what they remember is ``seen.batch``, the batch of the step
before.

Those that hold a batch back (Hysteresis, Dwell, AtEpochEnds) let a decision through where there is nothing to hold:
at the first step, and when the batch cannot be laid out on the replicas there are now (``seen.feasible``, or fewer
samples than replicas), since a held batch would end the run there.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Literal

from swell.core.protocols import Policy
from swell.core.types import Observation
from swell.errors import ConfigError
from swell.policies.arguments import assign, number, samples, word
from swell.policies.decision import checked_batch, is_finished, require_policy

How = Literal["nearest", "up", "down"]


@dataclass(frozen=True, slots=True)
class Clamp:
    """The policy's batch, but at least ``low`` and at most ``high`` samples.

    >>> from swell.policies import Clamp, Fixed
    >>> Clamp(Fixed(512), high=256).base
    512
    """

    policy: Policy
    _: KW_ONLY
    low: int = 1
    high: int | None = None  # no upper bound

    def __post_init__(self) -> None:
        assign(self, policy=require_policy(self.policy), low=samples(self.low, "low"))
        if self.high is not None:
            assign(self, high=samples(self.high, "high"))
            if self.high < self.low:
                raise ConfigError(
                    f"low is {self.low} and high is {self.high}; expected bounds that do not cross. Swap them."
                )

    @property
    def base(self) -> int:
        return self.policy.base

    def batch(self, seen: Observation) -> int:
        batch = max(self.low, checked_batch(self.policy, seen))
        return batch if self.high is None else min(batch, self.high)

    def finished(self, seen: Observation) -> bool:
        return is_finished(self.policy, seen)


@dataclass(frozen=True, slots=True)
class Hysteresis:
    """The policy's batch where it differs enough: a change below ``change`` times the batch is not made.

    A resize is no reason to make a small change, unless the batch does not fit the new world. A ramp under it may stop
    short of its end by less than ``change``.

    >>> from swell.policies import Hysteresis, NoiseScale
    >>> Hysteresis(NoiseScale(base=64, max=4096), change=0.2).change
    0.2
    """

    policy: Policy
    _: KW_ONLY
    change: float = 0.1

    def __post_init__(self) -> None:
        assign(self, policy=require_policy(self.policy), change=number(self.change, "change", least=0, example=0.2))

    @property
    def base(self) -> int:
        return self.policy.base

    def batch(self, seen: Observation) -> int:
        wanted = checked_batch(self.policy, seen)
        if abs(wanted - seen.batch) < self.change * seen.batch and not _nothing_to_hold(seen):
            return seen.batch
        return wanted

    def finished(self, seen: Observation) -> bool:
        return is_finished(self.policy, seen)


@dataclass(frozen=True, slots=True)
class Dwell:
    """The policy's batch, changed only after it has stood for at least ``samples`` samples.

    A resize lets a decision through: the world is another, and what was decided for the old one need not stand.

    >>> from swell.policies import Dwell, Ramp
    >>> Dwell(Ramp(64, 1024, over=1_000_000), samples=50_000).samples
    50000
    """

    policy: Policy
    _: KW_ONLY
    samples: int

    def __post_init__(self) -> None:
        assign(self, policy=require_policy(self.policy), samples=samples(self.samples, "samples"))

    @property
    def base(self) -> int:
        return self.policy.base

    def batch(self, seen: Observation) -> int:
        wanted = checked_batch(self.policy, seen)
        young = seen.samples - seen.batch_since < self.samples
        return seen.batch if young and not seen.resized and not _nothing_to_hold(seen) else wanted

    def finished(self, seen: Observation) -> bool:
        return is_finished(self.policy, seen)


@dataclass(frozen=True, slots=True)
class AtEpochEnds:
    """The policy's batch, changed only between epochs.

    A resize in the middle of an epoch waits for its end too, unless the batch does not fit the new world.

    >>> from swell.policies import AtEpochEnds, NormTest
    >>> AtEpochEnds(NormTest(base=64, max=4096)).base
    64
    """

    policy: Policy

    def __post_init__(self) -> None:
        require_policy(self.policy)

    @property
    def base(self) -> int:
        return self.policy.base

    def batch(self, seen: Observation) -> int:
        wanted = checked_batch(self.policy, seen)
        return wanted if seen.epoch_samples == 0 or _nothing_to_hold(seen) else seen.batch

    def finished(self, seen: Observation) -> bool:
        return is_finished(self.policy, seen)


@dataclass(frozen=True, slots=True)
class RoundTo:
    """The policy's batch as a multiple of ``multiple``: the nearest (halves up), the next up or down; never below one.

    >>> from swell.policies import Ramp, RoundTo
    >>> RoundTo(Ramp(64, 1024, over=1_000_000), multiple=64, how="down").multiple
    64
    """

    policy: Policy
    _: KW_ONLY
    multiple: int
    how: How = "nearest"

    def __post_init__(self) -> None:
        word(self.how, "how", ("nearest", "up", "down"))
        assign(self, policy=require_policy(self.policy), multiple=samples(self.multiple, "multiple"))

    @property
    def base(self) -> int:
        return self.policy.base

    def batch(self, seen: Observation) -> int:
        return _rounded(checked_batch(self.policy, seen), self.multiple, self.how, seen)

    def finished(self, seen: Observation) -> bool:
        return is_finished(self.policy, seen)


@dataclass(frozen=True, slots=True)
class RoundToReplicas:
    """The policy's batch as a multiple of the replicas there are now, times ``micro``: every replica's share is the
    same.

    >>> from swell.policies import Fixed, RoundToReplicas
    >>> RoundToReplicas(Fixed(1000), micro=16, how="up").base
    1000
    """

    policy: Policy
    _: KW_ONLY
    micro: int = 1  # each share is a multiple of it too
    how: How = "nearest"

    def __post_init__(self) -> None:
        word(self.how, "how", ("nearest", "up", "down"))
        assign(self, policy=require_policy(self.policy), micro=samples(self.micro, "micro"))

    @property
    def base(self) -> int:
        return self.policy.base

    def batch(self, seen: Observation) -> int:
        return _rounded(checked_batch(self.policy, seen), seen.replicas * self.micro, self.how, seen)

    def finished(self, seen: Observation) -> bool:
        return is_finished(self.policy, seen)


def _nothing_to_hold(seen: Observation) -> bool:
    return seen.step == 0 or not seen.feasible or seen.batch < seen.replicas


def _rounded(batch: int, multiple: int, how: How, seen: Observation) -> int:
    """The batch rounded; down where up would be more than an epoch has, which a step cannot take."""
    raised = {"nearest": multiple // 2, "up": multiple - 1, "down": 0}[how]
    rounded = max(1, (batch + raised) // multiple) * multiple
    if batch <= seen.within_epoch(rounded) < rounded:
        rounded = max(1, batch // multiple) * multiple
    return rounded
