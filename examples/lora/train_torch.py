"""Fine-tuning a small transformer with LoRA; train_torch.py and train_swell.py differ in what swell needs."""

import argparse

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

LENGTH, WORDS, WIDTH = 16, 40, 32


class LowRank(nn.Module):
    """A frozen linear layer plus a product of two small matrices, which alone are trained."""

    def __init__(self, layer: nn.Linear, rank: int = 4, alpha: float = 8.0) -> None:
        super().__init__()
        self.layer, self.scale = layer.requires_grad_(False), alpha / rank
        self.down = nn.Parameter(torch.randn(rank, layer.in_features) / layer.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(layer.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + F.linear(F.linear(x, self.down), self.up) * self.scale


class Classifier(nn.Module):
    """Whether the two halves of a sequence say the same, as in a task of paraphrases."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.places.weight
        y = self.norms[0](x)
        x = x + F.scaled_dot_product_attention(self.query(y), self.key(y), self.value(y))
        x = x + self.narrow(F.gelu(self.wide(self.norms[1](x))))
        return self.head(x.mean(1))


def sentences(count: int) -> TensorDataset:
    """Pairs of sentences; in half of them the second has the words of the first."""
    generator = torch.Generator().manual_seed(1)
    first = torch.randint(WORDS, (count, LENGTH // 2), generator=generator)
    label = torch.arange(count) % 2
    other = torch.randint(WORDS, first.shape, generator=generator)
    second = torch.where(label.bool().unsqueeze(1), first.flip(1), other)
    return TensorDataset(torch.cat([first, second], 1), label)


def pretrained() -> Classifier:
    """A model with frozen weights, of which the attention's and the wide layers are adapted."""
    model = Classifier().requires_grad_(False)
    for name in ("query", "key", "value", "wide", "narrow"):
        setattr(model, name, LowRank(getattr(model, name)))
    model.head.requires_grad_(True)
    return model


def main() -> float:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--limit", type=int, default=1024, help="use this many pairs of sentences")
    args = parser.parse_args()

    torch.manual_seed(0)
    train_set = sentences(args.limit)
    model = pretrained()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=3e-3)
    loader = DataLoader(train_set, batch_size=32, shuffle=True)

    loss = float("nan")
    for epoch in range(args.epochs):
        for tokens, labels in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(tokens), labels).backward()
            optimizer.step()

        with torch.no_grad():
            loss = F.cross_entropy(model(train_set.tensors[0]), train_set.tensors[1]).item()
        print(f"epoch {epoch}: loss {loss:.4f}")
    return loss


if __name__ == "__main__":
    main()
