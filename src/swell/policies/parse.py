"""Policies from their text in a log, so that what they decided can be decided, and explained, again."""

from __future__ import annotations

import ast
from typing import Any

from swell.core.protocols import Policy
from swell.core.types import Decision, Observation
from swell.errors import ConfigError


def policy_from_text(text: str) -> Policy:
    """The policy whose ``repr`` this is, one of swell's own with plain arguments; nothing is evaluated.

    Raises ``ConfigError`` for anything else: a user's own policy, one whose text was cut, other code.

    >>> policy_from_text("Clamp(policy=Fixed(size=256, base=64), low=100, high=200)").base
    64
    """
    try:
        node = ast.parse(text, mode="eval").body
        if not isinstance(node, ast.Call):
            raise ValueError("it calls nothing")
        return _built(node)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        raise ConfigError(
            f"no policy can be read from {text[:200]!r} ({error}); expected what one of swell's own policies prints, "
            "such as Goodput(base=128, max=4096). Build others in Python and hand them to swell.policies.replay."
        ) from error


def explained(policy: Policy, seen: Observation) -> Decision | None:
    """The reasons of the policy, or of the one it wraps, for its choice; None where none gives any."""
    if hasattr(policy, "explain"):
        return policy.explain(seen)  # pyright: ignore[reportAttributeAccessIssue]
    inner = getattr(policy, "policy", None)
    return None if inner is None else explained(inner, seen)


def _built(node: ast.expr) -> Any:
    from swell.policies import COMBINATORS, POLICIES  # the members, of which this file is none

    if not isinstance(node, ast.Call):
        return ast.literal_eval(node)
    known = {cls.__name__: cls for cls in (*POLICIES.values(), *COMBINATORS.values())}
    if not isinstance(node.func, ast.Name) or node.func.id not in known:
        raise ValueError(f"{ast.unparse(node.func)} is none of {', '.join(sorted(known))}")
    if node.args or any(keyword.arg is None for keyword in node.keywords):
        raise ValueError("every argument has its name in what a policy prints")
    return known[node.func.id](**{str(keyword.arg): _built(keyword.value) for keyword in node.keywords})
