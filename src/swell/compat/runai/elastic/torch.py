"""``init`` for PyTorch: one device, several under ``nn.DataParallel``, or one in each process of a group."""

from __future__ import annotations

import torch

from swell.compat.runai import elastic
from swell.core.counts import whole_number
from swell.runtime.script_group import present_collective


def init(global_batch_size: int, max_gpu_batch_size: int, gpus: int | None = None) -> None:
    """Lay out ``global_batch_size`` so that no device holds more than ``max_gpu_batch_size`` samples at once.

    ``gpus`` counts all devices. It defaults to the size of the script's process group (DDP), else to this machine's
    CUDA devices (``nn.DataParallel``), else to 1, the CPU. Sets ``runai.elastic.steps``, ``batch_size``,
    ``global_batch_size``, ``gpus``, ``master`` and ``loader_batch_size``, the batch size for a ``DataLoader`` of this
    process: ``nn.DataParallel`` cuts each of its batches into one per device.

    >>> init(256, 64, gpus=2)
    >>> elastic.steps, elastic.batch_size, elastic.loader_batch_size
    (2, 64, 128)
    """
    group = present_collective()
    if gpus is None:
        gpus = group.size if group.size > 1 else max(torch.cuda.device_count(), 1)
    gpus = whole_number(gpus, name="gpus")
    local_gpus = gpus if group.size == 1 else max(gpus // group.size, 1)
    elastic.establish(global_batch_size, max_gpu_batch_size, gpus=gpus, local_gpus=local_gpus, master=group.rank == 0)
