"""What a larger batch is worth: every task as a plain loop, at larger batches by hand, and with swell.

    SWELL_DATA=... python benchmarks/worth/run.py [--tasks gpt vit] [--ways base hand goodput] [--seeds 0 1]
        [--workers 1] [--limit 480] [--times] [--toy] [--device cuda] [--out worth.json]

``--workers`` above 1 trains several at once on one device: results are right, seconds are not. ``--times`` times steps
of the plain loop at 1, 2, … base batches before and after each run with swell, in the same process. ``--limit`` starts
no run after that many seconds. ``--toy`` runs a few steps of everything.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import queue
import sys
import time
import traceback
from datetime import date
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as processes

sys.path.insert(0, str(Path(__file__).parent))
from branches import Branches
from candidates import WAYS
from instant_noise import InstantNoise
from plain import train_plain
from swelling import train_with_swell
from tasks import HELD_OUT, TASKS, Task

TIMED = 48  # steps of the plain loop that are timed at each batch
HAND = [(scale, rule) for scale in (2, 4, 8, 16) for rule in ("linear", "root")]
# Which of Adam's averages keep their memory in samples, at 8 times the base batch by hand.
FOLLOWING = ("second", "both")


def runs_of(task: Task, ways: list[str], seeds: list[int], base_seeds: list[int]) -> list[dict[str, Any]]:
    """All runs of a task; ``rank`` puts base runs first, because they take longest, and ways in the order given."""
    wanted: list[dict[str, Any]] = []
    for rank, way in enumerate(ways, start=1):
        if way == "base":
            wanted += [{"way": way, "seed": seed, "rank": 0} for seed in base_seeds]
        elif way in ("branches", "noise"):
            wanted.append({"way": way, "seed": seeds[0], "rank": 0})
        elif way == "hand":
            wanted += [
                {"way": f"{scale} x, {rule}", "scale": scale, "rule": rule, "seed": seed, "rank": rank}
                for seed in seeds
                for scale, rule in HAND
            ]
        elif way == "betas":
            wanted += [
                {"way": f"8 x, root, betas {which}", "scale": 8, "rule": "root", "betas": which}
                | {"seed": seed, "rank": rank}
                for seed in seeds
                for which in FOLLOWING
                if task.adaptive
            ]
        else:
            wanted += [{"way": way, "seed": seed, "rank": rank} for seed in seeds]
    return [{"task": task.name, **run} for run in wanted]


def make(run: dict[str, Any], *, device: str, toy: bool) -> dict[str, Any]:
    """Train one."""
    task = TASKS[run["task"]]
    if toy:
        task = dataclasses.replace(task, steps=64)
    seed, way = run["seed"], run["way"]
    if way == "base":
        return train_plain(task, device, seed)
    if way == "noise":
        noise = InstantNoise(task, task.problem(device))
        return {**train_plain(task, device, seed + 100, at=noise), "noise": noise.found}
    if way == "branches":
        branches = Branches(task, task.problem(device), draws=1 if toy else 2)
        return {**train_plain(task, device, seed + 100, at=branches), "branches": branches.found}
    if "scale" in run:
        factor = float(run["scale"]) ** (1.0 if run["rule"] == "linear" else 0.5)
        return train_plain(task, device, seed, scale=run["scale"], factor=factor, betas=run.get("betas", "keep"))
    return train_with_swell(task, device, seed, **WAYS[way](task))


def plain_step_times(task: Task, device: str) -> dict[str, float]:
    """Seconds of a step of the plain loop, at 1, 2, … base batches."""
    times: dict[str, float] = {}
    for scale in (1, 2, 4, 8, 16):
        short = dataclasses.replace(task, steps=TIMED * scale)
        times[f"plain {scale}"] = train_plain(short, device, 0, scale=scale, points=1)["seconds"] / TIMED
    return times


def timed(run: dict[str, Any], *, device: str, toy: bool) -> dict[str, Any]:
    """Train one between two timings of the plain loop's steps, so that all see the same state of the machine."""
    task = TASKS[run["task"]]
    before = plain_step_times(task, device)
    answer = make(run, device=device, toy=toy)
    after = plain_step_times(task, device)
    return {**answer, "step_times": {scale: (before[scale] + after[scale]) / 2 for scale in before}}


def work(tasks: Any, answers: Any, device: str, toy: bool, times: bool, until: float) -> None:
    """One process: train what comes, until nothing does."""
    torch.set_num_threads(1)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    while time.time() < until:
        try:
            run = tasks.get(timeout=1.0)
        except queue.Empty:
            break
        began = time.time()
        try:
            train = timed if times and run["way"] in WAYS else make
            answer = {**run, **train(run, device=device, toy=toy), "wall": time.time() - began}
        except Exception:
            answer = {**run, "error": traceback.format_exc()[-2000:]}
        answers.put(json.dumps(answer))
    answers.put(None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--ways", nargs="+", default=["base", "hand", "goodput"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--base-seeds", type=int, nargs="+", help="of the base runs, if these are others")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--limit", type=float, default=float("inf"))
    parser.add_argument("--tail", type=float, default=45.0, help="seconds after the limit that a run may still take")
    parser.add_argument("--times", action="store_true", help="time plain steps beside each run with swell")
    parser.add_argument("--toy", action="store_true")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "worth.json")
    given = parser.parse_args()
    ways = list(WAYS) if given.ways == ["all"] else given.ways
    if given.ways == ["all"]:
        ways = ["base", "noise", "branches", "hand", "betas", *WAYS]
    base_seeds = given.base_seeds or given.seeds
    began = time.time()
    runs = [run for name in given.tasks for run in runs_of(TASKS[name], ways, given.seeds, base_seeds)]
    runs.sort(key=lambda run: run["rank"])
    context = processes.get_context("spawn")
    waiting, answers = context.Queue(), context.Queue()
    results: list[dict[str, Any]] = []
    name = torch.cuda.get_device_name() if given.device == "cuda" else f"{os.cpu_count()} cores"
    facts = {"date": str(date.today()), "machine": f"{name}, torch {torch.__version__}", "held_out": HELD_OUT}
    for run in runs:
        waiting.put(run)
    until = began + given.limit
    workers = [
        context.Process(target=work, args=(waiting, answers, given.device, given.toy, given.times, until), daemon=True)
        for _ in range(given.workers)
    ]
    for worker in workers:
        worker.start()
    open_workers, written = len(workers), time.time()
    while open_workers:
        try:
            answer = answers.get(timeout=5.0)
        except queue.Empty:
            if time.time() > until + given.tail or not any(worker.is_alive() for worker in workers):
                break
            continue
        if answer is None:
            open_workers -= 1
            continue
        result = json.loads(answer)
        results.append(result)
        print(f"{time.time() - began:5.0f} s  {_line(result)}", flush=True)
        if time.time() - written > 5:
            given.out.write_text(json.dumps({**facts, "runs": results}))
            written = time.time()
    given.out.write_text(json.dumps({**facts, "runs": results}))
    print(f"{len(results)} of {len(runs)} runs in {time.time() - began:.0f} s", flush=True)
    os._exit(0)  # a worker over the limit is not waited for


def _line(run: dict[str, Any]) -> str:
    start = f"{run['task']:12} {run['way']:28} {run['seed']}"
    if "error" in run:
        return f"{start}  {run['error'].strip().splitlines()[-1]}"
    return (
        f"{start}  {run['seconds']:6.1f} s {run['steps']:6} steps {run['samples']:8} samples  loss {run['loss']:.4f}  "
        f"result {run['result']:.4f}"
    )


if __name__ == "__main__":
    main()
