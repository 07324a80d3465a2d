"""A variational autoencoder on handwritten digits; train_torch.py and train_swell.py differ in what swell needs."""

import argparse

import torch
import torch.nn.functional as F
from swell.demo.digits import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


class Autoencoder(nn.Module):
    """Images of 64 pixels, described by 8 numbers with an uncertainty each."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 16))
        self.decoder = nn.Sequential(nn.Linear(8, 128), nn.ReLU(), nn.Linear(128, 64))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_variance = self.encoder(x).chunk(2, dim=1)
        code = mean + torch.randn_like(mean) * torch.exp(log_variance / 2)
        return self.decoder(code), mean, log_variance


def loss_of(model: nn.Module, x: Tensor) -> Tensor:
    """The evidence lower bound, negative and per image."""
    logits, mean, log_variance = model(x)
    reconstruction = F.binary_cross_entropy_with_logits(logits, x, reduction="sum")
    divergence = -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum()
    return (reconstruction + divergence) / len(x)


def main() -> float:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--limit", type=int, help="use only this many images")
    args = parser.parse_args()

    torch.manual_seed(0)
    train_set, test_set = (data.tensors[0].flatten(1)[: args.limit].clamp(0, 1) for data in load_digits())
    model = Autoencoder()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = DataLoader(TensorDataset(train_set), batch_size=32, shuffle=True)

    loss = float("nan")
    for epoch in range(args.epochs):
        for (x,) in loader:
            optimizer.zero_grad()
            loss_of(model, x).backward()
            optimizer.step()

        with torch.no_grad():
            loss = loss_of(model, test_set).item()
        print(f"epoch {epoch}: {loss:.2f} nats for an image of the test set")
    return loss


if __name__ == "__main__":
    main()
