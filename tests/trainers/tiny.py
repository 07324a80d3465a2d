"""Tiny models and data for the trainers: made from configurations, in memory, in float64."""

# pyright: reportMissingImports=false
from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset, IterableDataset

WORDS, LENGTH = 50, 12


def language_model(dtype: torch.dtype = torch.float64, seed: int = 0) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=WORDS, n_positions=16, n_embd=32, n_layer=2, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return GPT2LMHeadModel(config).to(dtype)


class Regression(nn.Module):
    """A small network whose loss is computed in its own dtype, unlike that of Hugging Face's language models."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.network = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 1)).double()

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        predictions = self.network(x).squeeze(-1)
        if labels is None:
            return {"logits": predictions}
        return {"loss": nn.functional.mse_loss(predictions, labels), "logits": predictions}


class Rows(Dataset):
    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.rows[index]


class Stream(IterableDataset):
    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows

    def __iter__(self) -> Any:
        return iter(self.rows)


def numbers(samples: int, seed: int = 1) -> Rows:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, 5, generator=generator, dtype=torch.float64)
    y = torch.sin(x.sum(-1)) + 0.1 * torch.randn(samples, generator=generator, dtype=torch.float64)
    return Rows([{"x": x[i], "labels": y[i]} for i in range(samples)])


def sentences(samples: int, seed: int = 1, *, uneven: bool = True) -> Rows:
    """Rows of tokens; with ``uneven`` some are shorter, and their labels are left out there."""
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for index in range(samples):
        tokens = torch.randint(1, WORDS, (LENGTH,), generator=generator)
        labels = tokens.clone()
        if uneven:
            labels[3 + index % (LENGTH - 3) :] = -100
        rows.append({"input_ids": tokens, "labels": labels})
    return Rows(rows)


def digest(model: Any) -> list[float]:
    """The sum of absolute weights of each tensor."""
    return [float(tensor.detach().double().abs().sum()) for tensor in model.state_dict().values()]
