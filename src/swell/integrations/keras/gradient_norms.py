"""Squared norms of gradients, plain and in Adam's metric by the second moment as it was before the step."""

# pyright: reportMissingImports=false, reportMissingModuleSource=false, reportAttributeAccessIssue=false
from __future__ import annotations

from typing import Any

import keras
from keras import ops

_SECOND_MOMENTS = ("_velocities", "_accumulated_grads", "_accumulators")  # Adam and RMSprop, Adadelta, Adagrad


def squared_norms(inner: Any, gradients: list[Any], variables: list[Any], *, preconditioned: bool) -> list[Any]:
    """The squared norm of all gradients together, plain and, if ``preconditioned``, divided by ``sqrt(v) + eps``.

    ``v`` is bias-corrected if the optimizer corrects it. Sums are computed in float32 or better.
    """
    if keras.backend.backend() == "torch" and not preconditioned:
        from swell.integrations.keras.torch_gradients import squared_norm

        total = squared_norm(gradients)
        return [total, ops.zeros_like(total)]
    plain, metric = [], []
    moments = next((held for name in _SECOND_MOMENTS if (held := getattr(inner, name, None))), None)
    for gradient, variable in zip(gradients, variables, strict=True):
        gradient = _wide(gradient)
        plain.append(ops.sum(ops.square(gradient)))
        if preconditioned and moments is not None:
            second = _wide(moments[inner._get_variable_index(variable)])
            beta = getattr(inner, "beta_2", None)
            if beta is not None:
                steps = ops.maximum(ops.cast(inner.iterations, second.dtype), 1)
                second = second / (1 - ops.power(ops.cast(beta, second.dtype), steps))
            metric.append(ops.sum(ops.square(gradient / (ops.sqrt(second) + inner.epsilon))))
    total = _total(plain)
    return [total, _total(metric) if metric else ops.zeros_like(total)]


def _wide(tensor: Any) -> Any:
    tensor = ops.convert_to_tensor(tensor)
    return ops.cast(tensor, "float32") if str(tensor.dtype).rpartition(".")[2] in ("float16", "bfloat16") else tensor


def _total(parts: list[Any]) -> Any:
    return ops.sum(ops.stack(parts))
