"""A Fabric user's script for elastic runs; the weights at the end are written down."""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
import json
import os
import sys
import time
from pathlib import Path

import torch
from lightning.fabric import Fabric
from torch.utils.data import DataLoader

import swell.lightning
from tests.lightning.scenario import data, loss_of, make_model, weights_of

folder, epochs = Path(sys.argv[1]), int(sys.argv[2])
strategy = swell.lightning.Strategy(folder / "run", batch=12, seed=4)
fabric = Fabric(accelerator="cpu", strategy=strategy)
fabric.launch()
model = make_model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10, gamma=0.9)
model, optimizer, scheduler = fabric.setup(model, optimizer, scheduler=scheduler)
loader = fabric.setup_dataloaders(DataLoader(data(130), batch_size=3, shuffle=True))
log = (folder / f"steps-{os.getpid()}.jsonl").open("a", buffering=1)
for epoch in strategy.epochs(epochs):
    for batch in loader:
        time.sleep(0.3 if (folder / "slow").exists() else 0.0)
        optimizer.zero_grad()
        fabric.backward(loss_of(model, batch))
        fabric.clip_gradients(model, optimizer, max_norm=0.5)
        stepped = optimizer.step()
        scheduler.step()
        if stepped and fabric.is_global_zero:
            log.write(json.dumps({"step": strategy.job.steps, "epoch": epoch, "workers": fabric.world_size}) + "\n")
    total = fabric.all_reduce(torch.tensor(1.0), reduce_op="sum").item()
    fabric.print(f"epoch {epoch} of {total:.0f} workers, {strategy.job.samples} samples", flush=True)
if fabric.is_global_zero:
    (folder / "weights.json").write_text(json.dumps(weights_of(model)))
