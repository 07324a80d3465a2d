"""What is known of compiled models, and how they take part in steps that are split only to be measured."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn


def halves_of_compiled() -> AbstractContextManager[object]:
    """Around the halves of a step's micro-batch: nothing is compiled for them.

    Halves have a shape of their own, and compiling for it takes as long as hundreds of steps. What ``torch.compile``
    has no code for runs uncompiled meanwhile. A model that was compiled for any batch (``dynamic=True``) has it.
    """
    if "torch._dynamo" not in sys.modules:  # whoever compiles anything has imported it
        return nullcontext()
    return torch.compiler.set_stance("eager_on_recompile")


def is_compiled(model: nn.Module) -> bool:
    """Whether a model, or a part of it, was given to ``torch.compile``."""
    return any(module._compiled_call_impl is not None or hasattr(module, "_orig_mod") for module in model.modules())


def compiled_frames() -> int:
    """How many pieces of code ``torch.compile`` has worked on in this process so far."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return 0 if dynamo is None else dynamo.counters["frames"]["total"]
