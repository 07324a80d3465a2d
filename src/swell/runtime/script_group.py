"""Use a process group that a script made itself, without making another."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from swell.core.protocols import Collective
from swell.runtime.collective import Alone, TorchCollective


def present_collective(group: Any = None) -> Collective:
    """The replicas of ``group``, or of the script's default group; a world of one if the script made none.

    No group is made, so ranks need not call this together. Numbers and text then travel over the script's own group:
    with NCCL only ``sum_tensors`` and ``broadcast_tensors`` of tensors on the device work.

    >>> present_collective().size
    1
    """
    if group is None:
        if not (dist.is_available() and dist.is_initialized()):
            return Alone()
        group = dist.group.WORLD
        assert group is not None
    return TorchCollective(group)
