"""A small language model on bytes of text, with Hugging Face's Trainer."""

import argparse
import os
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

parser = argparse.ArgumentParser()
parser.add_argument("--limit", type=int, default=2_000, help="samples")
parser.add_argument("--epochs", type=int, default=2)
options = parser.parse_args()


def text() -> bytes:
    """The text in $SWELL_DATA, or else the source of this file, again and again."""
    folder = os.environ.get("SWELL_DATA")
    files = sorted(Path(folder, "text").glob("*.txt")) if folder else []
    return files[0].read_bytes() if files else Path(__file__).read_bytes() * 200


LENGTH = 64
tokens = torch.frombuffer(bytearray(text()), dtype=torch.uint8).long()
rows = tokens[: len(tokens) // LENGTH * LENGTH].view(-1, LENGTH)[: options.limit]
dataset = [{"input_ids": row, "labels": row} for row in rows]

torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=LENGTH, n_embd=64, n_layer=2, n_head=2))
args = TrainingArguments(
    output_dir="runs/huggingface",
    per_device_train_batch_size=16,
    num_train_epochs=options.epochs,
    learning_rate=1e-3,
    warmup_steps=10,
    logging_steps=10,
    report_to=[],
)
trainer = Trainer(model=model, args=args, train_dataset=dataset)
trainer.train()
print(trainer.state.log_history[-1])
