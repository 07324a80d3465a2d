"""How large the next step is and how it is laid out: the policy asked, the plan made, both remembered."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Iterable
from typing import Any

from swell.core.counts import whole_number
from swell.core.feasibility import feasible_replicas
from swell.core.planning import plan, plan_remainder, with_equal_rounds
from swell.core.profile import Profile
from swell.core.protocols import Policy
from swell.core.types import Layout, NoiseEstimate, Observation, Plan, StepTimes
from swell.errors import ConfigError, PlanError
from swell.policies import Fixed
from swell.policies.decision import checked_batch, chosen_layout, lays_out

MOST_REPLICAS = 4096  # that are listed where a batch could feed more


class Pace:
    """Counts what was done and turns it into the next step's batch and plan.

    Every replica keeps the same counts, so every replica comes to the same plan without asking the others.
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
        # Without bounds: the batch the user tuned fits one device; more is for the user to say.
        self._low, self._high = (None, self.base) if micro is None else _bounds(micro)
        if lays_out(policy):
            _check_layouts(policy, low=self._low, constant=constant_micro)
        self._told_high = None if micro is None else self._high  # a bound for policies that choose the micro-batch too
        self._constant, self._capacity = constant_micro, capacity
        self._fill = fill  # whole micro-batches and one with the rest, so that compiled steps share their shapes
        self.devices = 1  # of each replica, which compute every micro-batch together; the policy counts them all
        self._exact = type(policy) is Fixed and policy.tolerance == 0
        self.even = False  # whether replicas compute hand in hand, so that all need as many micro-batches
        self.profile = Profile()
        self.step, self.progress = 0, 0.0
        self.batch, self.batch_since = self.base, 0
        self.layout: Layout | None = None  # what the policy chose, where it lays steps out
        self._untimed: StepTimes | None = None  # the latest step, until the replicas have agreed what it took
        self._micro_seen: int | None = None
        self.resized = False
        self.max_micro: int | None = None  # what every replica's memory holds, as far as they know
        self._asked: tuple[Any, ...] | None = None  # what the latest plan was made for
        self._planned: Plan
        self._tried: tuple[int, int] | None = None  # of what it is known whether it can be laid out
        self._fitted = True

    def observe(self, *, replicas: int, nodes: int, noise: NoiseEstimate | None, **place: Any) -> Observation:
        """All a policy may look at; ``place`` are the ledger's figures."""
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
            micro_batch=self._micro_seen,
            max_micro=_least(self.max_micro, self._told_high),
            profile=self.profile.summaries(),
            **place,
        )

    @property
    def latest_times(self) -> StepTimes | None:
        """The latest step time that the replicas have agreed on: that of the step before the latest."""
        return self.profile.latest

    @property
    def settled(self) -> bool:
        """Whether the policy can only choose the batch of the step before."""
        return self._exact and self.batch == self.policy.size  # type: ignore[attr-defined]

    def choose(self, seen: Observation) -> int:
        """The next global batch; a policy that also lays steps out is asked for that."""
        self.layout = chosen_layout(self.policy, seen)
        return checked_batch(self.policy, seen) if self.layout is None else self.layout.global_batch

    @property
    def micro(self) -> int | None:
        """The micro-batch that the policy chose, where it does."""
        return None if self.layout is None else self.layout.micro_batch

    def differs(self, batch: int, seen: Observation) -> bool:
        """Whether the step that was chosen by what was ``seen`` is laid out otherwise than the one before."""
        other_micro = self.micro is not None and seen.micro_batch not in (None, self.micro)
        return batch != self.batch or other_micro

    def lay_out(self, batch: int, count: int, *, replicas: int, split: bool) -> Plan:
        """The plan of a step of ``count`` samples at a global batch of ``batch``; the last of an epoch may be short."""
        high = self._high if self.layout is None else _least(self.layout.micro_batch, self._told_high)
        high = _spread(_least(high, self.max_micro), self.devices)
        asked = (batch, count, replicas, split, high)
        if asked != self._asked:  # mostly as for the step before
            self._planned, self._asked = self._lay_out(batch, count, replicas, split, high), asked
        return self._planned

    def _lay_out(self, batch: int, count: int, replicas: int, split: bool, high: int | None) -> Plan:
        if self._fill:
            return _filled(batch, count, replicas, high=high, half=split, devices=self.devices)
        bounds = {
            "max_micro": high,
            "min_micro": self._low if self._low is None or high is None else min(self._low, high),
            "constant_micro": self._constant,
            "capacity": self._capacity,
        }
        if count == batch:
            made = plan(batch, replicas, **bounds)
        else:
            if self._constant:
                high = plan(batch, replicas, **bounds).micro_batch
            made = plan_remainder(
                count, replicas, max_micro=high, constant_micro=self._constant, capacity=self._capacity
            )
        if split and made.num_micro_batches == 1 and made.global_batch > 1:
            made = plan_remainder(count, replicas, max_micro=-(-count // 2))
        return with_equal_rounds(made) if self.even else made

    def _fits(self, batch: int, replicas: int) -> bool:
        if (batch, replicas) != self._tried:
            self._tried, self._fitted = (batch, replicas), self._can_plan(batch, replicas)
        return self._fitted

    def _can_plan(self, batch: int, replicas: int) -> bool:
        try:
            plan(
                batch,
                replicas,
                max_micro=_spread(self._high, self.devices),
                min_micro=self._low,
                constant_micro=self._constant,
                capacity=self._capacity,
            )
        except PlanError:
            return False
        return True

    def possible_replicas(self) -> list[int] | None:
        """On how many replicas a step can be laid out; None where that depends on what the policy is yet to choose."""
        if self._capacity is not None:
            return [len(self._capacity)]
        bounded = _bounded(self.policy)
        if bounded is not None and bounded.max is not None:
            among = range(1, min(bounded.max, MOST_REPLICAS) + 1)
            return [world.replicas for world in bounded.worlds(among) if world.batches is not None]
        if not self._exact:
            return None
        batch = int(self.policy.size)  # type: ignore[attr-defined]
        bounds = {"max_micro": self._high, "min_micro": self._low, "constant_micro": self._constant}
        return feasible_replicas(batch, among=range(1, min(batch, MOST_REPLICAS) + 1), **bounds)

    @property
    def bounds(self) -> str:
        """What rules other numbers of replicas out, as a user gave it."""
        if self._capacity is not None:
            return f"capacity={self._capacity}"
        bounded = _bounded(self.policy)
        if bounded is not None:
            return f"max={bounded.max}, micro={bounded.micro!r}"
        given = f"batch={getattr(self.policy, 'size', self.batch)}"
        return given if self._low is None and not self._constant else f"{given}, micro={(self._low, self._high)}"

    def enter_world(self) -> None:
        """Members and newcomers begin alike: told that the world has changed, and without a step yet to be timed."""
        self.resized, self._untimed = True, None

    def agree_on_memory(self, fits: Iterable[float]) -> None:
        """Take in what each replica's memory holds: the least of it bounds all."""
        least = min(fits)
        self.max_micro = None if math.isinf(least) else max(int(least), 1)

    def timed(self, step_s: float) -> None:
        """Take in what the step before took on its slowest replica: every replica must be told the same number."""
        if self._untimed is not None and step_s > 0:
            self.profile.add(dataclasses.replace(self._untimed, step_s=step_s))
        self._untimed = None

    def committed(
        self, made: Plan, *, batch: int, samples: int, gain: float, nodes: int, as_chosen: bool = True
    ) -> None:
        """Count a committed step; ``samples`` is the total before it. Its time is told later, by ``timed``.

        One that was not laid out ``as_chosen`` is not timed: it tells nothing of any choice, and what comes after it is
        no change of shape.
        """
        if batch != self.batch:
            self.batch, self.batch_since = batch, samples
        self.step += 1
        self.progress += gain
        self.resized = False
        # What was chosen: an epoch's end or a split step may have been laid out in smaller ones.
        micro = -(-made.micro_batch // self.devices)
        self._micro_seen = micro if self.layout is None else self.layout.micro_batch
        if made.global_batch == batch and as_chosen:  # the short last step of an epoch tells little
            self._untimed = StepTimes(
                replicas=made.replicas * self.devices,
                nodes=nodes,
                micro_batch=micro,
                accumulation=made.accumulation,
                step_s=0.0,
            )

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
            "micro_seen": self._micro_seen,
            "max_micro": self.max_micro,
            "profile": self.profile.state_dict(),
            "layout": None if self.layout is None else dataclasses.asdict(self.layout),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self.step, self.progress = int(state["step"]), float(state["progress"])
        self.batch, self.batch_since = int(state["batch"]), int(state["batch_since"])
        self._micro_seen, self.max_micro = state["micro_seen"], state["max_micro"]
        self.profile.load_state_dict(state["profile"])
        self.layout = None if state["layout"] is None else Layout(**state["layout"])


def _bounded(policy: Any) -> Any:
    """The policy, or one within it, that knows its bounds in every world (``worlds``); None where none does."""
    while not hasattr(policy, "worlds") and hasattr(policy, "policy"):
        policy = policy.policy
    return policy if hasattr(policy, "worlds") else None


def _least(*bounds: int | None) -> int | None:
    return min((bound for bound in bounds if bound is not None), default=None)


def _spread(micro: int | None, devices: int) -> int | None:
    """The largest micro-batch of one device as that of all devices of a replica."""
    return None if micro is None else micro * devices


def _filled(batch: int, count: int, replicas: int, *, high: int | None, half: bool, devices: int) -> Plan:
    """Micro-batches of ``high`` samples, of a replica's share or of ``half`` the step, and one with the rest."""
    if count == batch:
        plan(batch, replicas, max_micro=high)  # raises PlanError where the batch cannot be laid out
    parts = 2 if half else replicas
    part = _spread(-(-(count if half else batch) // (parts * devices)), devices)
    return plan_remainder(count, replicas, max_micro=_least(high, part), constant_micro=True)


def _check_layouts(policy: Policy, *, low: int | None, constant: bool) -> None:
    """A policy that chooses the micro-batch keeps the bounds that it was made with."""
    given = "constant_micro=True" if constant else f"a smallest micro-batch of {low}"
    if constant or low is not None:
        raise ConfigError(
            f"swell.Job was given {given} with {policy!r}, which chooses the micro-batch itself. Give the bounds to "
            "the policy: micro=(16, 256) for a smallest and a largest, micro=64 for one size that never changes."
        )


def _bounds(micro: Any) -> tuple[int | None, int | None]:
    """The smallest and the largest micro-batch that are meant by a number or a pair; None where there is no bound."""
    if not isinstance(micro, tuple):
        return None, whole_number(micro, name="micro")
    if len(micro) != 2:
        raise ConfigError(f"micro={micro} has {len(micro)} entries: expected (smallest, largest). Give both, or None.")
    low, high = (None if m is None else whole_number(m, name=f"micro[{place}]") for place, m in enumerate(micro))
    if low is not None and high is not None and low > high:
        raise ConfigError(f"micro=({low}, {high}) crosses: expected (smallest, largest). Swap them.")
    return low, high
