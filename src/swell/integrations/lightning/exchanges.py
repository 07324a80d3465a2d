"""Values of all workers, for the calls by which Fabric's users exchange them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from swell.checkpoint.transfer import gather_values
from swell.errors import ConfigError
from swell.integrations.lightning.run import Run

_REDUCTIONS = {
    "mean": lambda stack: stack.mean(0) if stack.is_floating_point() else stack.double().mean(0),
    "sum": lambda stack: stack.sum(0),
    "max": lambda stack: stack.amax(0),
    "min": lambda stack: stack.amin(0),
}


def gathered(run: Run, value: Any) -> list[Any]:
    """Every worker's value in the order of ranks; in the loop over epochs also where a worker is lost meanwhile."""
    if run.begun and run.job.engine.planner.in_turn:
        return run.job.engine.sharing.gather(value)
    return gather_values(run.collective, value)


def reduced(values: list[Tensor], operation: Any) -> Tensor:
    """The tensors as one; ``operation`` is a name, or one of ``torch.distributed.ReduceOp``."""
    name = str(operation).rsplit(".", 1)[-1].lower().replace("avg", "mean")
    if name not in _REDUCTIONS:
        raise ConfigError(f"reduce_op is {operation!r}; expected one of {', '.join(_REDUCTIONS)}. Give its name.")
    return _REDUCTIONS[name](torch.stack(values))
