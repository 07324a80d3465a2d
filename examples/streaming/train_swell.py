"""Training on a stream that is read once; train_torch.py and train_swell.py differ in what swell needs."""

import argparse
from collections.abc import Iterator

import swell
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import IterableDataset


class Records(IterableDataset):
    """Records as a file in the cloud gives them: one after the other, and never by number."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        generator = torch.Generator().manual_seed(1)
        for _ in range(self.count):
            x = torch.randn(8, generator=generator)
            yield x, x.sin().sum(0, keepdim=True)


def main() -> float:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--limit", type=int, default=4096, help="read this many records")
    args = parser.parse_args()

    torch.manual_seed(0)
    records = Records(args.limit)
    x, y = (torch.stack(column) for column in zip(*Records(256), strict=True))
    job = swell.Job("runs/streaming", batch=32)
    model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    model, optimizer = job.wrap(model, optimizer)
    loader = job.loader(records)

    loss = float("nan")
    for epoch in job.epochs(args.epochs):
        for inputs, targets in loader:
            job.backward(F.mse_loss(model(inputs), targets))
            job.step()

        with torch.no_grad():
            loss = F.mse_loss(model(x), y).item()
        print(f"epoch {epoch}: loss {loss:.4f}")
    return loss


if __name__ == "__main__":
    main()
