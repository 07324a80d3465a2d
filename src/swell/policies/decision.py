"""Asking a policy: the answer is checked before anything is built on it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable

from swell.core.counts import as_whole
from swell.core.goodput import Outlook, outlook
from swell.core.protocols import (
    ExplainingPolicy,
    FinitePolicy,
    ForecastingPolicy,
    LayoutPolicy,
    NoiseAwaitingPolicy,
    NoiseFollowingPolicy,
    Policy,
)
from swell.core.throughput import fit
from swell.core.types import Decision, Layout, NoiseEstimate, Observation
from swell.errors import ConfigError
from swell.policies.abilities import find, layers


def checked_batch(policy: Policy, seen: Observation) -> int:
    """The global batch the policy chooses, in samples: a plain ``int``, at least 1 and within the ceiling.

    Any other answer of a user's policy (a float, a bool, None, a size below 1) is a ``ConfigError`` that names the
    policy, its answer and the step. Integers of numpy are accepted.
    """
    answer = policy.batch(seen)
    batch = as_whole(answer)
    if batch is None or batch < 1:
        raise ConfigError(
            f"{policy!r} chose the global batch {answer!r} at step {seen.step}; expected a whole number of samples, 1 "
            "or more. Return an int, for example max(1, round(x))."
        )
    return batch if seen.ceiling is None else min(batch, seen.ceiling)


def chosen_layout(policy: Policy, seen: Observation) -> Layout | None:
    """The batch with its largest micro-batch; None if no layer of the policy chooses a micro-batch."""
    inner = find(policy, LayoutPolicy)
    return None if inner is None else layout_by(inner, policy, seen)


def layout_by(inner: LayoutPolicy, policy: Policy, seen: Observation) -> Layout:
    """The same for callers that keep ``inner``, the layer that chooses the micro-batch, because ``find`` is slow.

    The policy around it has the last word on the global batch.
    """
    layout = inner.layout(seen)
    if inner is not policy:
        return dataclasses.replace(layout, global_batch=checked_batch(policy, seen))
    if seen.ceiling is None or layout.global_batch <= seen.ceiling:
        return layout
    return Layout(global_batch=seen.ceiling, micro_batch=min(layout.micro_batch, seen.ceiling))


def lays_out(policy: object) -> bool:
    """Whether the policy chooses the micro-batch too."""
    return find(policy, LayoutPolicy) is not None


def follows_noise(policy: object) -> bool:
    """Whether any layer of the policy acts on the gradient noise."""
    return any(isinstance(layer, NoiseFollowingPolicy) and layer.follows_noise for layer in layers(policy))


def awaiting(policy: object) -> Callable[[NoiseEstimate | None], bool]:
    """A function that says whether the policy waits for a surer estimate than this one; never if it follows no noise.

    >>> from swell.policies import Fixed, NormTest
    >>> awaiting(NormTest(64, max=512))(None), awaiting(Fixed(64))(None)
    (True, False)
    """
    if not follows_noise(policy):
        return lambda noise: False
    patient = find(policy, NoiseAwaitingPolicy)
    return _unsure if patient is None else patient.awaits


def _unsure(noise: NoiseEstimate | None) -> bool:
    return noise is None or not noise.sure


def require_noise(policy: object, *, measured: bool) -> None:
    """Refuse a run that does not measure the gradient noise if its policy waits for it."""
    if not measured and follows_noise(policy):
        raise ConfigError(
            f"statistics is False and batch is {policy!r}; expected statistics, because this policy waits for the "
            "gradient noise and would never change the batch. Leave statistics out, or choose a policy that does not "
            "follow the noise."
        )


def predicted_outlook(policy: object, seen: Observation, replicas: Iterable[int]) -> dict[int, Outlook]:
    """Progress per second on other numbers of replicas, relative to now. Empty before a step was measured.

    If no layer of the policy forecasts it, this is samples per second at the present batch.
    """
    forecasting = find(policy, ForecastingPolicy)
    if forecasting is not None:
        return forecasting.outlook(seen, replicas)
    if not seen.profile:
        return {}
    now, batch, law = (seen.replicas, seen.nodes), seen.batch, fit(seen.profile)
    return outlook(law, replicas=replicas, now=now, base=batch, max_batch=lambda _: batch, noise_scale=math.inf)


def explanation(policy: object, seen: Observation) -> Decision | None:
    """The decision with its reasons, from the outermost layer that gives any; None if none does."""
    explaining = find(policy, ExplainingPolicy)
    return None if explaining is None else explaining.explain(seen)


def is_finished(policy: object, seen: Observation) -> bool:
    """Whether the policy says that the run is over; a policy without ``finished`` never does."""
    finite = find(policy, FinitePolicy)
    return finite is not None and bool(finite.finished(seen))


def require_policy(policy: object) -> Policy:
    """The policy itself, or ``ConfigError`` if it is none; for wrappers."""
    if isinstance(policy, type) or not isinstance(policy, Policy):
        raise ConfigError(
            f"policy is {policy!r}, which is not a policy; expected an object with a whole number `base` and a method "
            "`batch(seen)`. Wrap a function or a number first: as_policy(function, base=64)."
        )
    return policy
