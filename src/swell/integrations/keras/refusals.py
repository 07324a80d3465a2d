"""What would tear a global batch apart, or leave it half done, refused before it trains."""

# pyright: reportMissingImports=false, reportMissingModuleSource=false, reportAttributeAccessIssue=false
from __future__ import annotations

from types import FrameType
from typing import Any

import keras

from swell.errors import ConfigError, LoopError


def require_matching(model: Any, optimizer: Any) -> None:
    """The model was compiled with this optimizer, in a way that runs one pass at a time."""
    refuse_loss_scale(model.optimizer)
    if optimizer is None or model.optimizer is not optimizer:
        raise LoopError(
            "the model was not compiled with this Elastic's optimizer. Compile it with "
            "model.compile(optimizer=elastic.optimizer('adam'), ...), or call elastic.fit(model, x, y)."
        )
    if model.steps_per_execution != 1:
        raise ConfigError(
            f"the model was compiled with steps_per_execution={model.steps_per_execution}, which would run past the "
            "end of a global batch. Compile it with steps_per_execution=1."
        )


def refuse_options(options: dict[str, Any]) -> None:
    """Arguments of ``model.fit`` that mean something else here, or nothing."""
    refused = {"batch_size", "steps_per_epoch", "validation_split"} & {name for name, value in options.items() if value}
    if refused:
        raise ConfigError(
            f"elastic.fit does not take {', '.join(sorted(refused))}: the batch is Elastic(batch=...), an epoch is "
            "every sample once, and validation data is given as validation_data."
        )


def refuse_unused(frame: FrameType | None) -> None:
    """Arguments of ``model.fit`` that Keras drops without a word beside data of ours: it takes that as it is.

    ``frame`` is Keras's own, in which they are still to be seen; there is no other place where they are.
    """
    names = ("y", "sample_weight", "class_weight", "batch_size", "steps_per_epoch")
    seen = {} if frame is None else frame.f_locals
    unused = [name for name in names if seen.get(name) is not None]
    if unused:
        raise ConfigError(
            f"fit was given {', '.join(unused)} beside elastic.data(...), and would leave it unused. Labels and "
            "weights belong to elastic.data(x, y, sample_weight, class_weight=...); the batch is Elastic(batch=...), "
            "and an epoch is every sample once."
        )


def refuse_fixed_batch(model: Any) -> None:
    """A model that takes batches of one size only: a global batch is cut in passes of several."""
    if isinstance(model, keras.Sequential):  # one without an Input notes the size of the first batch, and takes any
        return
    sizes = {tensor.shape[0] for tensor in getattr(model, "inputs", None) or ()} - {None}
    if sizes:
        raise ConfigError(
            f"the model takes batches of exactly {', '.join(map(str, sorted(sizes)))} samples, but a global batch is "
            "cut in passes of several sizes. Make it with keras.Input(shape), without a batch size."
        )


def refuse_sums(loss: Any) -> None:
    """A loss that adds up over a pass: its gradient would depend on how a global batch is cut."""
    if any(getattr(one, "reduction", None) == "sum" for one in keras.tree.flatten(loss)):
        raise ConfigError(
            "a loss with reduction='sum' adds up within a pass, and its gradient would depend on how a global batch is "
            "cut. Use reduction='sum_over_batch_size' and a learning rate multiplied by the batch."
        )


def refuse_loss_scale(optimizer: Any) -> None:
    """float16's loss scaling, which skips single passes."""
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise ConfigError(
            "Keras wrapped the optimizer in a LossScaleOptimizer, as it does for mixed_float16; it skips single "
            "passes, which would leave a global batch incomplete. Train in mixed_bfloat16, or compile with "
            "auto_scale_loss=False."
        )
