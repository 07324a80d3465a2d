"""Small models of many kinds."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Residual(nn.Module):
    """Two convolutions with batch norm beside a shortcut."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.one = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.two = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(after), nn.BatchNorm2d(after)])
        self.short = None if stride == 1 and before == after else nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norms[1](self.two(F.relu(self.norms[0](self.one(x)))))
        return F.relu(y + (x if self.short is None else self.short(x)))


def residual_network(width: int = 16) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, width, 3, 1, 1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        Residual(width, width, 1),
        Residual(width, 2 * width, 2),
        Residual(2 * width, 4 * width, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4 * width, 10),
    )


def convolutions(width: int = 24) -> nn.Module:
    """No norm at all."""
    return nn.Sequential(
        nn.Conv2d(1, width, 5, 2, 2),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 5, 2, 2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(2 * width * 49, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


class Block(nn.Module):
    """Attention and two linear layers, each behind a norm."""

    def __init__(self, width: int, heads: int, *, causal: bool, dropout: float) -> None:
        super().__init__()
        self.heads, self.causal, self.dropout = heads, causal, dropout
        self.norm_one, self.norm_two = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        parts = self.mix(self.norm_one(x)).view(n, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=self.causal)
        x = x + F.dropout(self.out(y.transpose(1, 2).reshape(n, length, width)), self.dropout, self.training)
        y = self.down(F.gelu(self.up(self.norm_two(x))))
        return x + F.dropout(y, self.dropout, self.training)


class Transformer(nn.Module):
    """A GPT over characters."""

    def __init__(self, kinds: int, length: int, *, width: int, layers: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(kinds, width), nn.Parameter(0.02 * torch.randn(length, width))
        self.blocks = nn.ModuleList([Block(width, heads, causal=True, dropout=dropout) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, kinds, bias=False)
        nn.init.normal_(self.embed.weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x) + self.place[: x.shape[1]]
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h))


class VisionTransformer(nn.Module):
    """Patches of 4 x 4."""

    def __init__(self, width: int = 96, layers: int = 4, heads: int = 4) -> None:
        super().__init__()
        self.patch = nn.Conv2d(1, width, 4, 4)
        self.place = nn.Parameter(0.02 * torch.randn(49, width))
        self.blocks = nn.ModuleList([Block(width, heads, causal=False, dropout=0.0) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = self.patch(x).flatten(2).transpose(1, 2) + self.place
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h).mean(1))


class Mixer(nn.Module):
    """An MLP-Mixer over patches of 4 x 4."""

    def __init__(self, width: int = 64, layers: int = 3) -> None:
        super().__init__()
        self.patch = nn.Conv2d(1, width, 4, 4)
        self.places = nn.ModuleList(
            [nn.Sequential(nn.Linear(49, 96), nn.GELU(), nn.Linear(96, 49)) for _ in range(layers)]
        )
        self.features = nn.ModuleList(
            [nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(layers)]
        )
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(2 * layers + 1)])
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = self.patch(x).flatten(2).transpose(1, 2)
        for number, (places, features) in enumerate(zip(self.places, self.features, strict=True)):
            h = h + places(self.norms[2 * number](h).transpose(1, 2)).transpose(1, 2)
            h = h + features(self.norms[2 * number + 1](h))
        return self.head(self.norms[-1](h).mean(1))


class Variational(nn.Module):
    """A variational autoencoder: the image again, and how far its code is from a standard normal one."""

    def __init__(self, code: int = 16) -> None:
        super().__init__()
        self.encoder, self.decoder = perceptron(784, 256, 2 * code), perceptron(code, 256, 784)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_variance = self.encoder(x).chunk(2, 1)
        again = self.decoder(mean + torch.randn_like(mean) * (0.5 * log_variance).exp())
        return again, 0.5 * (mean**2 + log_variance.exp() - 1 - log_variance).sum(1)


class Recurrent(nn.Module):
    """A GRU, or an LSTM, over characters."""

    def __init__(self, kinds: int, width: int = 256, *, cell: type[nn.GRU | nn.LSTM] = nn.GRU, layers: int = 2) -> None:
        super().__init__()
        self.embed, self.gru = nn.Embedding(kinds, 64), cell(64, width, num_layers=layers, batch_first=True)
        self.head = nn.Linear(width, kinds)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.gru(self.embed(x))[0])


def perceptron(*sizes: int, bias: bool = True) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after, bias=bias), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Denoiser(nn.Module):
    """Predicts the noise in an image, given how much there is."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.level = nn.Sequential(nn.Linear(16, 64), nn.SiLU(), nn.Linear(64, 2 * width))
        self.enter, self.down = nn.Conv2d(1, width, 3, 1, 1), nn.Conv2d(width, 2 * width, 4, 2, 1)
        self.middle = nn.ModuleList([nn.Conv2d(2 * width, 2 * width, 3, 1, 1) for _ in range(3)])
        self.norms = nn.ModuleList([nn.GroupNorm(8, 2 * width) for _ in range(3)])
        self.up, self.leave = nn.ConvTranspose2d(2 * width, width, 4, 2, 1), nn.Conv2d(2 * width, 1, 3, 1, 1)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        waves = t.view(-1, 1) * math.pi * 2 ** torch.arange(8, device=t.device).float()
        level = self.level(torch.cat([waves.sin(), waves.cos()], 1)).view(len(x), -1, 1, 1)
        first = F.silu(self.enter(x))
        h = F.silu(self.down(first)) + level
        for norm, layer in zip(self.norms, self.middle, strict=True):
            h = h + layer(F.silu(norm(h)))
        return self.leave(torch.cat([first, F.silu(self.up(h))], 1))


class Recommender(nn.Module):
    """Embeddings of users and items, and a perceptron over both."""

    def __init__(self, users: int, items: int, width: int = 16) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(users, width), nn.Embedding(items, width)
        self.bias = nn.Embedding(items, 1)
        self.mix = nn.Sequential(nn.Linear(2 * width, 64), nn.ReLU(), nn.Linear(64, 1))
        for table in (self.users, self.items):
            nn.init.normal_(table.weight, std=0.1)
        nn.init.zeros_(self.bias.weight)

    def forward(self, pairs: Tensor) -> Tensor:
        user, item = self.users(pairs[:, 0]), self.items(pairs[:, 1])
        product = (user * item).sum(1) + self.bias(pairs[:, 1]).squeeze(1)
        return product + self.mix(torch.cat([user, item], 1)).squeeze(1)
