"""The layout of one global batch: ``steps``, ``batch_size``, ``global_batch_size``, ``gpus`` and ``master`` after init.

These are module values, as Run:AI's are, so a process has one job. ``init`` is in the module of each framework,
``elastic.torch`` and ``elastic.keras``. Reading a value before ``init`` raises an error that says so.
"""

from __future__ import annotations

import importlib
import warnings
from typing import Any

from swell.core.planning import plan as lay_out
from swell.core.types import Plan

FRAMEWORKS = ("torch", "keras")
VALUES = ("steps", "batch_size", "global_batch_size", "gpus", "master", "loader_batch_size", "plan")

_values: dict[str, Any] = {}


def establish(
    global_batch_size: int, max_gpu_batch_size: int, *, gpus: int, local_gpus: int = 1, master: bool = True
) -> Plan:
    """Set the module's values for a global batch on ``gpus`` devices, ``local_gpus`` of them in this process.

    Each device takes ``steps`` micro-batches of ``batch_size``, which is at most ``max_gpu_batch_size``. If they cannot
    make the global batch exactly, they make a little more, and a warning says how much.

    Raises ``PlanError`` if there are more devices than samples, ``ConfigError`` for numbers that are not counts.

    >>> [establish(256, 64, gpus=gpus).accumulation for gpus in (1, 2, 4)]
    [4, 2, 1]
    """
    steps = lay_out(global_batch_size, gpus, max_micro=max_gpu_batch_size).accumulation
    # Every device takes as many steps as the one that needs most, so the batches are as small as possible.
    chosen = lay_out(global_batch_size, gpus, max_micro=max_gpu_batch_size, min_accumulation=steps)
    size = chosen.micro_batch
    _values.update(
        plan=chosen,
        steps=steps,
        batch_size=size,
        global_batch_size=global_batch_size,
        gpus=gpus,
        master=master,
        loader_batch_size=size * local_gpus,
    )
    if size * steps * gpus != global_batch_size:
        warnings.warn(
            f"{steps} step(s) of {size} samples on {gpus} device(s) make {size * steps * gpus} samples, not "
            f"global_batch_size={global_batch_size}, which does not divide. Choose a batch that divides, or use "
            "swell.Job, which lays out any batch exactly.",
            stacklevel=3,
        )
    return chosen


def __getattr__(name: str) -> Any:
    if name in _values:
        return _values[name]
    if name in FRAMEWORKS:
        return importlib.import_module(f"{__name__}.{name}")
    if name in VALUES:
        raise AttributeError(
            f"runai.elastic.{name} is not set; expected it after init. Call runai.elastic.torch.init(...) first."
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
