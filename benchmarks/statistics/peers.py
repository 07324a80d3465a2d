"""Steps of a loop with FairScale's AdaScale or AdaptDL's noise estimator, used as their authors intended."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

Loss = Callable[[nn.Module, tuple[Tensor, ...]], Tensor]


def replicated(
    model: nn.Module, optimizer: Optimizer, loss: Loss, batches: Iterator[Any], *, accumulation: int, kind: str
) -> Iterator[None]:
    """One optimizer step after another under ``DistributedDataParallel``; gradients are summed with the last pass."""
    parallel = DistributedDataParallel(model)
    finish = FINISHES[kind](parallel, optimizer, accumulation)
    while True:
        for index in range(accumulation):
            last = index == accumulation - 1
            with nullcontext() if last else parallel.no_sync():
                (loss(parallel, next(batches)) / accumulation).backward()
        finish()
        yield


def _plain(parallel: DistributedDataParallel, optimizer: Optimizer, accumulation: int) -> Callable[[], None]:
    def finish() -> None:
        optimizer.step()
        optimizer.zero_grad()

    return finish


def _fairscale(parallel: DistributedDataParallel, optimizer: Optimizer, accumulation: int) -> Callable[[], None]:
    from fairscale.optim import AdaScale  # pyright: ignore[reportMissingImports]

    scaled = AdaScale(optimizer, num_gradients_to_accumulate=accumulation, is_scaled_loss=True)

    def finish() -> None:
        scaled.step()
        scaled.zero_grad()

    return finish


def _adaptdl(parallel: DistributedDataParallel, optimizer: Optimizer, accumulation: int) -> Callable[[], None]:
    np.int = int  # type: ignore[attr-defined]  # AdaptDL uses a name that numpy removed in 1.24
    from adaptdl.torch import gradient_noise_scale as adaptdl  # pyright: ignore[reportMissingImports]

    adam = "betas" in optimizer.param_groups[0]
    noise = (adaptdl.AdamGradientNoiseScale if adam else adaptdl.GradientNoiseScale)(parallel, optimizer)
    # AdaptDL keeps its figures in the optimizer's state, over which torch's optimizers iterate by now.
    figures = optimizer.state.pop("gns")  # type: ignore[call-overload]
    type(noise)._state = property(lambda self: figures)

    def finish() -> None:
        optimizer.step()
        noise.reset_accumulation()

    return finish


FINISHES = {"plain DDP": _plain, "FairScale": _fairscale, "AdaptDL": _adaptdl}
