"""A user's AdaptDL script for an elastic run: trains and evaluates until a file says that it is enough.

Other files make one worker fail, at the fifth batch of the loop they name.
"""

import os
import signal
import sys
import time
from pathlib import Path
from typing import NoReturn

import torch

import swell.compat.adaptdl as adaptdl
from swell.compat.adaptdl import sums

folder = Path(sys.argv[1])
torch.manual_seed(5)
generator = torch.Generator().manual_seed(0)
x, y = torch.randn(60, 4, generator=generator), torch.randn(60, generator=generator)
data = torch.utils.data.TensorDataset(x, y, torch.arange(60))
adaptdl.torch.init_process_group("gloo")
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=256.0, enabled="float16" in sys.argv)
wrapped = adaptdl.torch.AdaptiveDataParallel(model, optimizer, mp_scaler=scaler)
loader = adaptdl.torch.AdaptiveDataLoader(data, batch_size=6, shuffle=True)
judged = adaptdl.torch.AdaptiveDataLoader(data, batch_size=7)


def take_order(order: str) -> bool:
    """Whether this worker is the first to find a file with that name; the file is gone then."""
    try:
        (folder / order).unlink()
    except FileNotFoundError:
        return False
    return True


def die(*_: object) -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("not reached")


for epoch in adaptdl.torch.remaining_epochs_until(1000):
    if (folder / "enough").exists():
        break
    for name, source in (("trained", loader), ("judged", judged)):
        stats = adaptdl.torch.Accumulator()
        wrapped.train(name == "trained")
        for batch, (inputs, targets, index) in enumerate(source):
            fails = adaptdl.env.replica_rank() == 1 and batch == 4
            if fails and take_order(f"die in {name}"):
                die()
            if fails and take_order(f"die in the exchange of {name}"):
                sums.gather_values = die
            loss = (wrapped(inputs).squeeze(-1) - targets).square().mean()
            stats["before"] += len(index)
            if name == "trained":
                optimizer.zero_grad()
                overflow = fails and take_order(f"overflow in {name}")
                scaler.scale(loss * torch.inf if overflow else loss).backward()
                scaler.step(optimizer)
                scaler.update()
            stats["samples"] += len(index)
            stats["sum"] += index.sum()
            stats[f"with {adaptdl.env.num_replicas()}"] += 1
            time.sleep(0.02)
        with stats.synchronized():
            if adaptdl.env.replica_rank() == 0:
                worlds = ", ".join(sorted(key for key in stats if key.startswith("with")))
                figures = f"{stats['before']} and {stats['samples']} samples, sum {int(stats['sum'])}, {worlds}"
                print(f"epoch {epoch} {name}: {figures}", flush=True)
