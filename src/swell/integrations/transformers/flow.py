"""When a trainer logs, evaluates, saves and stops: at the base steps that its arguments name."""

# pyright: reportMissingImports=false
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from transformers.trainer_callback import DefaultFlowCallback


class BaseStepFlow(DefaultFlowCallback):
    """Hugging Face's own flow, asked for every base step that an optimizer step has passed.

    ``global_step`` counts base steps. A step at four times the base batch may pass several of them, and one below the
    base batch none. ``evaluating`` is called for each batch of an evaluation.
    """

    def __init__(self, evaluating: Callable[[], None]) -> None:
        self.previous = 0  # global_step before the optimizer step
        self._evaluating = evaluating

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> Any:
        """Decide what follows the optimizer step."""
        reached = state.global_step
        for passed in range(self.previous + 1, reached + 1):
            state.global_step = passed
            control = super().on_step_end(args, state, control, **others)
        state.global_step = reached
        return control

    def on_prediction_step(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """A batch was evaluated."""
        self._evaluating()
