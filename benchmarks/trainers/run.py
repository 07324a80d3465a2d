"""Step time of the trainers with swell, at a fixed batch, against the plain ones: in turns, in one process, on the CPU.

``python benchmarks/trainers/run.py`` in ``.venv-trainers`` writes ``result.json`` and prints a table. Each round trains
the same small GPT-2 with the plain trainer, with swell without statistics and with them, one after the other in
changing order, and times the steps after the first two. Processor time counts on a machine that others use too.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import importlib.util
import json
import platform
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
BATCH, LENGTH, STEPS, SKIPPED = 8, 64, 12, 2


def language_model() -> Any:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(vocab_size=512, n_positions=LENGTH, n_embd=128, n_layer=2, n_head=4))


def rows() -> list[dict[str, Any]]:
    import torch

    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(512, (BATCH * STEPS, LENGTH), generator=generator)
    return [{"input_ids": row, "labels": row} for row in tokens]


class Clock:
    """Wall and processor time of each step."""

    def __init__(self) -> None:
        self.marks: list[tuple[float, float]] = []

    def mark(self) -> None:
        self.marks.append((time.perf_counter(), time.process_time()))

    @property
    def per_step(self) -> tuple[float, float]:
        first, last = self.marks[SKIPPED - 1], self.marks[-1]
        count = len(self.marks) - SKIPPED
        return (last[0] - first[0]) / count, (last[1] - first[1]) / count


def trainer_run(kind: str) -> tuple[float, float]:
    """Hugging Face's Trainer."""
    import transformers

    import swell.transformers

    clock = Clock()

    class Timing(transformers.TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            clock.mark()

    with tempfile.TemporaryDirectory() as folder:
        args = transformers.TrainingArguments(
            output_dir=folder, per_device_train_batch_size=BATCH, max_steps=STEPS, use_cpu=True, report_to=[],
            disable_tqdm=True, save_strategy="no", logging_strategy="no", train_sampling_strategy="sequential",
        )  # fmt: skip
        options: dict[str, Any] = {"model": language_model(), "args": args, "train_dataset": rows()}
        options["callbacks"] = [Timing()]
        if kind == "plain":
            trainer: Any = transformers.Trainer(**options)
        else:
            trainer = swell.transformers.Trainer(**options, statistics=kind == "statistics")
        trainer.train()
    return clock.per_step


def accelerate_run(kind: str) -> tuple[float, float]:
    """A loop with Accelerate."""
    import accelerate
    import torch
    from torch.utils.data import DataLoader

    import swell.accelerate

    clock = Clock()
    if kind == "plain":
        accelerator: Any = accelerate.Accelerator(cpu=True)
    else:
        accelerator = swell.accelerate.Accelerator(cpu=True, statistics=kind == "statistics")
    model: Any = language_model()
    data: Any = rows()
    model, optimizer, loader = accelerator.prepare(
        model, torch.optim.AdamW(model.parameters(), lr=5e-5), DataLoader(data, batch_size=BATCH)
    )
    model.train()
    for batch in loader:
        loss = model(**batch).loss
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        clock.mark()
    accelerator.end_training()
    return clock.per_step


KINDS = ("plain", "swell", "statistics")


def measured(run: Callable[[str], tuple[float, float]], rounds: int) -> dict[str, Any]:
    """Medians over the rounds, and of the ratios within each round."""
    times: dict[str, list[tuple[float, float]]] = {kind: [] for kind in KINDS}
    for kind in KINDS:  # what is done once in a process
        run(kind)
    for _ in range(rounds):
        for kind in random.sample(KINDS, len(KINDS)):
            times[kind].append(run(kind))
    result: dict[str, Any] = {}
    for number, name in enumerate(("wall", "processor")):
        plain = [each[number] for each in times["plain"]]
        result[f"{name}_ms"] = {kind: 1e3 * statistics.median(each[number] for each in times[kind]) for kind in KINDS}
        result[f"{name}_ratio"] = {
            kind: statistics.median(each[number] / alone for each, alone in zip(times[kind], plain, strict=True))
            for kind in KINDS[1:]
        }
    return result


def main() -> None:
    """Measure both and print the table."""
    if importlib.util.find_spec("transformers") is None:
        print(
            "swell: skipped, because transformers is not here: sh scripts/trainers_environment.sh, then .venv-trainers"
        )
        return
    import torch
    import transformers

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    found = {name: measured(run, rounds) for name, run in (("Trainer", trainer_run), ("Accelerate", accelerate_run))}
    print("| | plain, ms a step | swell | swell with statistics |\n|---|---|---|---|")
    for name, one in found.items():
        ratio = one["processor_ratio"]
        print(f"| {name} | {one['processor_ms']['plain']:.1f} | {ratio['swell']:.3f} | {ratio['statistics']:.3f} |")
    about = {"date": datetime.now(UTC).date().isoformat(), "python": platform.python_version(), "rounds": rounds}
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    (HERE / "result.json").write_text(json.dumps({**about, **versions, **found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
