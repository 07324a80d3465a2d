"""Policies around policies: bounds, patience, rounding.

Each takes a policy and is one, so they nest, and the innermost decides first: ``Clamp(RoundTo(Hysteresis(p)),
high=4096)``. Each is a function of the observation alone: all they remember is ``seen.batch``, the batch of the step
before.

Hysteresis, Dwell and AtEpochEnds keep that batch for a while. They let a decision through if there is nothing to keep:
at the first step, and when the batch cannot be laid out on the present replicas (``seen.feasible``, or fewer samples
than replicas), because the run would end there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import KW_ONLY, dataclass, field
from typing import Literal

from swell.core.protocols import FinitePolicy, Policy
from swell.core.types import Observation
from swell.errors import ConfigError
from swell.policies.abilities import find
from swell.policies.arguments import assign, number, samples, word
from swell.policies.decision import checked_batch, require_policy

How = Literal["nearest", "up", "down"]


@dataclass(frozen=True, slots=True)
class Around(ABC):
    """A policy around another one, with that one's base and end; its other abilities are found inside."""

    policy: Policy
    _finite: FinitePolicy | None = field(init=False, repr=False, compare=False)  # asked once: the check is slow

    def __post_init__(self) -> None:
        assign(self, policy=require_policy(self.policy), _finite=find(self.policy, FinitePolicy))

    @property
    def base(self) -> int:
        return self.policy.base

    @abstractmethod
    def batch(self, seen: Observation) -> int: ...

    def finished(self, seen: Observation) -> bool:
        return self._finite is not None and bool(self._finite.finished(seen))


@dataclass(frozen=True, slots=True)
class Clamp(Around):
    """The policy's batch, but at least ``low`` and at most ``high`` samples.

    >>> from swell.policies import Clamp, Fixed
    >>> Clamp(Fixed(512), high=256).base
    512
    """

    _: KW_ONLY
    low: int = 1
    high: int | None = None  # no upper bound

    def __post_init__(self) -> None:
        Around.__post_init__(self)
        assign(self, low=samples(self.low, "low"))
        if self.high is not None:
            assign(self, high=samples(self.high, "high"))
            if self.high < self.low:
                raise ConfigError(
                    f"low is {self.low} and high is {self.high}; expected bounds that do not cross. Swap them."
                )

    def batch(self, seen: Observation) -> int:
        batch = max(self.low, checked_batch(self.policy, seen))
        return batch if self.high is None else min(batch, self.high)


@dataclass(frozen=True, slots=True)
class Hysteresis(Around):
    """The policy's batch, but a change by less than ``change`` times the batch is not made.

    This holds after a resize too, unless the batch does not fit the new world. A ramp inside may stop short of its end
    by less than ``change``.

    >>> from swell.policies import Hysteresis, NoiseScale
    >>> Hysteresis(NoiseScale(base=64, max=4096), change=0.2).change
    0.2
    """

    _: KW_ONLY
    change: float = 0.1

    def __post_init__(self) -> None:
        Around.__post_init__(self)
        assign(self, change=number(self.change, "change", least=0, example=0.2))

    def batch(self, seen: Observation) -> int:
        choice = checked_batch(self.policy, seen)
        small = abs(choice - seen.batch) < self.change * seen.batch
        return seen.batch if small and not _nothing_to_keep(seen) else choice


@dataclass(frozen=True, slots=True)
class Dwell(Around):
    """The policy's batch, but each batch is kept for at least ``samples`` samples.

    A resize lets a decision through, because the batch was chosen for another world.

    >>> from swell.policies import Dwell, Ramp
    >>> Dwell(Ramp(64, 1024, over=1_000_000), samples=50_000).samples
    50000
    """

    _: KW_ONLY
    samples: int

    def __post_init__(self) -> None:
        Around.__post_init__(self)
        assign(self, samples=samples(self.samples, "samples"))

    def batch(self, seen: Observation) -> int:
        choice = checked_batch(self.policy, seen)
        young = seen.samples - seen.batch_since < self.samples
        return seen.batch if young and not seen.resized and not _nothing_to_keep(seen) else choice


@dataclass(frozen=True, slots=True)
class AtEpochEnds(Around):
    """The policy's batch, changed only between epochs.

    A resize in the middle of an epoch waits for its end too, unless the batch does not fit the new world.

    >>> from swell.policies import AtEpochEnds, NormTest
    >>> AtEpochEnds(NormTest(base=64, max=4096)).base
    64
    """

    def batch(self, seen: Observation) -> int:
        choice = checked_batch(self.policy, seen)
        return choice if seen.epoch_samples == 0 or _nothing_to_keep(seen) else seen.batch


@dataclass(frozen=True, slots=True)
class RoundTo(Around):
    """The policy's batch as a multiple of ``multiple``: the nearest (halves up), the next up or down; never below one.

    >>> from swell.policies import Ramp, RoundTo
    >>> RoundTo(Ramp(64, 1024, over=1_000_000), multiple=64, how="down").multiple
    64
    """

    _: KW_ONLY
    multiple: int
    how: How = "nearest"

    def __post_init__(self) -> None:
        Around.__post_init__(self)
        assign(self, multiple=samples(self.multiple, "multiple"), how=word(self.how, "how", ("nearest", "up", "down")))

    def batch(self, seen: Observation) -> int:
        return _rounded(checked_batch(self.policy, seen), self.multiple, self.how, seen)


@dataclass(frozen=True, slots=True)
class RoundToReplicas(Around):
    """The policy's batch as a multiple of the present replicas times ``micro``: all replicas have equal shares.

    >>> from swell.policies import Fixed, RoundToReplicas
    >>> RoundToReplicas(Fixed(1000), micro=16, how="up").base
    1000
    """

    _: KW_ONLY
    micro: int = 1  # each share is a multiple of it too
    how: How = "nearest"

    def __post_init__(self) -> None:
        Around.__post_init__(self)
        assign(self, micro=samples(self.micro, "micro"), how=word(self.how, "how", ("nearest", "up", "down")))

    def batch(self, seen: Observation) -> int:
        return _rounded(checked_batch(self.policy, seen), seen.replicas * self.micro, self.how, seen)


def _nothing_to_keep(seen: Observation) -> bool:
    return seen.step == 0 or not seen.feasible or seen.batch < seen.replicas


def _rounded(batch: int, multiple: int, how: How, seen: Observation) -> int:
    """The batch rounded; down if rounding up gives more samples than an epoch has."""
    added = {"nearest": multiple // 2, "up": multiple - 1, "down": 0}[how]
    rounded = max(1, (batch + added) // multiple) * multiple
    if batch <= seen.within_epoch(rounded) < rounded:
        rounded = max(1, batch // multiple) * multiple
    return rounded
