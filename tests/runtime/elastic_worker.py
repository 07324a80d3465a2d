"""A stand-in for a training script: sums ones over the world, step after step, and records what happened.

    elastic_worker.py FOLDER STEPS [--step-s S] [--numbers N] [--die POINT:STEP:MEMBER]

A step is committed when its sum has succeeded. The number of committed steps must survive: the most advanced member
hands it to all others whenever a world was formed. POINT is where MEMBER is killed: ``reducing`` (in the
middle of the sum of STEP), or ``joining`` (after STEP calls of the store while it forms its first world).
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch

from swell.errors import WorldError
from swell.runtime.elastic_world import ElasticWorld
from swell.runtime.notices import Notices
from swell.runtime.rendezvous import RendezvousStore
from swell.runtime.world import open_world
from swell.supervisor.notice import EXIT_RESUME


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("steps", type=int)
    parser.add_argument("--step-s", type=float, default=0.01)
    parser.add_argument("--numbers", type=int, default=1000)
    parser.add_argument("--die", default="never:0:0")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--backend")
    args = parser.parse_args()
    point, at, whom = args.die.split(":")
    torch.set_num_threads(1)
    world = open_world(args.device, backend=args.backend)
    assert isinstance(world, ElasticWorld)
    mine = int(whom) == world.member
    if mine and point == "joining":
        die_after_calls_of_the_store(int(at))
    with Notices(signals=["SIGTERM"]) as notices:
        return train(
            world,
            notices,
            args.folder,
            args.steps,
            args.step_s,
            args.numbers,
            int(at) if mine and point == "reducing" else -1,
        )


def train(
    world: ElasticWorld, notices: Notices, folder: Path, steps: int, step_s: float, numbers: int, die_at: int
) -> int:
    log = (folder / f"seen-{world.member}.jsonl").open("a")
    references: list[Any] = []  # a user's script may keep groups too, so that no destructor helps
    step = 0
    asked = False

    def write(event: str, **facts: Any) -> None:
        facts = {"event": event, "time": time.monotonic(), "pid": os.getpid(), "step": step, **facts}
        print(json.dumps(facts), file=log, flush=True)

    def form(why: str) -> None:
        """Form the world and adopt the newest number of committed steps; repeat until that succeeds."""
        nonlocal step
        began = time.monotonic()
        while True:
            collective = world.reform()
            assert all(getattr(left, "lost", True) for left in references), "nobody waits in a world that was left"
            references.append(collective)
            try:
                committed = [row[0] for row in collective.gather_numbers([step])]
                newest = torch.tensor([float(step)], dtype=torch.float64, device=world.device)
                collective.broadcast_tensors([newest], source=committed.index(max(committed)))
            except WorldError:
                continue
            step = int(newest.item())
            pause_s = time.monotonic() - began
            write("formed", why=why, generation=world.generation, size=collective.size, pause_s=pause_s)
            return

    form("start")
    while step < steps:
        time.sleep(step_s)
        try:
            ones = torch.ones(numbers, device=world.device)
            if step == die_at:
                signal.setitimer(signal.ITIMER_REAL, 0.01)  # without a handler its signal kills the process
            world.collective.sum_tensors([ones])
            assert ones[0] == world.collective.size
            if notices.notice() is not None and not asked:
                asked = world.leave("SIGTERM")
            notice = world.notice()
            votes = world.collective.gather_numbers([world.pending(), notice is not None])
        except WorldError as error:
            write("lost", message=str(error))
            form("lost")
            continue
        step += 1
        write("step", size=world.collective.size, generation=world.generation)
        if any(stop for _, stop in votes):
            write("stopped", source=getattr(world.notice(), "source", None))
            world.close()
            return EXIT_RESUME
        if any(pending for pending, _ in votes):
            form("pending")
    world.close()
    write("end")
    return 0


def die_after_calls_of_the_store(calls: int) -> None:
    """End this process in the middle of forming its first world."""
    left = calls

    def count(method: Any) -> Any:
        def counted(*args: Any) -> Any:
            nonlocal left
            result = method(*args)
            left -= 1
            if left <= 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return counted

    RendezvousStore.set = count(RendezvousStore.set)
    RendezvousStore.get = count(RendezvousStore.get)


if __name__ == "__main__":
    sys.exit(main())
