"""What a trainer wants to know of each update: the gradient's norm, the learning rate, and when it happens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.nn.utils import clip_grad_norm_, get_total_norm
from torch.optim import Optimizer


class UpdateWatch:
    """Clips the whole step's gradient and remembers its norm; tells of the update before and after it.

    ``rate`` reads the schedule's learning rate.
    """

    def __init__(
        self, max_norm: float | None, *, rate: Callable[[], float], before: Callable[[], Any], after: Callable[[], Any]
    ) -> None:
        self._max_norm, self._rate, self._before, self._after = max_norm, rate, before, after
        self.grad_norm: Tensor | None = None
        self.learning_rate: float | None = None

    def watch(self, optimizer: Optimizer) -> None:
        """Follow the steps of an optimizer."""
        optimizer.register_step_pre_hook(self._begin)
        optimizer.register_step_post_hook(self._end)

    def clip(self, parameters: list[Tensor]) -> None:
        """Clip, where a largest norm is given."""
        if self._max_norm and self._max_norm > 0:
            self.grad_norm = clip_grad_norm_(parameters, self._max_norm)
        else:
            self.grad_norm = get_total_norm([each.grad for each in parameters if each.grad is not None])

    def _begin(self, *_: Any) -> None:
        self.learning_rate = self._rate()
        self._before()

    def _end(self, *_: Any) -> None:
        self._after()
