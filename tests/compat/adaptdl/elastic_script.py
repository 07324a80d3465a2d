"""A user's AdaptDL script for an elastic run: trains until it has seen two and one workers, then finishes its epoch."""

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
for epoch in adaptdl.torch.remaining_epochs_until(1000):
    if (folder / "enough").exists():
        break
    stats = adaptdl.torch.Accumulator()
    for inputs, targets, index in loader:
        optimizer.zero_grad()
        (wrapped(inputs).squeeze(-1) - targets).square().mean().backward()
        optimizer.step()
        stats["samples"] += len(index)
        stats["sum"] += int(index.sum())
        stats[f"with {adaptdl.env.num_replicas()}"] += 1
        time.sleep(0.02)
    with stats.synchronized():
        if adaptdl.env.replica_rank() == 0:
            worlds = sorted(key for key in stats if key.startswith("with"))
            print(f"epoch {epoch}: {stats['samples']} samples, sum {stats['sum']}, {', '.join(worlds)}", flush=True)
