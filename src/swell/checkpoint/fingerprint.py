"""Which model a checkpoint is of: the names, shapes and types of its tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

_MOST_NAMED = 8  # of each kind of difference, so that a message stays readable


def fingerprint(state: Any) -> dict[str, str]:
    """Each tensor of a state by its dotted name, with its type and (whole, unsharded) shape.

    >>> fingerprint({"layer": {"weight": torch.zeros(2, 3)}, "epoch": 4})
    {'layer.weight': 'float32[2, 3]'}
    """
    return dict(_tensors(state, ""))


def differences(saved: Mapping[str, str], wanted: Mapping[str, str]) -> str:
    """What a checkpoint's model lacks, has beyond, or has otherwise than the model at hand; empty when they agree.

    >>> differences({"weight": "float32[2]", "old": "int64[]"}, {"weight": "float32[3]", "new": "int64[]"})
    "the checkpoint lacks 'new'; the model lacks 'old';
    they differ in 'weight' (float32[2] saved, float32[3] in the model)"
    """
    lacking = [repr(name) for name in wanted if name not in saved]
    beyond = [repr(name) for name in saved if name not in wanted]
    other = [
        f"{name!r} ({saved[name]} saved, {wanted[name]} in the model)"
        for name in wanted
        if name in saved and saved[name] != wanted[name]
    ]
    said = [("the checkpoint lacks", lacking), ("the model lacks", beyond), ("they differ in", other)]
    return "; ".join(f"{what} {_listed(names)}" for what, names in said if names)


def _tensors(state: Any, name: str) -> Iterator[tuple[str, str]]:
    if isinstance(state, torch.Tensor):
        yield name, f"{str(state.dtype).removeprefix('torch.')}{list(state.shape)}"
        return
    items = (
        state.items() if isinstance(state, Mapping) else enumerate(state) if isinstance(state, (list, tuple)) else ()
    )
    for key, value in items:
        yield from _tensors(value, f"{name}.{key}" if name else str(key))


def _listed(names: list[str]) -> str:
    rest = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {rest} more" if rest > 0 else "")
