"""The arithmetic of elastic training, free of torch: values, events, seams, orders of samples, layouts of steps."""

from __future__ import annotations

from swell.core.events import Event, from_json, to_json
from swell.core.ledger import Ledger
from swell.core.order import Given, Sequential, Shuffled, Weighted
from swell.core.permutation import permute
from swell.core.planning import batch_bounds, feasible_replicas, nearest_batches, plan, plan_remainder
from swell.core.protocols import Collective, Order, Policy, Rule, Sink, Stateful
from swell.core.types import Factors, MicroBatch, Moments, NoiseEstimate, Observation, Plan, ScaleState, StepTimes
from swell.core.world_bounds import WorldBounds, world_bounds

__all__ = [
    "Collective",
    "Event",
    "Factors",
    "Given",
    "Ledger",
    "MicroBatch",
    "Moments",
    "NoiseEstimate",
    "Observation",
    "Order",
    "Plan",
    "Policy",
    "Rule",
    "ScaleState",
    "Sequential",
    "Shuffled",
    "Sink",
    "Stateful",
    "StepTimes",
    "Weighted",
    "WorldBounds",
    "batch_bounds",
    "feasible_replicas",
    "from_json",
    "nearest_batches",
    "permute",
    "plan",
    "plan_remainder",
    "to_json",
    "world_bounds",
]
