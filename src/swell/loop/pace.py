"""How large the next step is and how it is laid out: asks the policy, makes the plan, counts what was done."""

from __future__ import annotations

import copy
import dataclasses
import math
from typing import Any

from swell.core.counts import whole_number
from swell.core.feasibility import feasible_replicas
from swell.core.planning import halved, plan, plan_remainder, with_equal_rounds
from swell.core.profile import Profile
from swell.core.protocols import BoundedPolicy, LayoutPolicy, Policy
from swell.core.types import Layout, NoiseEstimate, Observation, Plan, StepTimes
from swell.errors import ConfigError, PlanError
from swell.policies import Fixed, find
from swell.policies.decision import checked_batch, follows_noise, layout_by

MOST_REPLICAS = 4096  # the most that ``possible_replicas`` lists
_FOLLOWED = 2 ** (1 / 16)  # the most by which the scale that rules go by rises in a step, under a policy by the noise


class Pace:
    """Counts committed steps and turns the counts into the next step's batch and plan.

    Every replica has the same counts, so every replica makes the same plan without asking the others.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        micro: int | tuple[int | None, int | None] | None,
        constant_micro: bool,
        capacity: tuple[float, ...] | None,
        fill: bool = False,
    ) -> None:
        assert not (fill and (constant_micro or capacity)), "micro-batches are filled where nothing else is asked for"
        self.policy = policy
        self.base = policy.base
        self.follows_noise = follows_noise(policy)  # asked once: the check is slow for every step
        # Without bounds, one device is assumed to hold the base batch, which the user tuned, and no more.
        self._low, self._high = (None, self.base) if micro is None else _bounds(micro)
        # Asked once: the check is slow for every step.
        self._layout_policy, self._bounded_policy = find(policy, LayoutPolicy), find(policy, BoundedPolicy)
        self.by_clock = self._layout_policy is not None  # whether batches depend on how long steps take
        if self._layout_policy is not None:
            _refuse_bounds(policy, low=self._low, constant=constant_micro)
        self._layout_high = None if micro is None else self._high  # for a policy that chooses the micro-batch too
        self._constant, self._capacity = constant_micro, capacity
        self._fill = fill  # whole micro-batches and one with the rest, so that compiled steps share their shapes
        self.devices = 1  # of each replica, which compute every micro-batch together; the policy counts them all
        self._fixed = policy if type(policy) is Fixed and policy.tolerance == 0 else None
        # Whether every step has the base batch, whatever happens.
        self.always_base = self._fixed is not None and self._fixed.size == self.base
        self.even = False  # whether every replica needs equally many micro-batches, because they communicate in each
        self.profile = Profile()
        self.step, self.progress = 0, 0.0
        self.batch, self.batch_since = self.base, 0
        self._followed: float | None = None  # samples that the rules went by in the latest step; None before the first
        self.resized = False
        self.max_micro: int | None = None  # what every replica's memory holds, as far as they know
        self.layout: Layout | None = None  # the policy's latest choice, if it chooses the micro-batch
        self._micro_before: int | None = None
        # Replicas, nodes, micro-batch and accumulation of the latest step, until the replicas agree on its time.
        self._untimed: tuple[int, int, int, int] | None = None
        self._plan_key: tuple[Any, ...] | None = None  # the arguments of the latest plan
        self._plan: Plan
        self._fit_key: tuple[int, int] | None = None  # the arguments of the latest ``_fits``
        self._fit = True

    @property
    def latest_times(self) -> StepTimes | None:
        """The latest step time that the replicas have agreed on: that of the step before the latest."""
        return self.profile.latest

    def observe(self, *, replicas: int, nodes: int, noise: NoiseEstimate | None, **place: Any) -> Observation:
        """All that a policy may use; ``place`` holds the ledger's counts."""
        return Observation(
            step=self.step,
            progress=self.progress,
            base_batch=self.base,
            batch=self.batch,
            batch_since=self.batch_since,
            replicas=replicas * self.devices,
            nodes=nodes,
            noise=noise,
            times=self.latest_times,
            resized=self.resized,
            feasible=self._fits(self.batch, replicas),
            capacity=self._capacity or (),
            micro_batch=self._micro_before,
            max_micro=_least(self.max_micro, self._layout_high),
            profile=self.profile.summaries(),
            **place,
        )

    @property
    def settled(self) -> bool:
        """Whether the policy can only choose the batch of the step before."""
        return self._fixed is not None and self.batch == self._fixed.size

    def choose(self, seen: Observation) -> int:
        """The next global batch; a policy that also chooses the micro-batch is asked for both."""
        if self._layout_policy is None:
            self.layout = None
            return checked_batch(self.policy, seen)
        self.layout = layout_by(self._layout_policy, self.policy, seen)
        return self.layout.global_batch

    def part_followed(self, batch: int) -> float:
        """The part of a step at this batch that rules go by: all of it, but for a while after the batch grew.

        A policy by the noise tries batches out and takes them back, and a learning rate that doubles at once may break
        a network that stands twice the rate. So it doubles in 16 steps, and a step counts for as much less. Batches
        that the user planned are followed at once.
        """
        if self._followed is None or not self.follows_noise:
            return 1.0
        return min(1.0, max(self._followed, self.base) * _FOLLOWED / batch)

    @property
    def micro(self) -> int | None:
        """The micro-batch that the policy chose; None if it does not choose one."""
        return None if self.layout is None else self.layout.micro_batch

    def differs(self, batch: int, seen: Observation) -> bool:
        """Whether the step chosen for this observation has another batch or micro-batch than the step before."""
        other_micro = self.micro is not None and seen.micro_batch not in (None, self.micro)
        return batch != self.batch or other_micro

    def lay_out(self, batch: int, count: int, *, replicas: int, split: bool) -> Plan:
        """The plan of a step of ``count`` samples at a global batch of ``batch``; an epoch's last may be short.

        With ``split`` a plan of a single micro-batch for each replica is cut in two, so that it can be measured.
        """
        key = (batch, count, replicas, split, self.layout, self.max_micro, self.devices)
        if key != self._plan_key:  # mostly it is the plan of the step before
            high = self._high if self.layout is None else _least(self.layout.micro_batch, self._layout_high)
            high = _spread(_least(high, self.max_micro), self.devices)
            self._plan, self._plan_key = self._make_plan(batch, count, replicas, split, high), key
        return self._plan

    def _make_plan(self, batch: int, count: int, replicas: int, split: bool, high: int | None) -> Plan:
        if self._fill:
            return _filled(batch, count, replicas, high=high, half=split, devices=self.devices)
        bounds = {
            "max_micro": high,
            "min_micro": self._low if self._low is None or high is None else min(self._low, high),
            "constant_micro": self._constant,
            "capacity": self._capacity,
        }
        if count == batch:
            layout = plan(batch, replicas, **bounds)
        else:
            if self._constant:
                high = plan(batch, replicas, **bounds).micro_batch
            layout = plan_remainder(
                count, replicas, max_micro=high, constant_micro=self._constant, capacity=self._capacity
            )
        if split and layout.accumulation == 1 and layout.micro_batch > 1:
            layout = halved(layout)
        return with_equal_rounds(layout) if self.even else layout

    def _fits(self, batch: int, replicas: int) -> bool:
        if (batch, replicas) != self._fit_key:
            self._fit_key, self._fit = (batch, replicas), self._can_plan(batch, replicas)
        return self._fit

    def _can_plan(self, batch: int, replicas: int) -> bool:
        high = _spread(self._high, self.devices)
        bounds = {"max_micro": high, "min_micro": self._low, "constant_micro": self._constant}
        try:
            plan(batch, replicas, capacity=self._capacity, **bounds)
        except PlanError:
            return False
        return True

    def possible_replicas(self) -> list[int] | None:
        """On how many replicas a step can be laid out; None if that depends on the policy's later choices."""
        if self._capacity is not None:
            return [len(self._capacity)]
        bounded = self._bounded_policy
        if bounded is not None and bounded.max is not None:
            among = range(1, min(bounded.max, MOST_REPLICAS) + 1)
            return [world.replicas for world in bounded.worlds(among) if world.batches is not None]
        if self._fixed is None:
            return None
        bounds = {"max_micro": self._high, "min_micro": self._low, "constant_micro": self._constant}
        batch = self._fixed.size
        return feasible_replicas(batch, among=range(1, min(batch, MOST_REPLICAS) + 1), **bounds)

    @property
    def bounds(self) -> str:
        """The settings that rule out other numbers of replicas, as a user writes them."""
        if self._capacity is not None:
            return f"capacity={self._capacity}"
        if self._bounded_policy is not None:
            return f"max={self._bounded_policy.max}, micro={self._bounded_policy.micro!r}"
        batch = f"batch={getattr(self.policy, 'size', self.batch)}"
        return batch if self._low is None and not self._constant else f"{batch}, micro={(self._low, self._high)}"

    def enter_world(self) -> None:
        """Mark the world as changed and drop the pending step time, on old and new members alike."""
        self.resized, self._untimed = True, None

    def agree_on_memory(self, fits: float) -> None:
        """Bound micro-batches by what fits the memory of every replica; infinite where that is not known."""
        self.max_micro = None if fits == math.inf else max(int(fits), 1)

    def timed(self, step_s: float) -> None:
        """Add the time of the step before on its slowest replica; every replica must pass the same number."""
        if self._untimed is not None and step_s > 0:
            self.profile.add_step(self._untimed, step_s)
        self._untimed = None

    def committed(
        self, layout: Plan, *, batch: int, samples: int, gain: float, nodes: int, as_chosen: bool = True
    ) -> None:
        """Count a committed step; ``samples`` is the total before it. ``timed`` adds its time later.

        A step that was not laid out ``as_chosen`` is not timed: its time says nothing about a layout, and the next step
        is not a change of shape.
        """
        self._followed = batch * self.part_followed(batch)
        if batch != self.batch:
            self.batch, self.batch_since = batch, samples
        self.step += 1
        self.progress += gain
        self.resized = False
        # The policy's choice, because the end of an epoch or a split may have made this step's micro-batches smaller.
        micro = -(-layout.micro_batch // self.devices)
        self._micro_before = micro if self.layout is None else self.layout.micro_batch
        if layout.global_batch == batch and as_chosen:  # the short last step of an epoch says little
            self._untimed = layout.replicas * self.devices, nodes, micro, layout.accumulation

    def copy(self) -> Pace:
        """A pace with the same counts, which move on their own from here; both share the step times."""
        return copy.copy(self)

    def state_dict(self) -> dict[str, Any]:
        """Counts and measurements, the same on every replica."""
        return {
            "base": self.base,
            "step": self.step,
            "progress": self.progress,
            "batch": self.batch,
            "batch_since": self.batch_since,
            "followed": self._followed,
            "micro_seen": self._micro_before,
            "max_micro": self.max_micro,
            "profile": self.profile.state_dict(),
            "layout": None if self.layout is None else dataclasses.asdict(self.layout),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self.step, self.progress = int(state["step"]), float(state["progress"])
        self.batch, self.batch_since = int(state["batch"]), int(state["batch_since"])
        self._followed = state.get("followed", float(self.batch) if self.step else None)  # not in earlier versions
        self._micro_before, self.max_micro = state["micro_seen"], state["max_micro"]
        self.profile.load_state_dict(state["profile"])
        self.layout = None if state["layout"] is None else Layout(**state["layout"])


def _least(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return one if other is None else other
    return min(one, other)


def _spread(micro: int | None, devices: int) -> int | None:
    """The largest micro-batch of all devices of a replica, by that of one device."""
    return None if micro is None else micro * devices


def _filled(batch: int, count: int, replicas: int, *, high: int | None, half: bool, devices: int) -> Plan:
    """Micro-batches of ``high`` samples, of a replica's share or of ``half`` the step, and one with the rest."""
    if count == batch:
        plan(batch, replicas, max_micro=high)  # raises PlanError if the batch cannot be laid out
    parts = 2 if half else replicas
    part = _spread(-(-(count if half else batch) // (parts * devices)), devices)
    return plan_remainder(count, replicas, max_micro=_least(high, part), constant_micro=True)


def _refuse_bounds(policy: Policy, *, low: int | None, constant: bool) -> None:
    """A policy that chooses the micro-batch has bounds of its own."""
    if constant or low is not None:
        setting = "constant_micro is True" if constant else f"the smallest micro-batch is {low}"
        raise ConfigError(
            f"{setting} and batch is {policy!r}; expected no such bound, because this policy chooses the micro-batch. "
            "Give the bounds to the policy: micro=(16, 256) for a smallest and a largest, micro=64 for one size that "
            "never changes."
        )


def _bounds(micro: Any) -> tuple[int | None, int | None]:
    """The smallest and the largest micro-batch of a number or a pair; None for no bound."""
    if not isinstance(micro, tuple):
        return None, whole_number(micro, name="micro")
    if len(micro) != 2:
        raise ConfigError(f"micro is {micro}; expected (smallest, largest). Give two numbers, or None for no bound.")
    low, high = (None if m is None else whole_number(m, name=f"micro[{place}]") for place, m in enumerate(micro))
    if low is not None and high is not None and low > high:
        raise ConfigError(f"micro is ({low}, {high}); expected (smallest, largest). Swap them.")
    return low, high
