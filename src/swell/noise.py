"""The gradient noise of any model, measured without training it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from swell.core.counts import whole_number
from swell.core.moment_average import MomentAverage
from swell.core.types import NoiseEstimate
from swell.errors import ConfigError, DataError, LossError
from swell.gradients.norms import squared_norm


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseMeasurement:
    """Signal, noise and the batch size beyond which more samples per step gain little, with an interval."""

    estimate: NoiseEstimate
    samples: int  # that were measured

    @property
    def signal(self) -> float:
        """|G|^2, the squared norm of the true gradient."""
        return self.estimate.total.signal

    @property
    def noise(self) -> float:
        """tr(Sigma), the trace of the per-sample gradient covariance."""
        return self.estimate.total.noise

    @property
    def critical_batch(self) -> float:
        """noise / signal in samples: takes twice the fewest steps and twice the fewest samples (McCandlish 2018)."""
        return self.estimate.total.noise_scale

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the critical batch."""
        return self.estimate.interval

    def steps(self, batch: float) -> float:
        """Steps at this batch size, as a multiple of the fewest that any batch needs: 1 + critical / batch."""
        return 1 + self.critical_batch / batch

    def epochs(self, batch: float) -> float:
        """Samples at this batch size, as a multiple of the fewest that any batch needs: 1 + batch / critical."""
        return 1 + batch / self.critical_batch if self.critical_batch > 0 else float("inf")


def noise_scale(
    model: nn.Module,
    loss_fn: Callable[[nn.Module, Any], Tensor],
    loader: Iterable[Any],
    *,
    batches: int | None = None,
    together: int = 8,
    size_of: Callable[[Any], int] | None = None,
) -> NoiseMeasurement:
    """Measure signal, noise and critical batch size of a model without changing it.

    ``loss_fn(model, batch)`` returns the mean loss over a batch's samples. ``loader`` yields batches of any sizes, and
    small ones are more informative. ``together`` batches make one observation, and at most ``batches`` are read.
    ``size_of(batch)`` counts a batch's samples, by default those of its first tensor. Weights, gradients, buffers, mode
    and random numbers are the same afterwards.

    >>> data = torch.randn(512, 3, generator=torch.Generator().manual_seed(0)).split(4)
    >>> model = nn.Linear(3, 1, bias=False)
    >>> result = noise_scale(model, lambda model, x: (model(x) - x.sum(1, keepdim=True)).square().mean(), data)
    >>> result.samples, result.interval[0] < result.critical_batch < result.interval[1]
    (512, True)
    """
    together = whole_number(together, name="together", at_least=2)
    parameters = [p for p in model.parameters() if p.requires_grad]
    if not parameters:
        raise ConfigError(
            "the model has no parameter that requires a gradient; expected at least one. Set requires_grad=True on the "
            "parameters to measure."
        )
    buffers = [buffer.detach().clone() for buffer in model.buffers()]
    average, samples = MomentAverage(base_batch=1, window=1e12), 0
    source = iter(loader) if batches is None else islice(loader, whole_number(batches, name="batches", at_least=2))
    try:
        with torch.random.fork_rng(enabled=True):
            while len(group := list(islice(source, together))) >= 2:
                sizes = [_size(batch, size_of) for batch in group]
                small, big = _observe(model, loss_fn, parameters, group, sizes)
                average.update([(small, big)], count=len(sizes), batch=sum(sizes))
                samples += sum(sizes)
    finally:
        with torch.no_grad():
            for buffer, before in zip(model.buffers(), buffers, strict=True):
                buffer.copy_(before)
    estimate = average.estimate()
    if estimate is None:
        raise DataError(
            f"{samples} samples gave no estimate; expected at least 2 batches with finite gradients. Pass more data, "
            "or use a smaller batch size."
        )
    return NoiseMeasurement(estimate=estimate, samples=samples)


def _observe(
    model: nn.Module,
    loss_fn: Callable[..., Tensor],
    parameters: list[nn.Parameter],
    batches: list[Any],
    sizes: list[int],
) -> tuple[float, float]:
    """A and N of one group of batches."""
    total, small = sum(sizes), 0.0
    mean: Sequence[Tensor | None] = [None] * len(parameters)
    for batch, size in zip(batches, sizes, strict=True):
        loss = loss_fn(model, batch)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            raise LossError(
                f"the result of loss_fn is {type(loss).__name__}; expected a tensor of one number. Return the batch's "
                "mean loss."
            )
        gradients = torch.autograd.grad(loss.reshape(()), parameters, allow_unused=True)
        small += size / total * float(squared_norm(gradients))
        parts = [
            None if g is None else g.to_dense() * (size / total) if g.is_sparse else g * (size / total)
            for g in gradients
        ]
        mean = [p if m is None else m if p is None else m + p for m, p in zip(mean, parts, strict=True)]
    return small, float(squared_norm(mean))


def _size(batch: Any, size_of: Callable[[Any], int] | None) -> int:
    if size_of is not None:
        return whole_number(size_of(batch), name="size_of(batch)")
    while isinstance(batch, (list, tuple, dict)):
        if not batch:
            break
        batch = next(iter(batch.values())) if isinstance(batch, dict) else batch[0]
    if isinstance(batch, Tensor) and batch.ndim > 0:
        return batch.shape[0]
    raise ConfigError(
        f"a batch is {type(batch).__name__}; expected a tensor to count its samples, or a list, tuple or dict that "
        "starts with one. Pass size_of=."
    )
