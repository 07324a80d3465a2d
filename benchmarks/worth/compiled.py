"""The plain base loop with a compiled model: seconds to compile it, and seconds of a step beside the eager one's.

    SWELL_DATA=... python benchmarks/worth/compiled.py [--tasks gpt vit] [--workers 4] [--out compiled.json]

First every task is compiled in a process of its own, ``--workers`` at once, with nothing in torch's cache: what a user
waits for in the first run of a script. Then one process finds the code there and times the steps of one task after the
other.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from datetime import date
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))
from plain import batches, make_model, take_step
from tasks import TASKS, Problem, Task

WARM, TIMED = 4, 96


def seconds_of(task: Task, problem: Problem, device: str, *, compiled: bool) -> dict[str, float]:
    """Seconds of the first steps, in which a model is compiled and kernels are chosen, and of one of those after."""
    torch._dynamo.reset()
    model = make_model(problem, device, 0)
    optimizers = task.optimizers(model, 1.0)
    run: Any = torch.compile(model) if compiled else model
    source = batches(problem, task.base, 0)
    moments = [time.perf_counter()]
    for count in (WARM, TIMED):
        for _ in range(count):
            take_step(problem, run, optimizers, next(source), task.clip)
        if device == "cuda":
            torch.cuda.synchronize()
        moments.append(time.perf_counter())
    return {"first_s": moments[1] - moments[0], "step_s": (moments[2] - moments[1]) / TIMED}


def prepare(name: str, device: str) -> tuple[Task, Problem]:
    """A task whose eager loop has run, so that what both loops need is loaded."""
    torch.set_num_threads(1)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    task = TASKS[name]
    problem = task.problem(device)
    seconds_of(task, problem, device, compiled=False)
    return task, problem


def cold(name: str, device: str) -> float:
    """Seconds of the first steps with nothing in torch's cache."""
    return seconds_of(*prepare(name, device), device, compiled=True)["first_s"]


def measure(name: str, device: str) -> dict[str, float]:
    """The compiled loop, between two times of the eager one."""
    task, problem = prepare(name, device)
    before, found, after = (seconds_of(task, problem, device, compiled=which) for which in (False, True, False))
    return {**found, "eager_step_s": (before["step_s"] + after["step_s"]) / 2}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "compiled.json")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
        workers = ProcessPoolExecutor(given.workers, mp_context=get_context("spawn"), max_tasks_per_child=1)
        with workers:
            first = dict(
                zip(given.tasks, workers.map(cold, given.tasks, [given.device] * len(given.tasks)), strict=True)
            )
        name = torch.cuda.get_device_name() if given.device == "cuda" else f"{os.cpu_count()} cores"
        facts = {"date": str(date.today()), "machine": f"{name}, torch {torch.__version__}", "tasks": {}}
        for task in given.tasks:
            found, steps = measure(task, given.device), TASKS[task].steps
            row = {**found, "cold_s": first[task], "eager_s": steps * found["eager_step_s"]}
            row["compiled_s"] = row["cold_s"] + (steps - WARM) * found["step_s"]
            facts["tasks"][task] = row
            print(
                f"{task:12} eager {1e3 * row['eager_step_s']:6.2f} ms, compiled {1e3 * row['step_s']:6.2f} ms a step; "
                f"compiling {row['cold_s']:5.1f} s, again {row['first_s']:5.1f} s; run {row['eager_s']:5.1f} s eager, "
                f"{row['compiled_s']:5.1f} s compiled",
                flush=True,
            )
            given.out.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
