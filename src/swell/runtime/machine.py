"""The machine and the versions that a run works with, for its log and its report."""

from __future__ import annotations

import os
import platform
from typing import Any

import torch


def describe_machine(device: torch.device) -> dict[str, Any]:
    """Host, system, processors, memory, devices and versions, as plain values."""
    facts: dict[str, Any] = {
        "host": platform.node(),
        "system": f"{platform.system()} {platform.release()}",
        "processors": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": str(device),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
    }
    if device.type == "cuda":
        facts["gpu"] = torch.cuda.get_device_name(device)
        facts["gpus"] = torch.cuda.device_count()
        facts["cuda"] = torch.version.cuda
    return facts
