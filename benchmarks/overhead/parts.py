"""Which parts of a step a job makes longer: loading, the forward and backward passes, and the update.

    python benchmarks/overhead/parts.py [--device cuda] [--row "ResNet-18, 1 x 128"] [--core 4] [--steps 600]

Plain loops and jobs without statistics train one model in turns, two of each, and the host's clock is read around each
part. Nothing waits for the device, so this is the host's time, which sets the pace of short steps. With ``--core`` all
threads are held to one core once everything is compiled: where they move between cores, a part takes a fifth longer or
less from one moment to the next. The first steps of a turn, whose code is in no cache, are left out.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from itertools import chain, pairwise
from typing import Any

import torch
from run import Case, cpu_cases, gpu_cases, held_to
from torch import Tensor, nn
from torch.utils.data import DataLoader

import swell

PARTS = ("load", "forward", "backward", "step")
SETTLED, COLD = 200, 3  # steps of a loop, and of each turn, that are left out

Times = tuple[int, ...]  # of each part, in nanoseconds


def plain_loop(case: Case, model: nn.Module) -> Iterator[Times]:
    optimizer = case.optimizer(model.parameters())
    loader = DataLoader(case.data, batch_size=case.micro, collate_fn=case.collate, shuffle=case.collate is None)

    def update() -> None:
        optimizer.step()
        optimizer.zero_grad()

    while True:
        yield from timed(iter(loader), lambda batch: case.loss(model, batch), Tensor.backward, update)


def job_loop(case: Case, model: nn.Module) -> Iterator[Times]:
    job = swell.Job(batch=case.batch, micro=case.micro, statistics=False, progress=False)
    job.wrap(model, case.optimizer(model.parameters()))
    loader = job.loader(case.data, collate_fn=case.collate, shuffle=case.collate is None)
    for _ in job.epochs(10**6):
        yield from timed(iter(loader), lambda batch: case.loss(model, batch), job.backward, job.step)


def timed(
    batches: Iterator[Any],
    forward: Callable[[Any], Tensor],
    backward: Callable[[Tensor], object],
    update: Callable[[], object],
) -> Iterator[Times]:
    """Train on one pass over the data."""
    now = time.perf_counter_ns
    while True:
        moments = [now()]
        batch = next(batches, None)
        if batch is None:
            return
        moments.append(now())
        loss = forward(batch)
        moments.append(now())
        backward(loss)
        moments.append(now())
        update()
        moments.append(now())
        yield tuple(later - before for before, later in pairwise(moments))


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments.add_argument(
        "--row", default="", help="one of run.py's rows with a single micro-batch; the first if left out"
    )
    arguments.add_argument("--core", type=int, default=None, help="hold all threads to this core")
    arguments.add_argument("--steps", type=int, default=600)
    arguments.add_argument("--turn", type=int, default=20)
    options = arguments.parse_args()
    torch.set_num_threads(1)
    torch.backends.cuda.matmul.allow_tf32 = True  # as in run.py
    every = gpu_cases(toy=False, device="cuda") if options.device == "cuda" else cpu_cases()
    rows = {row.name: row for row in every if row.batch == row.micro}
    name = options.row or next(iter(rows))
    if name not in rows:
        arguments.error(f"--row is {name!r}; expected one of {', '.join(map(repr, rows))}")
    if options.turn <= COLD or options.steps < SETTLED + options.turn:
        arguments.error(f"--turn must be above {COLD}, and --steps {SETTLED} and a turn at least")
    case = rows[name]
    torch.manual_seed(0)
    model: Any = case.model().to(options.device).train()
    model = torch.compile(model) if case.compiled else model
    loops = {
        "plain": plain_loop(case, model),
        "job": job_loop(case, model),
        "plain again": plain_loop(case, model),
        "job again": job_loop(case, model),
    }
    for _ in range(3):  # what compiles does so now, and the threads of the backward pass begin
        next(loops["plain"])
    times: dict[str, list[Times]] = {name: [] for name in loops}
    names = list(loops)
    with held_to(options.core):
        for number in range(options.steps // options.turn):
            shift = number % len(names)
            for name in names[shift:] + names[:shift]:
                if options.device == "cuda":
                    torch.cuda.synchronize()
                turn = [next(loops[name]) for _ in range(options.turn)]
                times[name] += turn[COLD:] if number * options.turn >= SETTLED else []
    print(f"{case.name}, medians in microseconds" + ("" if options.core is None else f", on core {options.core}"))
    for number, part in enumerate(chain(PARTS, ["all"])):
        medians = {}
        for name, steps in times.items():
            values = [sum(step) if part == "all" else step[number] for step in steps]
            medians[name] = statistics.median(values) / 1e3
        over = (medians["job"] + medians["job again"] - medians["plain"] - medians["plain again"]) / 2
        print(f"{part:9}", *(f"{name} {value:8.1f}" for name, value in medians.items()), f"| over {over:+.1f}")


if __name__ == "__main__":
    main()
