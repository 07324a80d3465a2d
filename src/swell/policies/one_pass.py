"""Goodput without gradient accumulation: every replica computes its share in one pass."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from swell.core.types import Decision, Layout, Observation
from swell.errors import ConfigError
from swell.policies.combinators import Around
from swell.policies.goodput import Goodput


@dataclass(frozen=True, slots=True)
class OnePass(Around):
    """``Goodput`` within the batch that all replicas can compute in one pass; a single replica keeps the base batch.

    The policy needs ``max`` and bounds ``micro=(low, high)`` with ``high`` of at least the base batch. This is how
    AdaptDL autoscales by default.

    >>> from swell.policies import Goodput
    >>> OnePass(Goodput(64, max=1024, micro=(16, 128))).base
    64
    """

    policy: Goodput

    def __post_init__(self) -> None:
        Around.__post_init__(self)
        policy = self.policy
        micro = policy.micro if isinstance(policy, Goodput) and policy.max is not None else None
        if not isinstance(micro, tuple) or micro[1] < policy.base:
            raise ConfigError(
                f"policy is {policy!r}; expected a Goodput with max and with micro=(low, high), where high is at least "
                "its base batch. Give for example Goodput(64, max=1024, micro=(16, 128))."
            )

    def batch(self, seen: Observation) -> int:
        return self.layout(seen).global_batch

    def layout(self, seen: Observation) -> Layout:
        """The global batch of the next step, with the largest share as its micro-batch."""
        if seen.replicas == 1:
            return Layout(global_batch=self.base, micro_batch=self.base)
        return _in_one_pass(self._limited(seen).layout(seen), seen)

    def explain(self, seen: Observation) -> Decision:
        """The same choice with its reasons."""
        decision = self._limited(seen).explain(seen)
        if seen.replicas == 1:
            reason = f"A single replica without accumulation keeps the base batch of {self.base}."
            return Decision(chosen=self.layout(seen), current=decision.current, reasons=(reason,))
        return dataclasses.replace(decision, chosen=_in_one_pass(decision.chosen, seen))

    def _limited(self, seen: Observation) -> Goodput:
        """The policy with no larger batch than the replicas compute in one pass."""
        assert isinstance(self.policy.micro, tuple) and self.policy.max is not None
        return dataclasses.replace(self.policy, max=min(self.policy.max, seen.replicas * self.policy.micro[1]))


def _in_one_pass(layout: Layout, seen: Observation) -> Layout:
    return dataclasses.replace(layout, micro_batch=-(-layout.global_batch // seen.replicas))
