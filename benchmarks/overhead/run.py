"""What a whole job costs against the plain torch loop that it replaces, one process, interleaved.

    python benchmarks/overhead/run.py [--device cuda] [--core 4] [--toy] [--seconds 330] [--out result.json]

Loops of three kinds train one model in turns of a few steps: the plain loop with a ``DataLoader``, a job without
statistics, and a job that measures by its default settings. With FSDP2, in a world of one, each has a model of its own.
There are several loops of each kind, because where the memory of one happens to lie makes up to 2 % of a step whose
pace the host sets; ``plain_copies`` says how far the plain loops are apart. The first 200 steps and the rest are told
apart: compiling, the first burst of measuring and everything that is made once fall into the first, and there only the
first loop of each kind counts. On the CPU the time is processor time, because other work on the machine falls on all
loops alike only then. With ``--core`` all threads are held to one core once the model is compiled: there the plain loop
is quickest and steps scatter least. The file is written after each row, so that a run that is cut short leaves the rows
before.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import swell

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "statistics"))
from models import GPT2, resnet18  # noqa: E402
from resident import Resident, first  # noqa: E402

swell.Job  # noqa: B018 - its modules are imported on first use, which is no part of a step

EARLY = 200  # steps that are reported apart
KINDS = ("plain", "statistics off", "as it comes")


@dataclass(frozen=True)
class Case:
    """One row: a model, its data and how a step is laid out."""

    name: str
    model: Callable[[], nn.Module]
    loss: Callable[[nn.Module, Any], Tensor]
    optimizer: Callable[[Any], torch.optim.Optimizer]
    data: Any
    batch: int
    micro: int
    compiled: bool = False
    sharded: bool = False
    collate: Callable[[list[Any]], Any] | None = first


def image_loss(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    with torch.autocast(batch[0].device.type, dtype=torch.bfloat16):
        return F.cross_entropy(model(batch[0]), batch[1])


def text_loss(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    with torch.autocast(batch[0].device.type, dtype=torch.bfloat16):
        logits = model(batch[0])
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), batch[1].view(-1))


def plain_loss(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1e-4, momentum=0.9, weight_decay=5e-4)


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-5, fused=True)


def plain_adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3)


def gpu_cases(*, toy: bool, device: str) -> list[Case]:
    """Small and large models, one and several micro-batches, eager and compiled; and two rows with FSDP2 alone."""
    images, length, words = (256, 32, 97) if toy else (8192, 1024, 50257)
    count = 64 if toy else 2048
    pictures = Resident(torch.randn(images, 3, 32, 32, device=device), torch.randint(10, (images,), device=device))
    tokens = torch.randint(words, (count, length + 1), device=device)
    text = Resident(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
    small = 4 if toy else 128

    def network() -> nn.Module:
        return resnet18(width=4) if toy else resnet18()

    def language() -> nn.Module:
        if toy:
            return GPT2(vocabulary=words, length=length, layers=2, width=16, heads=2)
        return GPT2()

    rows: list[Case] = []
    for compiled in (False, True):
        mark = ", compiled" if compiled else ""
        rows += [
            Case(f"ResNet-18, 1 x {small}{mark}", network, image_loss, sgd, pictures, small, small, compiled),
            Case(
                f"ResNet-18, 1 x {4 * small}{mark}", network, image_loss, sgd, pictures, 4 * small, 4 * small, compiled
            ),
            Case(f"GPT-2, 1 x 8{mark}", language, text_loss, adamw, text, 8, 8, compiled),
        ]
    rows.insert(1, Case(f"ResNet-18, 4 x {small}", network, image_loss, sgd, pictures, 4 * small, small))
    rows.append(Case("GPT-2, 4 x 8, compiled", language, text_loss, adamw, text, 32, 8, True))
    rows.append(Case("GPT-2, 1 x 8, FSDP2", language, text_loss, adamw, text, 8, 8, sharded=True))
    rows.append(Case("GPT-2, 4 x 8, FSDP2", language, text_loss, adamw, text, 32, 8, sharded=True))
    return rows


def cpu_cases() -> list[Case]:
    """A network of 62 small tensors with batch norm, and one of four tensors with samples from a TensorDataset."""

    def many() -> nn.Module:
        layers = [m for _ in range(15) for m in (nn.Linear(32, 32), nn.BatchNorm1d(32), nn.ReLU())]
        return nn.Sequential(nn.Linear(64, 32), *layers, nn.Linear(32, 10))

    def few() -> nn.Module:
        return nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 10))

    def table(features: int) -> TensorDataset:
        return TensorDataset(torch.randn(4096, features), torch.randint(10, (4096,)))

    return [
        Case("62 small tensors, 1 x 16", many, plain_loss, plain_adamw, table(64), 16, 16, collate=None),
        Case("784-512-10, 1 x 64", few, plain_loss, plain_adamw, table(784), 64, 64, collate=None),
    ]


def plain_loop(case: Case, model: nn.Module) -> Iterator[None]:
    optimizer, count = case.optimizer(model.parameters()), case.batch // case.micro
    loader = DataLoader(case.data, batch_size=case.micro, collate_fn=case.collate, shuffle=case.collate is None)
    number = 0
    while True:
        for batch in loader:
            loss = case.loss(model, batch)
            (loss if count == 1 else loss / count).backward()
            number += 1
            if number % count == 0:
                optimizer.step()
                optimizer.zero_grad()
                yield


def job_loop(case: Case, model: nn.Module, kind: str) -> Iterator[None]:
    optimizer = case.optimizer(model.parameters())
    measured = swell.Statistics() if kind == "as it comes" else False
    job = swell.Job(batch=case.batch, micro=case.micro, statistics=measured, progress=False)
    job.wrap(model, optimizer)
    loader = job.loader(case.data, collate_fn=case.collate, shuffle=case.collate is None)
    for _ in job.epochs(10**6):
        for batch in loader:
            job.backward(case.loss(model, batch))
            if job.step():
                yield


class Clock:
    """Seconds of a turn: of the device's work on an accelerator, of the processor on the CPU."""

    def __init__(self, device: str) -> None:
        self._cuda = device == "cuda"

    def now(self) -> float:
        if not self._cuda:
            return time.process_time()
        torch.cuda.synchronize()
        return time.perf_counter()


@contextlib.contextmanager
def held_to(core: int | None) -> Iterator[None]:
    """Hold all threads of this process to one core, and let them go again; None leaves them where they are."""
    free = os.sched_getaffinity(0)
    try:
        if core is not None:
            _hold({core})
        yield
    finally:
        if core is not None:
            _hold(free)


def _hold(cores: set[int]) -> None:
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), cores)


def made(case: Case, device: str) -> Iterator[Any]:
    """A model for each loop: one for all, or one each where the job puts its own exchange into it."""
    while True:
        torch.manual_seed(0)
        model: Any = case.model().to(device).train()
        if not case.sharded:
            break
        if not dist.is_initialized():
            dist.init_process_group(
                "nccl" if device == "cuda" else "gloo", store=dist.HashStore(), rank=0, world_size=1
            )
        mesh = init_device_mesh(device, (1,))
        for layer in model.layers:
            fully_shard(layer, mesh=mesh)
        yield fully_shard(model, mesh=mesh)
    yield from itertools.repeat(torch.compile(model) if case.compiled else model)


def measure(
    case: Case, *, device: str, core: int | None, turn: int, late: int, early: int, copies: int, deadline: float
) -> dict[str, Any]:
    """Times of all loops by turn, and ratios to the plain loops' turns beside them."""
    models = made(case, device)
    names = [(kind, copy) for copy in range(copies) for kind in KINDS]
    loops = {
        name: plain_loop(case, next(models)) if name[0] == "plain" else job_loop(case, next(models), name[0])
        for name in names
    }
    for _ in range(3):  # the first steps compile, choose kernels and fill caches, for all loops alike
        next(loops["plain", 0])
    clock, times = Clock(device), {name: [] for name in names}
    with held_to(core):
        for number in range((early + late) // turn):
            shift = number % len(names)
            for name in names[shift:] + names[:shift]:
                before = clock.now()
                for _ in range(turn):
                    next(loops[name])
                times[name].append((clock.now() - before) / turn)
            if time.monotonic() > deadline and number * turn >= early + 2 * turn:
                break
    split = early // turn
    late_turns = {name: turns[split:] for name, turns in times.items()}
    means = {
        kind: [
            statistics.fmean(turns) for turns in zip(*(late_turns[kind, copy] for copy in range(copies)), strict=True)
        ]
        for kind in KINDS
    }
    plain = [statistics.median(late_turns["plain", copy]) for copy in range(copies)]
    result: dict[str, Any] = {
        "plain_ms": statistics.median(means["plain"]) * 1e3,
        "plain_copies": [min(plain) / statistics.fmean(plain), max(plain) / statistics.fmean(plain)],
        "steps": (split + len(means["plain"])) * turn,
        "copies": copies,
        "turn": turn,
    }
    for kind in KINDS[1:]:
        ratios = sorted(ours / theirs for ours, theirs in zip(means[kind], means["plain"], strict=True))
        quarter = len(ratios) // 4
        over = statistics.median(ours - theirs for ours, theirs in zip(means[kind], means["plain"], strict=True))
        result[kind] = {
            "first": sum(times[kind, 0][:split]) / sum(times["plain", 0][:split]),
            "later": statistics.median(ratios),
            "later_mean": sum(means[kind]) / sum(means["plain"]),
            "quartiles": [ratios[quarter], ratios[-1 - quarter]],
            "over_ms": over * 1e3,
        }
    return result


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments.add_argument("--toy", action="store_true", help="the rows of the accelerator in small, on any device")
    arguments.add_argument("--early", type=int, default=EARLY)
    arguments.add_argument("--late", type=int, default=400, help="steps after the first")
    arguments.add_argument("--copies", type=int, default=3, help="loops of each kind")
    arguments.add_argument("--turn", type=int, default=20, help="steps of one loop before it is another's turn")
    arguments.add_argument("--core", type=int, default=None, help="hold all threads to this core")
    arguments.add_argument("--seconds", type=float, default=1e9, help="for all rows together")
    arguments.add_argument("--rows", nargs="+", default=[""], help="only rows with one of these in their name")
    arguments.add_argument("--out", type=Path, default=None)
    options = arguments.parse_args()
    torch.set_num_threads(1)
    if options.device == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = True
        name = torch.cuda.get_device_name()
    else:
        name = f"{platform.machine()}, processor time"
    on_gpu = options.toy or options.device == "cuda"
    rows = gpu_cases(toy=options.toy, device=options.device) if on_gpu else cpu_cases()
    chosen = [row for row in rows if any(name in row.name for name in options.rows)]
    if not chosen or options.copies < 1:
        names = ", ".join(repr(row.name) for row in rows)
        arguments.error(f"--copies must be 1 or more, and --rows must be in the name of one of {names}")
    rows = chosen
    report: dict[str, Any] = {"device": name, "torch": torch.__version__, "core": options.core, "early": options.early}
    report["rows"] = {}
    began = time.monotonic()
    for number, case in enumerate(rows):
        left = options.seconds - (time.monotonic() - began)
        deadline = time.monotonic() + left / (len(rows) - number)
        with contextlib.suppress(KeyboardInterrupt):
            report["rows"][case.name] = figures = measure(
                case,
                device=options.device,
                core=options.core,
                turn=options.turn,
                late=options.late,
                early=options.early,
                copies=options.copies,
                deadline=deadline,
            )
            least, most = figures["plain_copies"]
            print(f"{case.name:32} plain {figures['plain_ms']:8.3f} ms ({least:.3f} to {most:.3f})", end="")
            for kind in KINDS[1:]:
                one = figures[kind]
                low, high = one["quartiles"]
                print(f" | {kind}: first {one['first']:.3f} later {one['later']:.3f} ({low:.3f} to {high:.3f})", end="")
            print(flush=True)
        if options.out is not None:
            options.out.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
