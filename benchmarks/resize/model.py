"""What all scripts of this benchmark train: a network of 5 million parameters on random numbers; and what they note."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

WIDTH, LAYERS = 640, 12  # 4,922,880 parameters
BATCH = 48  # all workers together
SAMPLES = 4800


def network() -> nn.Module:
    """Twelve square linear layers."""
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(SAMPLES, WIDTH, generator=generator)
    return TensorDataset(x, x.flip(1))


class Notes:
    """One line for each step this process has done: when, which step, how many workers there were."""

    def __init__(self, folder: Path) -> None:
        self._file = (folder / f"steps-{os.getpid()}.jsonl").open("a", buffering=1)

    def write(self, **facts: Any) -> None:
        self._file.write(json.dumps({"time": time.time(), "pid": os.getpid(), **facts}) + "\n")


class Doom:
    """Kills this process when the driver's file ``kill`` names it, and notes when that was."""

    def __init__(self, folder: Path) -> None:
        self._order = folder / "kill"

    def sealed(self) -> str:
        """Where this process is to be killed, ``between`` steps or in the ``reduce``; empty for not at all."""
        try:
            pid, where = self._order.read_text().split()
        except (FileNotFoundError, ValueError):
            return ""
        return where if int(pid) == os.getpid() else ""

    def strike(self) -> None:
        """Note the time, and die."""
        aside = self._order.with_name("killed~")
        aside.write_text(str(time.time()))
        aside.replace(self._order.with_name(f"killed-{os.getpid()}"))
        os.kill(os.getpid(), signal.SIGKILL)


def read_notes(folder: Path) -> list[dict[str, Any]]:
    """What all processes noted, in the order of time."""
    notes: list[dict[str, Any]] = []
    for path in folder.glob("steps-*.jsonl"):
        notes += [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
    return sorted(notes, key=lambda note: note["time"])
