"""A stand-in for a training script: sums ones over the world, step after step, and writes down what it saw.

    elastic_worker.py FOLDER STEPS [--step-s S] [--numbers N] [--fail KIND:STEP:MEMBER]

A step is committed when the sum came through. What must survive is the number of committed steps, which the most advanced
member hands to all others whenever the world was formed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path

import torch

from swell.errors import WorldError
from swell.runtime import EXIT_RESUME, Notices, open_world
from swell.runtime.elastic import ElasticWorld


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("steps", type=int)
    parser.add_argument("--step-s", type=float, default=0.01)
    parser.add_argument("--numbers", type=int, default=1000)
    parser.add_argument("--fail", default="never:0:0")
    parser.add_argument("--build-s", type=float, default=0.0)
    args = parser.parse_args()
    kind, at, whom = args.fail.split(":")
    torch.set_num_threads(1)

    world = open_world("cpu")
    assert isinstance(world, ElasticWorld)
    time.sleep(args.build_s)
    log = (args.folder / f"seen-{world.member}.jsonl").open("a")

    def write(event: str, **facts: object) -> None:
        print(json.dumps({"event": event, "time": time.monotonic(), "pid": os.getpid(), **facts}), file=log, flush=True)

    def strike(point: str) -> None:
        """Break here, once, if this is the place and the worker that was asked for."""
        if (point, step, world.member) != (kind, int(at), int(whom)):
            return
        if point == "exit":
            sys.exit(3)
        if point == "raise":
            raise ValueError("the model is wrong")
        os.kill(os.getpid(), signal.SIGSTOP if point == "stop" else signal.SIGKILL)

    held = []  # as a user's script may hold the group, so that no destructor helps

    def reform(why: str) -> None:
        """Form the world and take over the newest number of committed steps, again until that has come through."""
        nonlocal step
        began = time.monotonic()
        while True:
            collective = world.reform()
            held.append(collective)
            try:
                steps = [row[0] for row in collective.gather_numbers([step])]
                newest = torch.tensor([float(step)], dtype=torch.float64)
                collective.broadcast_tensors([newest], source=steps.index(max(steps)))
                step = int(newest.item())
                break
            except WorldError:
                continue
        write(
            "formed",
            why=why,
            generation=world.generation,
            rank=collective.rank,
            size=collective.size,
            step=step,
            pause_s=time.monotonic() - began,
        )

    step = 0
    with Notices(signals=["SIGTERM"]) as notices:
        strike("start")
        if kind == "joining" and int(whom) == world.member:
            os.kill(os.getpid(), signal.SIGALRM) if at == "-1" else signal.setitimer(signal.ITIMER_REAL, float(at))
        reform("start")
        asked = False
        while step < args.steps:
            time.sleep(args.step_s)
            try:
                strike("before")
                ones = torch.ones(args.numbers)
                if (kind, int(at), int(whom)) == ("reducing", step, world.member):
                    signal.signal(signal.SIGALRM, signal.SIG_DFL)
                    signal.setitimer(signal.ITIMER_REAL, 0.005)
                world.collective.sum_tensors([ones])
                strike("stop")
                strike("exit")
                strike("raise")
                assert ones[0] == world.collective.size
                if notices.notice() is not None and not asked:
                    asked = world.leave("SIGTERM")
                notice = world.notice()
                stop = notice is not None and not notice.leave
                votes = world.collective.gather_numbers([world.pending(), stop])
            except WorldError as error:
                write("lost", step=step, message=str(error))
                reform("lost")
                continue
            step += 1
            write("step", step=step, size=world.collective.size, generation=world.generation)
            if any(row[1] for row in votes):
                write("stopped", step=step)
                world.close()
                return EXIT_RESUME
            if any(row[0] for row in votes):
                reform("pending")
    world.close()
    write("end", step=step)
    return 0


if __name__ == "__main__":
    sys.exit(main())
