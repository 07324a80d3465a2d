"""The whole example of AdaptDL's older documentation: a batch for each epoch, and a multi-step schedule."""

import argparse

import torch
import torch.nn.functional as F
from swell.compat.adaptdl import AdaptDLTorchTrainer
from torch import nn, optim
from torch.optim.lr_scheduler import MultiStepLR
from torch.utils.data import DataLoader, Dataset, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def load_data() -> Dataset:
    from swell.demo.digits import load_digits

    images, labels = load_digits()[0].tensors
    return TensorDataset(images.flatten(1), labels)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bs", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--epochs", type=int, default=60)
    args = parser.parse_args()
    torch.manual_seed(0)
    max_batch_size, local_bsz_bounds = 512, (8, 128)
    model = nn.Linear(64, 10)
    dataset = load_data()

    # non-None max_batch_size, local_bsz_bounds
    adaptdlTrainer = AdaptDLTorchTrainer(args.bs, max_batch_size, local_bsz_bounds)
    optimizer = optim.SGD(model.parameters(), lr=args.lr)
    lr_scheduler = MultiStepLR(optimizer, [30, 45], 0.1)
    adaptdl_state = adaptdlTrainer.program_reentry(model, optimizer, lr_scheduler)

    sampler = DistributedSampler(dataset) if adaptdlTrainer.replicas > 1 else None
    for epoch in range(adaptdl_state.epoch, args.epochs):
        batchsize = adaptdlTrainer.get_local_bsz()
        if sampler is not None:
            sampler.set_epoch(epoch)
        total = 0.0
        for inputs, targets in DataLoader(dataset, batchsize, sampler=sampler, shuffle=sampler is None):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            total += loss.item() * len(targets)
        lr_scheduler.step()
        gain = adaptdlTrainer.predict_gain(4.0)
        print(f"epoch {epoch}: local batch {batchsize}, loss {total / len(dataset):.4f}, gain at 4x {gain:.2f}")  # type: ignore[arg-type]
        adaptdlTrainer.step(epoch)


if __name__ == "__main__":
    main()
