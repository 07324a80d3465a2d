"""A user's AdaptDL script for an elastic run: trains and evaluates until it is told that it is enough."""

import os
import signal
import sys
import time
from pathlib import Path

import torch

import swell.compat.adaptdl as adaptdl

folder = Path(sys.argv[1])
torch.manual_seed(5)
generator = torch.Generator().manual_seed(0)
x, y = torch.randn(60, 4, generator=generator), torch.randn(60, generator=generator)
data = torch.utils.data.TensorDataset(x, y, torch.arange(60))
adaptdl.torch.init_process_group("gloo")
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
wrapped = adaptdl.torch.AdaptiveDataParallel(model, optimizer)
loader = adaptdl.torch.AdaptiveDataLoader(data, batch_size=6, shuffle=True)
judged = adaptdl.torch.AdaptiveDataLoader(data, batch_size=7)


def die_if_told(where: str) -> None:
    """The first worker that comes here after somebody asked for it is gone without a word."""
    try:
        (folder / f"die in {where}").unlink()
    except FileNotFoundError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


for epoch in adaptdl.torch.remaining_epochs_until(1000):
    if (folder / "enough").exists():
        break
    for name, source in (("trained", loader), ("judged", judged)):
        stats = adaptdl.torch.Accumulator()
        wrapped.train(name == "trained")
        for batch, (inputs, targets, index) in enumerate(source):
            if adaptdl.env.replica_rank() == 1 and batch == 4:
                die_if_told(name)
            loss = (wrapped(inputs).squeeze(-1) - targets).square().mean()
            stats["before"] += len(index)
            if name == "trained":
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            stats["samples"] += len(index)
            stats["sum"] += index.sum()
            stats[f"with {adaptdl.env.num_replicas()}"] += 1
            time.sleep(0.02)
        with stats.synchronized():
            if adaptdl.env.replica_rank() == 0:
                worlds = ", ".join(sorted(key for key in stats if key.startswith("with")))
                figures = f"{stats['before']} and {stats['samples']} samples, sum {int(stats['sum'])}, {worlds}"
                print(f"epoch {epoch} {name}: {figures}", flush=True)
