"""The layout of one global batch: ``steps``, ``batch_size``, ``global_batch_size``, ``gpus`` and ``master`` after init.

These are module values because Run:AI's are: one job in a process. ``init`` is in the module of each framework,
``elastic.torch`` and ``elastic.keras``; asking for a value before it was called is an error that says so.
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
    global_batch_size: int, max_gpu_batch_size: int, *, gpus: int, gpus_here: int = 1, master: bool = True
) -> Plan:
    """Set the module's values for a global batch on ``gpus`` devices, ``gpus_here`` of them this process's own.

    ``steps`` micro-batches of ``batch_size`` on each device never exceed ``max_gpu_batch_size``. Where they cannot make
    the global batch exactly they make a little more, and a warning says how much.

    Raises ``PlanError`` where there are more devices than samples, ``ConfigError`` for numbers that are no counts.

    >>> [establish(256, 64, gpus=gpus).accumulation for gpus in (1, 2, 4)]
    [4, 2, 1]
    """
    steps = lay_out(global_batch_size, gpus, max_micro=max_gpu_batch_size).accumulation
    # Every device takes as many steps as the one that needs most, which makes the batches as small as can be.
    chosen = lay_out(global_batch_size, gpus, max_micro=max_gpu_batch_size, min_accumulation=steps)
    size = chosen.micro_batch
    _values.update(
        plan=chosen,
        steps=steps,
        batch_size=size,
        global_batch_size=global_batch_size,
        gpus=gpus,
        master=master,
        loader_batch_size=size * gpus_here,
    )
    if size * steps * gpus != global_batch_size:
        warnings.warn(
            f"{steps} step(s) of {size} samples on {gpus} device(s) make {size * steps * gpus} samples, not "
            f"{global_batch_size}: it does not divide. Choose another global batch, or use swell.Job, which lays out "
            "any batch exactly.",
            stacklevel=3,
        )
    return chosen


def __getattr__(name: str) -> Any:
    if name in _values:
        return _values[name]
    if name in FRAMEWORKS:
        return importlib.import_module(f"{__name__}.{name}")
    if name in VALUES:
        raise AttributeError(f"runai.elastic.{name} is known after init: call runai.elastic.torch.init(...) first.")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
