"""Policies from their text in a log, so that their decisions can be made, and explained, again."""

from __future__ import annotations

import ast
from typing import Any

from swell.core.protocols import Policy
from swell.errors import ConfigError
from swell.policies.catalog import COMBINATORS, POLICIES
from swell.policies.one_pass import OnePass


def policy_from_text(text: str) -> Policy:
    """The policy whose ``repr`` this is: one of swell's own with plain arguments. No code is evaluated.

    Raises ``ConfigError`` for anything else: a user's own policy, text that was cut, other code.

    >>> policy_from_text("Clamp(policy=Fixed(size=256, base=64), low=100, high=200)").base
    64
    """
    try:
        node = ast.parse(text, mode="eval").body
        if not isinstance(node, ast.Call):
            raise ValueError("it is not a call")
        return _built(node)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        raise ConfigError(
            f"the text of a policy is {text[:200]!r} ({error}); expected the repr of one of swell's own policies, such "
            "as Goodput(base=128, max=4096). Build other policies in Python and pass them to swell.policies.replay."
        ) from error


def _built(node: ast.expr) -> Any:
    if not isinstance(node, ast.Call):
        return ast.literal_eval(node)
    known = {cls.__name__: cls for cls in (*POLICIES.values(), *COMBINATORS.values(), OnePass)}
    if not isinstance(node.func, ast.Name) or node.func.id not in known:
        raise ValueError(f"{ast.unparse(node.func)} is none of {', '.join(sorted(known))}")
    if node.args or any(keyword.arg is None for keyword in node.keywords):
        raise ValueError("a policy prints the name of every argument")
    return known[node.func.id](**{str(keyword.arg): _built(keyword.value) for keyword in node.keywords})
