"""The states of torchmetrics' metrics, joined over workers; every private name of torchmetrics that swell touches."""

# pyright: reportMissingImports=false
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torchmetrics
from torch import Tensor, nn
from torchmetrics import Metric, SumMetric
from torchmetrics.utilities.data import dim_zero_cat, dim_zero_mean

from swell.errors import DependencyError

OLDEST, TESTED = (1, 8), "1.9.0"  # before, states of PearsonCorrCoef with different numbers of updates did not fit
_NAMES = ("_reductions", "_computed", "distributed_available_fn", "update_count", "sync", "unsync")


def require_known_release() -> None:
    """Raise ``DependencyError`` where torchmetrics is older than what joins states right, or has moved what is used."""
    version, metric = torchmetrics.__version__, SumMetric()
    release = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    missing = [name for name in _NAMES if not hasattr(metric, name)]
    if release < OLDEST or missing:
        lacks = f", whose metrics have no {', '.join(missing)}" if missing else ""
        raise DependencyError(
            f"torchmetrics is {version}{lacks}; expected {'.'.join(map(str, OLDEST))} or newer, which joins metrics as "
            f"{TESTED} does. Run pip install torchmetrics=={TESTED}, or leave validation='split' out."
        )


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
    lists = [name for name in metric._reductions if isinstance(getattr(metric, name), list)]
    joined = all(metric._reductions[name] is dim_zero_cat for name in lists)
    return joined and dim_zero_mean not in metric._reductions.values()


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
    joined = {name: getattr(metric, name) for name in metric._reductions}
    metric.unsync()
    for name, value in joined.items():
        setattr(metric, name, [value] if isinstance(getattr(metric, name), list) else value)
    metric._computed = None  # a step may have asked for the value so far


def _together() -> bool:
    return True


def _alone() -> bool:
    return False
