"""Where a tensor lives: whole on every replica, or in pieces."""

from __future__ import annotations

import math
import sys
from typing import Any

from torch import Tensor


def is_sharded(tensor: Tensor) -> bool:
    """Whether replicas hold pieces of it."""
    module = sys.modules.get("torch.distributed.tensor")  # slow to import; whoever made a sharded tensor has done it
    return module is not None and isinstance(tensor, module.DTensor)


def local(tensor: Tensor) -> Tensor:
    """This replica's piece of a sharded tensor, in its place; any other tensor as it is."""
    sharded: Any = tensor
    return sharded.to_local() if is_sharded(tensor) else tensor


def copies(tensor: Tensor) -> int:
    """How many replicas hold the same piece: the replicas of HSDP, otherwise 1."""
    if not is_sharded(tensor):
        return 1
    sharded: Any = tensor
    sizes = zip(sharded.placements, sharded.device_mesh.shape, strict=True)
    return math.prod(size for placement, size in sizes if not placement.is_shard())
