"""Asking a policy: the answer is checked before anything is built on it."""

from __future__ import annotations

import math
from collections.abc import Iterable

from swell.core.goodput import Outlook, outlook
from swell.core.protocols import FinitePolicy, Policy
from swell.core.throughput import fit
from swell.core.types import Layout, Observation
from swell.errors import ConfigError
from swell.policies.arguments import as_whole


def checked_batch(policy: Policy, seen: Observation) -> int:
    """The global batch the policy chooses, in samples: a plain ``int``, at least 1.

    Anything else a user's policy may answer (a float, a bool, nothing, a size below 1) is a ``ConfigError`` that
    names the policy, its answer and the step. Integers of numpy are welcome.
    """
    answer = policy.batch(seen)
    batch = as_whole(answer)
    if batch is None or batch < 1:
        raise ConfigError(
            f"{policy!r} chose the global batch {answer!r} at step {seen.step}; expected a whole number of samples, 1 "
            "or more. Let it return an int, for example max(1, round(x))."
        )
    return batch


def chosen_layout(policy: Policy, seen: Observation) -> Layout | None:
    """The batch with its largest micro-batch, where the policy, or one that it wraps, chooses that as well.

    Around a policy that lays steps out (``layout(seen)``, as :class:`~swell.policies.Goodput` does) a combinator has
    the last word on the global batch; the micro-batch is the inner one's. None where no policy within chooses one.
    """
    if hasattr(policy, "layout"):
        return policy.layout(seen)  # pyright: ignore[reportAttributeAccessIssue]
    inner = getattr(policy, "policy", None)
    within = None if inner is None else chosen_layout(inner, seen)
    if within is None:
        return None
    return Layout(global_batch=checked_batch(policy, seen), micro_batch=within.micro_batch)


def lays_out(policy: Policy) -> bool:
    """Whether the policy, or one that it wraps, chooses the micro-batch as well."""
    inner = getattr(policy, "policy", None)
    return hasattr(policy, "layout") or (inner is not None and lays_out(inner))


def follows_noise(policy: Policy) -> bool:
    """Whether the policy, or one that it wraps, acts on the gradient noise (``follows_noise``), which it waits for."""
    inner = getattr(policy, "policy", None)
    return bool(getattr(policy, "follows_noise", False)) or (inner is not None and follows_noise(inner))


def require_noise(policy: Policy, *, measured: bool) -> None:
    """Refuse a run that measures no gradient noise where its policy waits for it, and would for ever."""
    if not measured and follows_noise(policy):
        raise ConfigError(
            f"statistics=False measures no gradient noise, and batch={policy!r} waits for it: the batch would never "
            "change. Leave statistics out, or choose a policy that does not follow the noise."
        )


def predicted_outlook(policy: Policy, seen: Observation, replicas: Iterable[int]) -> dict[int, Outlook]:
    """Progress a second on other numbers of replicas, relative to now, by the policy or by one that it wraps.

    Where none of them weighs it, samples a second at the batch that stands. Empty while no step was measured.
    """
    if hasattr(policy, "outlook"):
        return policy.outlook(seen, replicas)  # pyright: ignore[reportAttributeAccessIssue]
    inner = getattr(policy, "policy", None)
    if inner is not None:
        return predicted_outlook(inner, seen, replicas)
    if not seen.profile:
        return {}
    now, batch, law = (seen.replicas, seen.nodes), seen.batch, fit(seen.profile)
    return outlook(law, replicas=replicas, now=now, base=batch, max_batch=lambda _: batch, noise_scale=math.inf)


def is_finished(policy: Policy, seen: Observation) -> bool:
    """Whether the policy says that the run is over; one without ``finished`` never does."""
    return isinstance(policy, FinitePolicy) and bool(policy.finished(seen))


def require_policy(policy: object) -> Policy:
    """The policy itself, once it is known to be one; for those that hold another."""
    if isinstance(policy, type) or not isinstance(policy, Policy):
        raise ConfigError(
            f"{policy!r} is not a policy; expected an object with a whole number `base` and a method `batch(seen)`. "
            "Wrap a function or a number first: as_policy(function, base=64)."
        )
    return policy
