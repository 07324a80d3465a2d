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
    """Signal, noise and the batch size at which more samples a step stop paying, with an interval."""

    estimate: NoiseEstimate
    samples: int  # that were looked at

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
        """noise / signal in samples: twice the fewest steps and twice the fewest samples (McCandlish et al. 2018)."""
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
    """Measure signal, noise and critical batch size of a model as it is; nothing of it is changed.

    ``loss_fn(model, batch)`` gives the mean loss over a batch's samples; ``loader`` yields batches, of any sizes (small
    ones tell more). ``together`` batches make one observation; ``batches`` bounds how many are read. ``size_of(batch)``
    counts samples where the batch's first tensor does not. Weights, gradients, buffers and random numbers are as before
    when it returns; the model stays in the mode it is in.

    >>> data = torch.randn(512, 3, generator=torch.Generator().manual_seed(0)).split(4)
    >>> model = nn.Linear(3, 1, bias=False)
    >>> measured = noise_scale(model, lambda model, x: (model(x) - x.sum(1, keepdim=True)).square().mean(), data)
    >>> measured.samples, measured.interval[0] < measured.critical_batch < measured.interval[1]
    (512, True)
    """
    together = whole_number(together, name="together", at_least=2)
    parameters = [p for p in model.parameters() if p.requires_grad]
    if not parameters:
        raise ConfigError("the model has no parameter that requires a gradient, so there is no noise to measure.")
    buffers = [buffer.detach().clone() for buffer in model.buffers()]
    average, seen, base = MomentAverage(base_batch=1, window=1e12), 0, 0
    source = iter(loader) if batches is None else islice(loader, whole_number(batches, name="batches", at_least=2))
    try:
        with torch.random.fork_rng(enabled=True):
            while len(taken := list(islice(source, together))) >= 2:
                sizes = [_size(batch, size_of) for batch in taken]
                base = base or sum(sizes)
                small, big = _observe(model, loss_fn, parameters, taken, sizes)
                average.update([(small, big)], count=len(sizes), batch=sum(sizes))
                seen += sum(sizes)
    finally:
        with torch.no_grad():
            for buffer, before in zip(model.buffers(), buffers, strict=True):
                buffer.copy_(before)
    estimate = average.estimate()
    if estimate is None:
        raise DataError(
            f"{seen} samples gave no estimate: at least 2 batches with finite gradients are needed. Pass more data, or "
            f"a smaller batch size."
        )
    return NoiseMeasurement(estimate=estimate, samples=seen)


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
                f"loss_fn gave {type(loss).__name__}; expected the batch's mean loss, a tensor of one number."
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
    raise ConfigError(f"cannot tell how many samples a batch of {type(batch).__name__} holds; pass size_of=.")
