"""Accelerate's shared state as that of a single process, whose number is this replica's rank.

A job exchanges gradients itself, with exact weights, and its replicas come and go. Accelerate must therefore start no
collective of its own, and still know which process writes files and prints. It keeps both in two dictionaries that all
its objects share.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

from typing import Any

import torch
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType

NAMES = ("distributed_type", "num_processes", "process_index", "local_process_index", "device")


def become_one_process(device: torch.device) -> None:
    """Make the state of this process that of one which trains alone; where a launcher made a group, it stays."""
    PartialState()
    _set(distributed_type=DistributedType.NO, num_processes=1, device=device)
    if device.type == "cuda":
        torch.cuda.set_device(device)


def follow_rank(rank: int, *, elastic: bool) -> None:
    """Number this process by its replica's rank; in an elastic world all replicas are on one machine."""
    _set(process_index=rank, **({"local_process_index": rank} if elastic else {}))


def _set(**values: Any) -> None:
    for shared in (PartialState._shared_state, AcceleratorState._shared_state):
        if shared:  # one that was not made yet copies the other
            shared.update(values)
