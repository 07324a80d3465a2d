"""``init`` for PyTorch: one device, several under ``nn.DataParallel``, or one in each process of a group."""

from __future__ import annotations

import torch

from swell.compat.runai import elastic
from swell.core.counts import whole_number
from swell.runtime.script_group import present_collective


def init(global_batch_size: int, max_gpu_batch_size: int, gpus: int | None = None) -> None:
    """Lay out ``global_batch_size`` so that no device holds more than ``max_gpu_batch_size`` samples at once.

    ``gpus`` is every device there is: the members of the process group where the script made one (DDP), else this
    machine's CUDA devices (``nn.DataParallel``), else 1, the CPU. Sets ``runai.elastic.steps``, ``batch_size``,
    ``global_batch_size``, ``gpus`` and ``master``, and ``loader_batch_size``: what a ``DataLoader`` of this process
    takes, since ``nn.DataParallel`` cuts each batch of the loader into one for every device.

    >>> init(256, 64, gpus=2)
    >>> elastic.steps, elastic.batch_size, elastic.loader_batch_size
    (2, 64, 128)
    """
    present = present_collective()
    if gpus is None:
        gpus = present.size if present.size > 1 else max(torch.cuda.device_count(), 1)
    gpus = whole_number(gpus, name="gpus")
    here = gpus if present.size == 1 else max(gpus // present.size, 1)
    elastic.establish(global_batch_size, max_gpu_batch_size, gpus=gpus, gpus_here=here, master=present.rank == 0)
