"""The states of torchmetrics' metrics, joined over workers; every private name of torchmetrics that swell touches."""

# pyright: reportMissingImports=false
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torchmetrics import Metric
from torchmetrics.utilities.data import dim_zero_cat, dim_zero_mean


def metrics_of(module: nn.Module) -> dict[str, Metric]:
    """The metrics of a module by their names in it."""
    return {name: part for name, part in module.named_modules() if isinstance(part, Metric)}


def keep_local(metric: Metric) -> None:
    """Let a metric exchange nothing: its exchange would use the group that is formed again when a worker is lost."""
    metric.distributed_available_fn = _alone


def can_join(metric: Metric) -> bool:
    """Whether parts of its state give the whole one: not where it is a mean of unknown weight, or lists of any length.

    A list that is joined end to end can have any length.
    """
    lists = [name for name, value in metric.metric_state.items() if isinstance(value, list)]
    reductions = metric._reductions
    return dim_zero_mean not in reductions.values() and all(reductions[name] is dim_zero_cat for name in lists)


def captured(metric: Metric) -> list[Tensor]:
    """Its state, in the order in which ``join`` takes it."""
    tensors: list[Tensor] = []

    def note(tensor: Tensor, group: Any = None) -> list[Tensor]:
        tensors.append(tensor)
        return [tensor]

    metric.sync(dist_sync_fn=note, distributed_available=_together)
    metric.unsync()
    return tensors


def join(metric: Metric, parts: Sequence[Sequence[Tensor]]) -> None:
    """Give it the state that it would have if it had seen what all the parts have seen, in their order."""
    columns = iter(zip(*parts, strict=True))

    def take(tensor: Tensor, group: Any = None) -> list[Tensor]:
        column = [part.to(tensor.device) for part in next(columns)]
        return [part for part in column if part.numel()] or column[:1]

    metric.sync(dist_sync_fn=take, distributed_available=_together)
    joined = dict(metric.metric_state)
    metric.unsync()
    for name, value in joined.items():
        setattr(metric, name, [value] if isinstance(getattr(metric, name), list) else value)
    metric._computed = None  # a step may have asked for the value so far


def _together() -> bool:
    return True


def _alone() -> bool:
    return False
