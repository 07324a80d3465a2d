"""The script that runs under swell: no end of its own, until it is stopped or has done --steps.

With --turns FILE it does blocks of steps, each when FILE says that it is its turn (overhead.py).
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from model import BATCH, Doom, Notes, data, network, optimizer_of

import swell


def wait_for_turn(turns: Path, name: str, block: int) -> None:
    while True:
        whose, _, number = turns.read_text().partition(" ")
        if whose == name and int(number) >= block:
            return
        time.sleep(0.02)  # seldom: it is the other one that is being timed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=10**9)
    parser.add_argument("--turns", type=Path, default=None)
    parser.add_argument("--name", default="")
    parser.add_argument("--block", type=int, default=20)
    args = parser.parse_args()
    torch.set_num_threads(1)
    notes, doom = Notes(args.folder), Doom(args.folder)
    with swell.Job(args.folder, batch=BATCH, rule="constant", progress=False, device="cpu") as job:
        model = network()
        job.wrap(model, optimizer_of(model))
        loader = job.loader(data(), shuffle=True)
        for _ in job.epochs(10**6):
            for x, y in loader:
                if args.turns is not None and job.steps % args.block == 0:
                    wait_for_turn(args.turns, args.name, job.steps // args.block)
                began = time.perf_counter()
                job.backward(F.mse_loss(model(x), y))
                if job.step():
                    notes.write(step=job.steps, replicas=job.replicas, took_s=time.perf_counter() - began)
                where = doom.sealed()
                if where == "between":
                    doom.strike()
                elif where:
                    setattr(job.collective, "underway", doom.strike)  # noqa: B010 - called while gradients are on their way
                if job.steps >= args.steps:
                    os._exit(0)  # no tidying up: this measures steps


if __name__ == "__main__":
    main()
