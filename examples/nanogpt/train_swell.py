"""A GPT on characters in the manner of nanoGPT; train_torch.py and train_swell.py differ in what swell needs."""

import gzip
import math
import os
import sys
from contextlib import nullcontext
from pathlib import Path

import swell
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset

# Settings; each can be changed on the command line, as in --max_iters=100.
eval_interval = 100
batch_size = 8  # of one forward pass
gradient_accumulation_steps = 4
block_size = 32
n_layer = 2
n_head = 2
n_embd = 32
dropout = 0.0
learning_rate = 3e-3
max_iters = 500
weight_decay = 0.1
beta1, beta2 = 0.9, 0.95
grad_clip = 1.0
decay_lr = True
warmup_iters = 20
lr_decay_iters = 500
min_lr = 3e-4
seed = 1337
dtype = "bfloat16" if torch.cuda.is_available() else "float32"  # or "float16"
for argument in sys.argv[1:]:
    key, value = argument.removeprefix("--").split("=")
    globals()[key] = type(globals()[key])(value)

device = "cuda" if torch.cuda.is_available() else "cpu"
precision = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[dtype]
ctx = nullcontext() if dtype == "float32" else torch.autocast(device, precision)


def load_text() -> str:
    """Shakespeare from the folder SWELL_DATA, else sentences from a table of words."""
    if "SWELL_DATA" in os.environ:
        return gzip.decompress((Path(os.environ["SWELL_DATA"]) / "text/tinyshakespeare.txt.gz").read_bytes()).decode()
    words = ["a the every some", "tide wave ship gull sailor", "lifts follows finds leaves", "quietly soon twice again"]
    table = [column.split() for column in words]
    draws = torch.randint(60, (2000, 6), generator=torch.Generator().manual_seed(0)).tolist()
    columns = [table[place] for place in (0, 1, 2, 0, 1, 3)]
    lines = (" ".join(c[n % len(c)] for c, n in zip(columns, row, strict=True)) for row in draws)
    return ".\n".join(lines)


text = load_text()
stoi = {character: number for number, character in enumerate(sorted(set(text)))}
tokens = torch.tensor([stoi[character] for character in text])
train_data, val_data = tokens[: len(tokens) * 9 // 10], tokens[len(tokens) * 9 // 10 :]


class Blocks(Dataset):
    """Pieces of text; the loader's order takes the place of random offsets."""

    def __init__(self, data: Tensor, stride: int = 1) -> None:
        self.data, self.starts = data, range(0, len(data) - block_size, stride)

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        i = self.starts[index]
        return self.data[i : i + block_size], self.data[i + 1 : i + 1 + block_size]


class Block(nn.Module):
    """Attention to what came before, then a small network for each place."""

    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)
        self.c_attn, self.c_proj = nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)
        self.c_fc, self.mlp_proj = nn.Linear(n_embd, 4 * n_embd), nn.Linear(4 * n_embd, n_embd)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        B, T, C = x.shape
        q, k, v = (y.view(B, T, n_head, C // n_head).transpose(1, 2) for y in self.c_attn(self.ln_1(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(B, T, C)
        x = x + self.dropout(self.c_proj(y))
        return x + self.dropout(self.mlp_proj(F.gelu(self.c_fc(self.ln_2(x)))))


class GPT(nn.Module):
    """Characters and places go in, scores of the next character come out, and the loss if the targets are given."""

    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(len(stoi), n_embd), nn.Embedding(block_size, n_embd)
        self.h = nn.Sequential(*(Block() for _ in range(n_layer)))
        self.ln_f, self.lm_head = nn.LayerNorm(n_embd), nn.Linear(n_embd, len(stoi), bias=False)
        for name, weight in self.named_parameters():
            if weight.dim() > 1:
                nn.init.normal_(weight, std=0.02 / math.sqrt(2 * n_layer) if name.endswith("proj.weight") else 0.02)
        self.lm_head.weight = self.wte.weight

    def forward(self, idx: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1], device=idx.device))
        logits = self.lm_head(self.ln_f(self.h(x)))
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        decayed = [weight for weight in self.parameters() if weight.dim() > 1]
        others = [weight for weight in self.parameters() if weight.dim() < 2]
        groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=learning_rate, betas=(beta1, beta2))


def get_lr(it: float) -> float:
    """Cosine with warm-up."""
    if it < warmup_iters:
        return learning_rate * (it + 1) / (warmup_iters + 1)
    if it > lr_decay_iters:
        return min_lr
    ratio = (it - warmup_iters) / (lr_decay_iters - warmup_iters)
    return min_lr + 0.5 * (1.0 + math.cos(math.pi * ratio)) * (learning_rate - min_lr)


def main() -> float:
    torch.manual_seed(seed)
    job = swell.Job("runs/nanogpt", batch=batch_size * gradient_accumulation_steps, micro=batch_size)
    model = GPT().to(device)
    optimizer = model.configure_optimizers()
    scaler = torch.amp.GradScaler(device, enabled=dtype == "float16")
    model, optimizer = job.wrap(model, optimizer, scaler=scaler)
    loader = job.loader(Blocks(train_data), shuffle=True)

    @torch.no_grad()
    def estimate_loss() -> float:
        model.eval()
        for X, Y in job.evaluation(Blocks(val_data, stride=block_size)):
            with ctx:
                job.metrics.mean("val loss", model(X.to(device), Y.to(device))[1])
        model.train()
        return job.metrics.results()["val loss"]

    val_loss = float("nan")
    for _epoch in job.until(steps=max_iters):
        for X, Y in loader:
            lr = get_lr(job.progress) if decay_lr else learning_rate
            for param_group in optimizer.param_groups:
                param_group["lr"] = lr
            with ctx:
                _, loss = model(X.to(device), Y.to(device))
            job.backward(loss)
            job.step(clip=grad_clip)
            if job.every(steps=eval_interval):
                val_loss = estimate_loss()
                print(f"step {job.steps}: val loss {val_loss:.4f}")
    return val_loss


if __name__ == "__main__":
    main()
