"""Which thread runs a backward pass: on a GPU torch hands it to another, which costs a short step a tenth."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from swell.gradients.placement import is_sharded

_AS_IT_COMES: AbstractContextManager[object] = nullcontext()


def has_one_gpu(model: nn.Module, parameters: Sequence[Tensor]) -> bool:
    """Whether all gradients are computed on one GPU, so that a second thread would have nothing to do meanwhile.

    Not where replicas hold pieces of the model, which they exchange in the pass.
    """
    devices = {parameter.device for parameter in parameters}
    if len(devices) != 1 or next(iter(devices)).type != "cuda" or any(map(is_sharded, parameters)):
        return False
    return not any(isinstance(module, nn.DataParallel) for module in model.modules())


def in_this_thread(here: bool) -> AbstractContextManager[object]:
    """Around a backward pass: run it in the calling thread; as torch would, where not ``here``.

    The same operations run in the same order. But another thread must wake up first, mostly on another core, whose
    caches hold nothing of the model.
    """
    return torch.autograd.set_multithreading_enabled(False) if here else _AS_IT_COMES
