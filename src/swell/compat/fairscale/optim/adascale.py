"""The module in which FairScale keeps both optimizers; ``AdaScaleWrapper`` makes the inner one itself."""

from __future__ import annotations

from typing import Any, Literal

from torch.optim import SGD, Optimizer

from swell.compat.fairscale.adascale import AdaScale
from swell.core.protocols import Rule

__all__ = ["AdaScale", "AdaScaleWrapper"]


class AdaScaleWrapper(AdaScale):
    """``AdaScale`` around an optimizer that it makes itself: ``AdaScaleWrapper(params, optim_cls=SGD, lr=0.1)``.

    The arguments are those of ``AdaScale``; all others go to ``optim_cls``.
    """

    def __init__(
        self,
        params: Any,
        world_size: int | None = None,
        scale: float | None = None,
        smoothing: float | None = None,
        num_gradients_to_accumulate: int = 1,
        debias_ewma: bool = True,
        optim_cls: type[Optimizer] = SGD,
        *,
        is_scaled_loss: bool = True,
        process_group: Any = None,
        grad_scaler: Any = None,
        single_worker: Literal["refuse", "differences"] = "refuse",
        micro_batch: int | None = None,
        rule: Rule | str = "adascale",
        **additional_optim_args: Any,
    ) -> None:
        super().__init__(
            optim_cls(params, **additional_optim_args),
            world_size=world_size,
            scale=scale,
            smoothing=smoothing,
            num_gradients_to_accumulate=num_gradients_to_accumulate,
            is_scaled_loss=is_scaled_loss,
            debias_ewma=debias_ewma,
            process_group=process_group,
            grad_scaler=grad_scaler,
            single_worker=single_worker,
            micro_batch=micro_batch,
            rule=rule,
        )
