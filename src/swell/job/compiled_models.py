"""Compiled models in steps that are split only to be measured."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext

import torch


def halves_of_compiled() -> AbstractContextManager[object]:
    """Around the halves of a step's micro-batch: nothing is compiled for them.

    Halves have a shape of their own, and compiling for it takes as long as hundreds of steps. What ``torch.compile``
    has no code for runs uncompiled meanwhile. A model that was compiled for any batch (``dynamic=True``) has it.
    """
    if "torch._dynamo" not in sys.modules:  # whoever compiles anything has imported it
        return nullcontext()
    return torch.compiler.set_stance("eager_on_recompile")
