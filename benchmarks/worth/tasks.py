"""Sixteen tasks, different in kind, each with an optimizer, a schedule and a base batch that a user might have tuned.

Nothing here is a function of the batch: a way of training gets the model, the optimizers and the schedule for a number
of steps, and decides on batches and learning rates itself. ``HELD_OUT`` are the tasks that nothing was tuned on.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from data import characters, images, ratings, table
from networks import (
    Denoiser,
    Mixer,
    Recommender,
    Recurrent,
    Transformer,
    Variational,
    VisionTransformer,
    convolutions,
    perceptron,
    residual_network,
)
from signum import Signum
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW, Muon, Optimizer, RMSprop
from torch.optim.lr_scheduler import LambdaLR, MultiStepLR, OneCycleLR

HELD_OUT = ("lstm", "mixer", "vae")
PROBE = 4_096  # training samples that the training loss is measured on

Batch = tuple[Tensor, ...]
Loss = Callable[[nn.Module, Batch], Tensor]
Schedule = Callable[[Optimizer, int], Any]


@dataclass(frozen=True)
class Problem:
    """Data on the device, and what is done with it."""

    train: Batch
    loss: Loss
    model: Callable[[], nn.Module]
    judge: Callable[[nn.Module], float]


@dataclass(frozen=True)
class Task:
    """One training that a user has tuned at its base batch."""

    name: str
    base: int
    steps: int  # of the base run
    metric: str
    optimizers: Callable[[nn.Module, float], list[Optimizer]]  # by a factor on every learning rate
    schedule: Schedule
    problem: Callable[[str], Problem]
    higher: bool = False  # whether a higher result is better
    clip: float | None = None
    kind: str = ""
    adaptive: bool = True
    largest: int = field(default=32)  # times the base batch


def one_cycle(optimizer: Optimizer, steps: int) -> Any:
    peaks = [group["lr"] for group in optimizer.param_groups]
    return OneCycleLR(optimizer, max_lr=peaks, total_steps=steps + 1, pct_start=0.25, cycle_momentum=False)


def cosine_with_warm_up(optimizer: Optimizer, steps: int) -> Any:
    warm = max(1, steps // 20)

    def height(step: int) -> float:
        if step < warm:
            return (step + 1) / warm
        return max(0.01, 0.5 * (1 + math.cos(math.pi * min(1.0, (step - warm) / max(1, steps - warm)))))

    return LambdaLR(optimizer, height)


def cosine(optimizer: Optimizer, steps: int) -> Any:
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps + 1)


def in_steps(optimizer: Optimizer, steps: int) -> Any:
    return MultiStepLR(optimizer, [steps * 6 // 10, steps * 85 // 100], gamma=0.2)


def constant(optimizer: Optimizer, steps: int) -> Any:
    return LambdaLR(optimizer, lambda step: 1.0)


@torch.no_grad()
def mean_over(model: nn.Module, figure: Callable[[nn.Module, Batch], Tensor], data: Batch, size: int = 1024) -> float:
    """The mean of a figure over data, in evaluation mode, with the same random numbers every time."""
    was, total, device = model.training, 0.0, data[0].device
    model.eval()
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(99)
        for start in range(0, len(data[0]), size):
            part = tuple(tensor[start : start + size] for tensor in data)
            total += float(figure(model, part)) * len(part[0])
    model.train(was)
    return total / len(data[0])


def classify(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def percent_right(model: nn.Module, batch: Batch) -> Tensor:
    return (model(batch[0]).argmax(1) == batch[1]).float().mean() * 100


def next_character(model: nn.Module, batch: Batch) -> Tensor:
    (rows,) = batch
    logits = model(rows[:, :-1])
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), rows[:, 1:].reshape(-1))


def images_problem(name: str, model: Callable[[], nn.Module], count: int = 60_000) -> Callable[[str], Problem]:
    def make(device: str) -> Problem:
        x, y, test_x, test_y = images(name, device, count)
        return Problem((x, y), classify, model, lambda net: mean_over(net, percent_right, (test_x, test_y)))

    return make


def text_problem(length: int, model: Callable[[int], nn.Module]) -> Callable[[str], Problem]:
    def make(device: str) -> Problem:
        train, valid, kinds = characters(length, device)
        return Problem(
            (train,), next_character, lambda: model(kinds), lambda net: mean_over(net, next_character, (valid,), 256)
        )

    return make


def restore(model: nn.Module, batch: Batch) -> Tensor:
    """An autoencoder's error on images of which a quarter of the pixels are missing."""
    x = batch[0].flatten(1)
    seen = x * (torch.rand_like(x) > 0.25)
    return F.mse_loss(model(seen), x)


def autoencoder(device: str) -> Problem:
    x, _, test_x, _ = images("fashion_mnist", device)
    sizes = (784, 256, 48, 256, 784)
    return Problem((x,), restore, lambda: perceptron(*sizes), lambda net: mean_over(net, restore, (test_x,)))


def describe(model: nn.Module, batch: Batch) -> Tensor:
    """The variational bound of images with a Gaussian error, per pixel."""
    x = batch[0].flatten(1)
    again, distance = model(x)
    return F.mse_loss(again, x) + distance.mean() / x.shape[1]


def vae(device: str) -> Problem:
    x, _, test_x, _ = images("mnist", device, 30_000)
    return Problem((x,), describe, Variational, lambda net: mean_over(net, describe, (test_x,)))


def predict_noise(model: nn.Module, batch: Batch) -> Tensor:
    x = batch[0]
    t = torch.rand(len(x), device=x.device)
    angle, noise = (t * torch.pi / 2).view(-1, 1, 1, 1), torch.randn_like(x)
    return F.mse_loss(model(angle.cos() * x + angle.sin() * noise, t), noise)


def denoiser(device: str) -> Problem:
    x, _, test_x, _ = images("mnist", device, 30_000)
    return Problem((x,), predict_noise, Denoiser, lambda net: mean_over(net, predict_noise, (test_x,)))


def triplet(device: str) -> Problem:
    """Images of one class near one another, others far: every sample draws its own positive and negative."""
    x, y, test_x, test_y = images("fashion_mnist", device)
    order = torch.argsort(y, stable=True)
    counts = torch.bincount(y, minlength=10)
    starts = counts.cumsum(0) - counts

    def member(label: Tensor) -> Tensor:
        place = starts[label] + (torch.rand(len(label), device=label.device) * counts[label]).long()
        return x[order[place]]

    def embed(model: nn.Module, pixels: Tensor) -> Tensor:
        return F.normalize(model(pixels), dim=1)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        pixels, label = batch
        other = (label + torch.randint(1, 10, label.shape, device=label.device)) % 10
        a, p, n = embed(model, torch.cat([pixels, member(label), member(other)])).chunk(3)
        return F.softplus(8 * ((a * n).sum(1) - (a * p).sum(1))).mean()

    @torch.no_grad()
    def judge(model: nn.Module) -> float:
        model.eval()
        known = embed(model, x[:10_000])
        centres = torch.stack([known[y[:10_000] == label].mean(0) for label in range(10)])
        right = (embed(model, test_x) @ centres.T).argmax(1) == test_y
        model.train()
        return float(right.float().mean() * 100)

    def network() -> nn.Module:
        return nn.Sequential(*list(convolutions().children())[:-1], nn.Linear(128, 32))

    return Problem((x, y), loss, network, judge)


def squared_error(model: nn.Module, batch: Batch) -> Tensor:
    return F.mse_loss(model(batch[0]).squeeze(1), batch[1])


def tabular(device: str) -> Problem:
    x, y, test_x, test_y = table(device)
    return Problem(
        (x, y),
        squared_error,
        lambda: perceptron(24, 128, 128, 128, 1),
        lambda net: mean_over(net, squared_error, (test_x, test_y), 8192),
    )


def like_or_not(model: nn.Module, batch: Batch) -> Tensor:
    return F.binary_cross_entropy_with_logits(model(batch[0]), batch[1])


def recommender(device: str) -> Problem:
    pairs, liked, test_pairs, test_liked, sizes = ratings(device)
    return Problem(
        (pairs, liked),
        like_or_not,
        lambda: Recommender(*sizes),
        lambda net: mean_over(net, like_or_not, (test_pairs, test_liked), 8192),
    )


def sgd(lr: float, decay: float = 0.0) -> Callable[[nn.Module, float], list[Optimizer]]:
    return lambda model, factor: [SGD(model.parameters(), lr=lr * factor, momentum=0.9, weight_decay=decay)]


def adam(lr: float) -> Callable[[nn.Module, float], list[Optimizer]]:
    return lambda model, factor: [Adam(model.parameters(), lr=lr * factor)]


def adamw(lr: float, decay: float = 0.05) -> Callable[[nn.Module, float], list[Optimizer]]:
    return lambda model, factor: [AdamW(model.parameters(), lr=lr * factor, betas=(0.9, 0.98), weight_decay=decay)]


def rmsprop(lr: float) -> Callable[[nn.Module, float], list[Optimizer]]:
    return lambda model, factor: [RMSprop(model.parameters(), lr=lr * factor)]


def muon(model: nn.Module, factor: float) -> list[Optimizer]:
    """Muon for the matrices inside the blocks, AdamW for all else."""
    inside = [p for name, p in model.named_parameters() if "blocks" in name and p.ndim == 2]
    known = {id(p) for p in inside}
    rest = [p for p in model.parameters() if id(p) not in known]
    return [
        Muon(inside, lr=0.01 * factor, momentum=0.95, weight_decay=0.01),
        AdamW(rest, lr=1e-3 * factor, betas=(0.9, 0.98), weight_decay=0.01),
    ]


def signum(lr: float, decay: float) -> Callable[[nn.Module, float], list[Optimizer]]:
    return lambda model, factor: [Signum(model.parameters(), lr=lr * factor, weight_decay=decay)]


def gpt(kinds: int) -> nn.Module:
    return Transformer(kinds, 128, width=192, layers=4, heads=4, dropout=0.1)


def lstm(kinds: int) -> nn.Module:
    return Recurrent(kinds, cell=nn.LSTM, layers=1)


def small_gpt(kinds: int) -> nn.Module:
    return Transformer(kinds, 64, width=128, layers=3, heads=4, dropout=0.0)


TASKS = {
    task.name: task
    for task in (
        Task(
            name="resnet", kind="images, batch norm; SGD, one-cycle",
            base=64, steps=3_750, metric="accuracy", higher=True,
            optimizers=sgd(0.05, 5e-4), schedule=one_cycle, adaptive=False,
            problem=images_problem("fashion_mnist", residual_network),
        ),
        Task(
            name="convnet", kind="images, no norm; SGD, steps",
            base=32, steps=4_000, metric="accuracy", higher=True,
            optimizers=sgd(0.02, 1e-4), schedule=in_steps, adaptive=False,
            problem=images_problem("mnist", convolutions, 30_000),
        ),
        Task(
            name="mlp", kind="images, perceptron; SGD, constant",
            base=32, steps=5_000, metric="accuracy", higher=True,
            optimizers=sgd(0.01), schedule=constant, adaptive=False,
            problem=images_problem("fashion_mnist", lambda: perceptron(784, 256, 128, 10)),
        ),
        Task(
            name="vit", kind="images, ViT; AdamW, cosine with warm-up",
            base=64, steps=3_500, metric="accuracy", higher=True,
            optimizers=adamw(1e-3), schedule=cosine_with_warm_up,
            problem=images_problem("fashion_mnist", VisionTransformer),
        ),
        Task(
            name="gpt", kind="text, GPT with dropout; AdamW, one-cycle",
            base=16, steps=4_000, metric="loss",
            optimizers=adamw(1e-3, 0.1), schedule=one_cycle, problem=text_problem(128, gpt), clip=1.0,
        ),
        Task(
            name="muon", kind="text, GPT; Muon and AdamW, one-cycle",
            base=16, steps=3_000, metric="loss",
            optimizers=muon, schedule=one_cycle, problem=text_problem(64, small_gpt),
        ),
        Task(
            name="signum", kind="text, GPT; Signum, one-cycle",
            base=16, steps=3_000, metric="loss",
            optimizers=signum(5e-4, 0.1), schedule=one_cycle, problem=text_problem(64, small_gpt),
        ),
        Task(
            name="gru", kind="text, GRU with clipping; Adam, constant",
            base=32, steps=3_000, metric="loss",
            optimizers=adam(1e-3), schedule=constant, problem=text_problem(64, Recurrent), clip=0.5,
        ),
        Task(
            name="autoencoder", kind="images, autoencoder; Adam, cosine",
            base=32, steps=5_000, metric="error",
            optimizers=adam(1e-3), schedule=cosine, problem=autoencoder,
        ),
        Task(
            name="tabular", kind="table, regression; RMSprop, steps",
            base=32, steps=5_000, metric="error",
            optimizers=rmsprop(1e-3), schedule=in_steps, problem=tabular,
        ),
        Task(
            name="triplet", kind="images, contrastive; SGD, cosine with warm-up",
            base=32, steps=4_000, metric="accuracy", higher=True,
            optimizers=sgd(0.02, 1e-4), schedule=cosine_with_warm_up, adaptive=False, problem=triplet,
        ),
        Task(
            name="denoiser", kind="images, diffusion; AdamW, cosine with warm-up",
            base=16, steps=4_000, metric="error",
            optimizers=adamw(1e-3, 0.01), schedule=cosine_with_warm_up, problem=denoiser,
        ),
        Task(
            name="recommender", kind="pairs, embeddings; Adam, constant",
            base=64, steps=6_000, metric="loss",
            optimizers=adam(1e-3), schedule=constant, problem=recommender,
        ),
        Task(
            name="lstm", kind="text, LSTM with clipping; AdamW, one-cycle",
            base=16, steps=4_000, metric="loss",
            optimizers=adamw(2e-3, 0.01), schedule=one_cycle, problem=text_problem(64, lstm), clip=1.0,
        ),
        Task(
            name="mixer", kind="images, MLP-Mixer; SGD, cosine",
            base=32, steps=4_000, metric="accuracy", higher=True,
            optimizers=sgd(0.02, 1e-4), schedule=cosine, adaptive=False,
            problem=images_problem("fashion_mnist", Mixer),
        ),
        Task(
            name="vae", kind="images, variational autoencoder; Adam, steps",
            base=32, steps=4_000, metric="loss",
            optimizers=adam(1e-3), schedule=in_steps, problem=vae,
        ),
    )
}  # fmt: skip
