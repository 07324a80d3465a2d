"""A small GPT on characters of Shakespeare; train_torch.py and train_swell.py differ in what swell needs."""

import argparse
import gzip
import os
from pathlib import Path

import swell
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

CONTEXT = 64

# John Keats, On the Sea (1817); Alfred Tennyson, Break, Break, Break (1842). Both are in the public domain.
POEMS = """
It keeps eternal whisperings around
Desolate shores, and with its mighty swell
Gluts twice ten thousand Caverns, till the spell
Of Hecate leaves them their old shadowy sound.
Often 'tis in such gentle temper found,
That scarcely will the very smallest shell
Be moved for days from where it sometime fell,
When last the winds of Heaven were unbound.
Oh ye! who have your eyeballs vexed and tired,
Feast them upon the wideness of the Sea;
Oh ye! whose ears are dinned with uproar rude,
Or fed too much with cloying melody,
Sit ye near some old Cavern's Mouth and brood,
Until ye start, as if the sea-nymphs quired!

Break, break, break,
On thy cold gray stones, O Sea!
And I would that my tongue could utter
The thoughts that arise in me.

O well for the fisherman's boy,
That he shouts with his sister at play!
O well for the sailor lad,
That he sings in his boat on the bay!

And the stately ships go on
To their haven under the hill;
But O for the touch of a vanish'd hand,
And the sound of a voice that is still!

Break, break, break
At the foot of thy crags, O Sea!
But the tender grace of a day that is dead
Will never come back to me.
"""


class Text(Dataset):
    """Pieces of CONTEXT characters, each with the characters that follow them."""

    def __init__(self, tokens: Tensor, *, stride: int) -> None:
        self.tokens, self.starts = tokens, range(0, len(tokens) - CONTEXT, stride)

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        start = self.starts[index]
        return self.tokens[start : start + CONTEXT], self.tokens[start + 1 : start + CONTEXT + 1]


def load_text(limit: int | None) -> tuple[Text, Text, int]:
    """Training text, validation text and the number of characters: Shakespeare from SWELL_DATA, else two poems."""
    if "SWELL_DATA" in os.environ:
        path = Path(os.environ["SWELL_DATA"]) / "text" / "tinyshakespeare.txt.gz"
        text, stride = gzip.decompress(path.read_bytes()).decode(), CONTEXT
    else:
        text, stride = POEMS, 1
    alphabet = {character: index for index, character in enumerate(sorted(set(text)))}
    tokens = torch.tensor([alphabet[character] for character in text])
    cut = len(tokens) * 9 // 10
    train_tokens = tokens[:cut] if limit is None else tokens[: CONTEXT + stride * limit]
    return Text(train_tokens, stride=stride), Text(tokens[cut:], stride=stride), len(alphabet)


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.before_attention, self.before_mixing = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries_keys_values, self.joined = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mixing = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.heads = heads

    def forward(self, x: Tensor) -> Tensor:
        split = self.queries_keys_values(self.before_attention(x)).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in split)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.joined(attended.transpose(1, 2).flatten(2))
        return x + self.mixing(self.before_mixing(x))


class GPT(nn.Module):
    def __init__(self, characters: int, *, width: int = 64, heads: int = 4, depth: int = 2) -> None:
        super().__init__()
        self.characters, self.places = nn.Embedding(characters, width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, characters))

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1], device=x.device)
        return self.head(self.blocks(self.characters(x) + self.places(places)))


def main() -> float:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--limit", type=int, help="use only this many pieces of text")
    args = parser.parse_args()

    torch.manual_seed(0)
    train_set, test_set, characters = load_text(args.limit)
    job = swell.Job("runs/language_model", batch=swell.Ramp(32, 128, over=0.5, unit="fraction"))
    device = job.device
    model = GPT(characters).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    loader = job.loader(train_set, shuffle=True)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=-(-len(train_set) // 32) * args.epochs)
    model, optimizer = job.wrap(model, optimizer, scheduler=scheduler)

    nats = float("nan")
    for epoch in job.until(epochs=args.epochs):
        for x, y in loader:
            loss = F.cross_entropy(model(x.to(device)).flatten(0, 1), y.to(device).flatten())
            job.backward(loss)
            job.step()

        with torch.no_grad():
            losses = [
                F.cross_entropy(model(x.to(device)).flatten(0, 1), y.to(device).flatten(), reduction="sum").item()
                for x, y in DataLoader(test_set, batch_size=256)
            ]
        nats = sum(losses) / (len(test_set) * CONTEXT)
        print(f"epoch {epoch}: {nats:.3f} nats a character on text not trained on")
    return nats


if __name__ == "__main__":
    main()
