"""A small network on the digits that come with swell; train_plain.py and train_swell.py differ in what swell needs."""

import argparse

import swell
import torch
import torch.nn.functional as F
from lightning.fabric import Fabric
from swell.demo.digits import load_digits
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset


def main() -> float:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--limit", type=int, default=1400, help="use only this many images")
    args = parser.parse_args()

    torch.manual_seed(0)
    (x, y), (test_x, test_y) = (data.tensors for data in load_digits())
    train_set = Subset(TensorDataset(x.flatten(1), y), range(min(args.limit, len(x))))
    model = nn.Sequential(nn.Linear(test_x[0].numel(), 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    steps = args.epochs * -(-len(train_set) // 32)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)

    strategy = swell.lightning.Strategy("runs/fabric", batch=32)
    fabric = Fabric(strategy=strategy)
    fabric.launch()
    model, optimizer, scheduler = fabric.setup(model, optimizer, scheduler=scheduler)
    loader = fabric.setup_dataloaders(DataLoader(train_set, batch_size=32, shuffle=True))
    for epoch in strategy.epochs(args.epochs):
        for images, labels in loader:
            optimizer.zero_grad()
            fabric.backward(F.cross_entropy(model(images), labels))
            fabric.clip_gradients(model, optimizer, max_norm=1.0)
            optimizer.step()
            scheduler.step()
        with torch.no_grad():
            test_loss = F.cross_entropy(model(fabric.to_device(test_x.flatten(1))), fabric.to_device(test_y)).item()
        fabric.print(f"epoch {epoch}: test loss {test_loss:.3f}")
    return test_loss


if __name__ == "__main__":
    main()
