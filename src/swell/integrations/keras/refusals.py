"""What would break a global batch apart or leave it incomplete, refused before it trains."""

# pyright: reportMissingImports=false, reportMissingModuleSource=false, reportAttributeAccessIssue=false
from __future__ import annotations

from types import FrameType
from typing import Any

import keras

from swell.errors import ConfigError, LoopError
from swell.loop.statistics import Statistics


def require_matching(model: Any, optimizer: Any) -> None:
    """Require that the model was compiled with this optimizer, in a way that runs one pass at a time."""
    refuse_loss_scale(model.optimizer)
    if optimizer is None or model.optimizer is not optimizer:
        raise LoopError(
            f"the model is compiled with an optimizer of type {type(model.optimizer).__name__}; expected this "
            "Elastic's own. Compile it with model.compile(optimizer=elastic.optimizer('adam'), ...), or call "
            "elastic.fit(model, x, y)."
        )
    if model.steps_per_execution != 1:
        raise ConfigError(
            f"steps_per_execution is {model.steps_per_execution}; expected 1, because more would run past the end of a "
            "global batch. Compile the model with steps_per_execution=1."
        )


def refuse_statistics(statistics: Statistics | None) -> None:
    """Refuse ways to measure that compiled steps do not have."""
    if statistics is not None and (statistics.alone != "split" or statistics.exact):
        raise ConfigError(
            f"statistics is {statistics!r}; expected alone='split' and exact=False, because Keras's steps keep no copy "
            "of a gradient and their figures are read later. Leave both out."
        )


def refuse_options(options: dict[str, Any]) -> None:
    """Refuse arguments of ``model.fit`` that mean something else here, or nothing."""
    refused = {"batch_size", "steps_per_epoch", "validation_split"} & {name for name, value in options.items() if value}
    if refused:
        raise ConfigError(
            f"elastic.fit was given {', '.join(sorted(refused))}; expected none of them. The batch is "
            "Elastic(batch=...), an epoch is every sample once, and validation data is given as validation_data."
        )


def refuse_unused(frame: FrameType | None) -> None:
    """Refuse arguments of ``model.fit`` that Keras silently ignores beside ``elastic.data``.

    ``frame`` is Keras's own: its locals are the only place in which they can still be seen.
    """
    names = ("y", "sample_weight", "class_weight", "batch_size", "steps_per_epoch")
    arguments = {} if frame is None else frame.f_locals
    unused = [name for name in names if arguments.get(name) is not None]
    if unused:
        raise ConfigError(
            f"fit was given {', '.join(unused)} beside elastic.data(...); expected none, because Keras would ignore "
            "it. Give labels and weights to elastic.data(x, y, sample_weight, class_weight=...); the batch is "
            "Elastic(batch=...), and an epoch is every sample once."
        )


def refuse_fixed_batch(model: Any) -> None:
    """Refuse a model that takes batches of one size only: a global batch is cut into passes of several sizes."""
    if isinstance(model, keras.Sequential):  # without an Input it notes the size of the first batch, and takes any
        return
    sizes = {tensor.shape[0] for tensor in getattr(model, "inputs", None) or ()} - {None}
    if sizes:
        raise ConfigError(
            f"the model takes batches of exactly {', '.join(map(str, sorted(sizes)))} samples; expected any size, "
            "because a global batch is cut into passes of several sizes. Make it with keras.Input(shape), without a "
            "batch size."
        )


def refuse_sums(loss: Any) -> None:
    """Refuse a loss that adds up over a pass: its gradient would depend on how a global batch is cut."""
    if any(getattr(one, "reduction", None) == "sum" for one in keras.tree.flatten(loss)):
        raise ConfigError(
            "the loss has reduction='sum'; expected a mean, because the gradient of a sum depends on how a global "
            "batch is cut. Use reduction='sum_over_batch_size' and multiply the learning rate by the batch."
        )


def refuse_loss_scale(optimizer: Any) -> None:
    """Refuse float16's loss scaling, which skips single passes."""
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise ConfigError(
            "the optimizer is a LossScaleOptimizer, which Keras adds for mixed_float16; expected a plain one, because "
            "loss scaling skips single passes and leaves a global batch incomplete. Train in mixed_bfloat16, or "
            "compile with auto_scale_loss=False."
        )
