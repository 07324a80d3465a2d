"""Gradients in Adam's own metric, by the second moment as it stood before the step."""

# pyright: reportMissingImports=false, reportMissingModuleSource=false, reportAttributeAccessIssue=false
from __future__ import annotations

from typing import Any

import keras
from keras import ops

_SECOND_MOMENTS = ("_velocities", "_accumulated_grads", "_accumulators")  # Adam and RMSprop, Adadelta, Adagrad


def has_second_moment(inner: Any) -> bool:
    """Whether a built optimizer keeps an elementwise second moment."""
    return any(getattr(inner, name, None) for name in _SECOND_MOMENTS)


def squared_norms(inner: Any, gradients: list[Any], variables: list[Any], *, preconditioned: bool) -> list[Any]:
    """The squared norm of all gradients together, plain and, where it is asked for, divided by ``sqrt(v) + eps``.

    ``v`` is bias-corrected where the optimizer corrects it. Sums are made in float32 or better.
    """
    if keras.backend.backend() == "torch" and not preconditioned:
        from swell.integrations.keras.torch_gradients import squared_norm

        total = squared_norm(gradients)
        return [total, ops.zeros_like(total)]
    plain, metric = [], []
    moments = next((found for name in _SECOND_MOMENTS if (found := getattr(inner, name, None))), None)
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
