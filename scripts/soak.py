"""A small training run for `make soak`: soak.py FOLDER MODEL [STEPS], where MODEL is network or attention.

It trains until it is stopped, or for STEPS steps without a sleep in each. Everything is in float64 and nothing depends
on micro-batches, so the weights after a step are those of the undisturbed run, whatever happened before.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import swell
from swell.checkpoint.cadence import Cadence

SAMPLES, EPOCHS, STEP_S = 2000, 1_000_000, 0.05
SAVE_S = 5.0  # often, so that losing all workers at once costs little
FILL = "." * 64  # so that an output that nobody reads is soon full


class Attention(nn.Module):
    """Sixteen numbers as four tokens of four, and two layers that look at all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(4, 32)
        layer = nn.TransformerEncoderLayer(32, nhead=4, dim_feedforward=64, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, num_layers=2)
        self.head = nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(self.embed(x.view(-1, 4, 4))).mean(1))


def make_model(kind: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model and its optimizer, by name."""
    torch.manual_seed(0)
    if kind == "attention":
        model = Attention().double()
        # With the default eps and a larger rate, a last digit decides about all digits some thousand steps later.
        return model, torch.optim.AdamW(model.parameters(), lr=2e-4, eps=1e-4)
    model = nn.Sequential(nn.Linear(16, 256), nn.LayerNorm(256), nn.ReLU(), nn.Linear(256, 4)).double()
    return model, torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)


def train(folder: Path, kind: str, steps: int | None) -> None:
    """Train on random numbers, to the given step or until the run is stopped."""
    torch.set_num_threads(1)
    model, optimizer = make_model(kind)
    data = TensorDataset(torch.randn(SAMPLES, 16, dtype=torch.float64), torch.randint(0, 4, (SAMPLES,)))
    rule = "root" if kind == "attention" else "linear"  # not by the noise, whose measure depends on the world
    policy = swell.Schedule([(0, 32), (1, 96), (2, 48)], unit="epochs", base=32)
    job = swell.Job(folder, batch=policy, rule=rule, device="cpu", seed=0, save=Cadence(every_s=SAVE_S), progress=False)
    job.wrap(model, optimizer)
    loader = job.loader(data, shuffle=True)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            if steps is None:
                time.sleep(STEP_S)
            loss = nn.functional.cross_entropy(model(x), y)
            job.metrics.mean("loss", loss.detach(), weight=len(y))
            job.backward(loss)
            job.step()
            if steps is None and job.steps % 4 == 0:
                print(f"step {job.steps} {FILL}")
            if steps is not None and job.steps >= steps:
                job.close()
                return
        job.metrics.results()
    job.close()


if __name__ == "__main__":
    train(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else None)
