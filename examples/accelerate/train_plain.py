"""A classifier of handwritten digits, in a loop with Accelerate."""

import argparse

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from swell.demo.digits import load_digits  # the data that comes with swell; any data set will do
from torch import nn
from torch.utils.data import DataLoader

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
options = parser.parse_args()

accelerator = Accelerator(gradient_accumulation_steps=4)
train_set, test_set = load_digits()
torch.manual_seed(0)
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
train_loader = DataLoader(train_set, batch_size=8, shuffle=True)
test_loader = DataLoader(test_set, batch_size=64)
model, optimizer, train_loader, test_loader = accelerator.prepare(model, optimizer, train_loader, test_loader)
steps = options.epochs * len(train_loader) // accelerator.gradient_accumulation_steps
scheduler = accelerator.prepare(torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=steps))

for epoch in range(options.epochs):
    model.train()
    for x, y in train_loader:
        with accelerator.accumulate(model):
            loss = F.cross_entropy(model(x), y)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    model.eval()
    right = []
    for x, y in test_loader:
        with torch.no_grad():
            right.append(accelerator.gather_for_metrics(model(x).argmax(-1) == y))
    accelerator.print(f"epoch {epoch}: {torch.cat(right).float().mean():.3f} of {len(test_set)} digits right")
accelerator.end_training()
