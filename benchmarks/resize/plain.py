"""The script that runs under torchrun: plain DDP that saves every 20 steps and goes on from there.

It imports nothing but torch, so that its restart is as quick as it can be.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from model import BATCH, SAMPLES, Doom, Notes, data, network, optimizer_of
from torch.nn.parallel import DistributedDataParallel

SAVE_EVERY = 20


def doomed_hook(doom: Doom) -> Callable[..., Any]:
    """DDP's all-reduce of a bucket of gradients, in the middle of which this process may be killed."""

    def hook(state, bucket):  # without types: DDP compares them, and as strings they do not please it
        work: Any = dist.all_reduce(bucket.buffer(), async_op=True)
        if doom.sealed() == "reduce":
            doom.strike()
        return work.get_future().then(lambda future: future.value()[0].div_(dist.get_world_size()))

    return hook


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    notes, doom = Notes(args.folder), Doom(args.folder)
    model = network()
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    optimizer, step = optimizer_of(model), 0
    saved = args.folder / "saved.pt"
    if saved.exists():
        state = torch.load(saved, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    ddp = DistributedDataParallel(model)
    ddp.register_comm_hook(None, doomed_hook(doom))
    x, y = data().tensors
    local = BATCH // size
    while True:
        start = (step * BATCH + rank * local) % (SAMPLES - local)
        began = time.perf_counter()
        loss = F.mse_loss(ddp(x[start : start + local]), y[start : start + local])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        notes.write(step=step, replicas=size, took_s=time.perf_counter() - began)
        if rank == 0 and step % SAVE_EVERY == 0:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, f"{saved}~")
            os.replace(f"{saved}~", saved)
        if doom.sealed() == "between":
            doom.strike()


if __name__ == "__main__":
    main()
