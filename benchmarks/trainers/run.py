"""What a step costs with swell inside Trainer, TRL, Accelerate, Lightning and Fabric, at a fixed batch, against plain.

    python benchmarks/trainers/run.py [--device cuda] [--precision bf16] [--seconds 70] [--out result.json]

Runs of each library train the same GPT-2 in one process: the plain one, swell without statistics, swell with them, and
with ``--control`` the plain one once more, whose ratio shows the noise of the measurement. Each has a thread of its own
and makes 5 steps at a time while the others wait, in changing order. A round is 60 steps of each run, and ratios are
taken within a round, so that other work on the machine falls on all alike. The first steps are not timed, and those
after them are reported apart, because measuring may cost more there. Then all runs are made again in another order,
because where one lies in memory may cost or save it a per cent or two. Nothing is saved, logged or evaluated. Wall and
processor time are recorded. On the CPU the processor's counts, because others use the machine too; on a GPU the wall
clock's, read when the device has done its work. A library that is not installed is left out.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import argparse
import contextlib
import gc
import importlib.metadata
import importlib.util
import itertools
import json
import logging
import platform
import random
import statistics
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

KINDS = ("plain", "statistics off", "statistics on", "plain again")
PLAIN = ("plain", "plain again")
CLOCKS = ("wall", "processor")
ROUND, TURN = 60, 5  # steps of each run in a round, and in one turn
ENDLESS = 1_000_000  # steps or epochs: the clock ends a run
MIXED = {"fp32": "no", "bf16": "bf16", "fp16": "fp16"}  # as Accelerate spells precisions
LIGHTNING = {"fp32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}


@dataclass(frozen=True)
class Setup:
    """What all runs have in common."""

    device: str
    precision: str
    batch: int
    length: int
    width: int
    layers: int
    words: int

    def language_model(self) -> Any:
        from transformers import GPT2Config, GPT2LMHeadModel

        torch.manual_seed(0)
        config = GPT2Config(vocab_size=self.words, n_positions=self.length, n_embd=self.width, n_layer=self.layers,
                            n_head=self.width // 32, bos_token_id=0, eos_token_id=0)  # fmt: skip
        return GPT2LMHeadModel(config)

    def optimizer(self, model: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=5e-5)

    def loader(self) -> DataLoader[Any]:
        return DataLoader(Text(self), batch_size=self.batch, shuffle=True)


def setup_of(device: str, precision: str) -> Setup:
    """A small model for a CPU, a larger one for a GPU."""
    if device == "cpu":
        return Setup(device, precision, batch=8, length=32, width=64, layers=2, words=256)
    return Setup(device, precision, batch=8, length=1024, width=768, layers=6, words=32_768)


class Text(Dataset[dict[str, torch.Tensor]]):
    """Random tokens, in rows enough for one endless epoch."""

    def __init__(self, setup: Setup) -> None:
        generator = torch.Generator().manual_seed(0)
        self.tokens = torch.randint(setup.words, (1024, setup.length), generator=generator)

    def __len__(self) -> int:
        return 200_000

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        row = self.tokens[index % len(self.tokens)]
        return {"input_ids": row, "labels": row}


# Each of these trains without end and calls ``stepped`` after every optimizer step; it takes the kind of run and a
# folder for its files.
Stepped = Callable[[], None]


def train_trainer(setup: Setup, kind: str, folder: str, stepped: Stepped) -> None:
    import transformers

    import swell.transformers

    options = {
        "model": setup.language_model(),
        "args": transformers.TrainingArguments(**hugging_face_arguments(setup, folder)),
        "train_dataset": Text(setup),
        "callbacks": [after_each_step(stepped)],
    }
    trainer: Any = transformers.Trainer
    if kind not in PLAIN:
        trainer = swell.transformers.Trainer
        options |= {"statistics": kind == "statistics on", "save": None}
    trainer(**options).train()


def train_sft(setup: Setup, kind: str, folder: str, stepped: Stepped) -> None:
    import trl
    from datasets import Dataset as Table
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    import swell.transformers

    class Elastic(swell.transformers.Elastic, trl.SFTTrainer): ...  # type: ignore[misc]

    words = {f"w{number}": number for number in range(setup.words)}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="w1")), pad_token="w0", eos_token="w0"
    )
    tokens = torch.randint(1, setup.words, (8192, setup.length), generator=torch.Generator().manual_seed(0))
    options = {
        "model": setup.language_model(),
        "args": trl.SFTConfig(dataset_kwargs={"skip_prepare_dataset": True}, **hugging_face_arguments(setup, folder)),
        "train_dataset": Table.from_dict({"input_ids": tokens.numpy()}),
        "processing_class": tokenizer,
        "callbacks": [after_each_step(stepped)],
    }
    trainer: Any = trl.SFTTrainer
    if kind not in PLAIN:
        trainer = Elastic
        options |= {"statistics": kind == "statistics on", "save": None}
    trainer(**options).train()


def hugging_face_arguments(setup: Setup, folder: str) -> dict[str, Any]:
    return {
        "output_dir": folder,
        "per_device_train_batch_size": setup.batch,
        "max_steps": ENDLESS,
        "use_cpu": setup.device == "cpu",
        "bf16": setup.precision == "bf16",
        "fp16": setup.precision == "fp16",
        "report_to": [],
        "disable_tqdm": True,
        "save_strategy": "no",
        "logging_strategy": "no",
    }


def after_each_step(act: Stepped) -> Any:
    import transformers

    class AfterEachStep(transformers.TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            act()

    return AfterEachStep()


def train_accelerate(setup: Setup, kind: str, folder: str, stepped: Stepped) -> None:
    import accelerate

    import swell.accelerate

    options = {"cpu": setup.device == "cpu", "mixed_precision": MIXED[setup.precision]}
    if kind in PLAIN:
        accelerator: Any = accelerate.Accelerator(**options)
    else:
        accelerator = swell.accelerate.Accelerator(statistics=kind == "statistics on", **options)  # saves in no folder
    model = setup.language_model().train()
    model, optimizer, loader = accelerator.prepare(model, setup.optimizer(model), setup.loader())
    try:
        for batch in loader:
            accelerator.backward(model(**batch).loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            if accelerator.sync_gradients:  # a measured step may be cut in two
                stepped()
    finally:
        accelerator.end_training()


def train_lightning(setup: Setup, kind: str, folder: str, stepped: Stepped) -> None:
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = setup.language_model().train()

        def training_step(self, batch: Any) -> torch.Tensor:
            return self.model(**batch).loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return setup.optimizer(self)

    class AfterEachStep(lightning.Callback):
        steps = 0

        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            if trainer.global_step > self.steps:  # a measured step may be two batches
                self.steps = trainer.global_step
                stepped()

    trainer = lightning.Trainer(
        accelerator=setup.device,
        devices=1,
        precision=LIGHTNING[setup.precision],  # type: ignore[arg-type]
        strategy=lightning_strategy(setup, kind, folder),
        max_epochs=ENDLESS,
        gradient_clip_val=1.0,
        callbacks=[AfterEachStep()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(), setup.loader())


def train_fabric(setup: Setup, kind: str, folder: str, stepped: Stepped) -> None:
    import lightning

    strategy = lightning_strategy(setup, kind, folder)
    fabric = lightning.Fabric(
        accelerator=setup.device,
        devices=1,
        precision=LIGHTNING[setup.precision],  # type: ignore[arg-type]
        strategy=strategy,
    )
    fabric.launch()
    module = setup.language_model().train()
    model, optimizer = fabric.setup(module, setup.optimizer(module))
    loader = fabric.setup_dataloaders(setup.loader())
    try:
        for _ in itertools.count() if kind in PLAIN else strategy.epochs(ENDLESS):
            for batch in loader:
                fabric.backward(model(**batch).loss)
                fabric.clip_gradients(model, optimizer, max_norm=1.0)
                updated = optimizer.step()
                optimizer.zero_grad()
                if kind in PLAIN or updated:  # a measured step may be two batches
                    stepped()
    finally:
        if kind not in PLAIN:
            strategy.job.close()


def lightning_strategy(setup: Setup, kind: str, folder: str) -> Any:
    if kind in PLAIN:
        return "auto"
    import swell.lightning

    return swell.lightning.Strategy(
        folder, batch=setup.batch, statistics=kind == "statistics on", save=None, progress=False
    )


LIBRARIES: dict[str, tuple[Callable[[Setup, str, str, Stepped], None], tuple[str, ...]]] = {
    "Trainer": (train_trainer, ("transformers", "accelerate")),
    "TRL SFT": (train_sft, ("transformers", "accelerate", "trl", "datasets")),
    "Accelerate": (train_accelerate, ("accelerate", "transformers")),
    "Lightning": (train_lightning, ("lightning", "transformers")),
    "Fabric": (train_fabric, ("lightning", "transformers")),
}


class Over(BaseException):
    """Ends a training from inside; not an Exception, so that no library takes it for an error of the model."""


class Stepwise:
    """A training in a thread of its own, which goes on only while it is told to make steps."""

    def __init__(self, train: Callable[[Stepped], None]) -> None:
        self._train = train
        self._may_go, self._done = threading.Semaphore(0), threading.Semaphore(0)
        self._left, self._over = 0, False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def advance(self, steps: int) -> None:
        """Make so many optimizer steps."""
        self._left = steps
        if self._thread.ident is None:
            self._thread.start()
        else:
            self._may_go.release()
        self._done.acquire()
        if self._error is not None:
            raise self._error

    def end(self) -> None:
        """Leave the training where it is."""
        self._over = True
        self._may_go.release()
        if self._thread.ident is not None:
            self._thread.join(timeout=60)

    def _run(self) -> None:
        torch.set_num_threads(1)  # counts for the thread that calls it
        try:
            self._train(self._stepped)
            self._error = RuntimeError("the training ended by itself")
        except Over:
            pass
        except BaseException as error:
            self._error = error
        self._done.release()

    def _stepped(self) -> None:
        self._left -= 1
        if self._left == 0:
            self._done.release()
            self._may_go.acquire()
            if self._over:
                raise Over


Times = dict[str, list[float]]  # by kind of run: seconds of a step by each clock


class Clock:
    """Wall and processor time, when the device has done its work."""

    def __init__(self, device: str) -> None:
        self._waits = device == "cuda"

    def now(self) -> tuple[float, float]:
        if self._waits:
            torch.cuda.synchronize()
        return time.perf_counter(), time.process_time()


def measure(
    train: Any, setup: Setup, kinds: tuple[str, ...], lengths: argparse.Namespace, *, deadline: float
) -> dict[str, Any]:
    """Times of a step in the early steps, and by round; runs are made again until all repeats or the time are over."""
    first: list[Times] = []
    later: list[Times] = []
    for number in range(lengths.repeats):
        if not later or time.monotonic() < deadline:
            early, rounds = measure_once(train, setup, kinds, lengths, number=number, deadline=deadline)
            first, later = [*first, early], later + rounds
            gc.collect()  # not in the middle of the next steps
    counts = {"repeats": len(first), "rounds": len(later)}
    return counts | {name: figures(first, later, place) for place, name in enumerate(CLOCKS)}


def measure_once(
    train: Any, setup: Setup, kinds: tuple[str, ...], lengths: argparse.Namespace, *, number: int, deadline: float
) -> tuple[Times, list[Times]]:
    """The early steps and the rounds of newly made runs; ``number`` chooses the order in which they are made."""
    permutations = list(itertools.permutations(kinds))
    random.Random(number).shuffle(permutations)
    clock, orders = Clock(setup.device), itertools.cycle(permutations)
    rounds: list[Times] = []
    with contextlib.ExitStack() as stack:
        runs: dict[str, Stepwise] = {}
        for kind in kinds:
            folder = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
            runs[kind] = Stepwise(lambda stepped, k=kind, f=folder: train(setup, k, f, stepped))
            stack.callback(runs[kind].end)

        def timed(steps: int) -> Times:
            spent = {kind: [0.0, 0.0] for kind in kinds}
            for _ in range(steps // TURN):
                for kind in next(orders):
                    before = clock.now()
                    runs[kind].advance(TURN)
                    for place, (start, end) in enumerate(zip(before, clock.now(), strict=True)):
                        spent[kind][place] += (end - start) / steps
            return spent

        timed(lengths.warm_up)
        early = timed(lengths.early)
        while len(rounds) < lengths.rounds and (not rounds or time.monotonic() < deadline):
            rounds.append(timed(ROUND))
    return early, rounds


def figures(first: list[Times], later: list[Times], place: int) -> dict[str, Any]:
    """By one clock: milliseconds of a plain step, and ratios to it, early and in each later round."""
    plain = [each["plain"][place] for each in later]
    result: dict[str, Any] = {"plain_ms": round(1e3 * statistics.median(plain), 3)}
    early = sum(each["plain"][place] for each in first)
    for kind in list(first[0])[1:]:
        own = [each[kind][place] for each in later]
        ratios = [a / b for a, b in zip(own, plain, strict=True)]
        result[kind] = {
            "early": round(sum(each[kind][place] for each in first) / early, 4) if early else None,
            "median": round(statistics.median(ratios), 4),
            "mean": round(sum(own) / sum(plain), 4),
            "over_ms": round(1e3 * statistics.median(a - b for a, b in zip(own, plain, strict=True)), 3),
            "rounds": [round(ratio, 4) for ratio in ratios],
        }
    return result


def missing(packages: tuple[str, ...]) -> list[str]:
    """Those of the packages that are not installed."""
    return [name for name in packages if importlib.util.find_spec(name) is None]


def versions() -> dict[str, str]:
    """The releases that are measured."""
    found = {"python": platform.python_version(), "torch": torch.__version__}
    for name in ("transformers", "trl", "accelerate", "lightning"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def row(name: str, found: dict[str, Any], counts: str) -> str:
    """A line of the table: medians of the rounds, their range, and the ratio in the early steps."""
    if "left_out" in found:
        return f"| {name} | left out: {found['left_out']} |"
    cells = [f"{found[counts]['plain_ms']:.1f}"]
    for one in list(found[counts].values())[1:]:
        early = "" if one["early"] is None else f"; early {one['early']:.2f}"
        cells.append(f"{one['median']:.3f} ({min(one['rounds']):.3f} to {max(one['rounds']):.3f}{early})")
    return f"| {name} | {' | '.join(cells)} |"


def main() -> None:
    """Measure the libraries one after the other and print the table."""
    began = time.monotonic()
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    arguments.add_argument("--precision", choices=list(MIXED), default="fp32")
    arguments.add_argument("--warm-up", type=int, default=30, help="steps of each run that are not timed")
    arguments.add_argument("--early", type=int, default=120, help="steps after them that are reported apart")
    arguments.add_argument("--rounds", type=int, default=2, help=f"of {ROUND} steps of each run, after those")
    arguments.add_argument("--repeats", type=int, default=4, help="how often all of this is done, with new runs")
    arguments.add_argument("--seconds", type=float, default=1e9, help="for all libraries together; at least one round")
    arguments.add_argument("--only", nargs="+", choices=list(LIBRARIES), default=list(LIBRARIES))
    arguments.add_argument("--control", action="store_true", help="time a second plain run too")
    arguments.add_argument("--out", type=Path, default=None)
    options = arguments.parse_args()
    if options.device == "cpu" and options.precision == "fp16":
        arguments.error("--precision is fp16 on a CPU; expected a GPU, because Accelerate refuses it. Use bf16.")
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    counts = "wall" if options.device == "cuda" else "processor"
    machine = torch.cuda.get_device_name() if options.device == "cuda" else platform.machine()
    setup = setup_of(options.device, options.precision)
    report: dict[str, Any] = {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine,
        "counts": counts,
        "setup": vars(setup),
        "warm_up": options.warm_up,
        "early": options.early,
        **versions(),
        "rows": {},
    }
    kinds = KINDS if options.control else KINDS[:-1]
    print(f"| {counts} time | plain, ms a step | {' | '.join(kinds[1:])} |\n|---|{'---|' * len(kinds)}", flush=True)
    for number, name in enumerate(options.only):
        train, packages = LIBRARIES[name]
        left = options.seconds - (time.monotonic() - began)
        deadline = time.monotonic() + left / (len(options.only) - number)
        if absent := missing(packages):
            report["rows"][name] = {"left_out": f"{', '.join(absent)} not installed"}
        else:
            try:
                report["rows"][name] = measure(train, setup, kinds, options, deadline=deadline)
            except Exception as error:  # the other libraries are measured all the same
                traceback.print_exc()
                report["rows"][name] = {"left_out": f"{type(error).__name__}: {str(error).splitlines()[0]}"}
        print(row(name, report["rows"][name], counts), flush=True)
        if options.out is not None:
            options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
