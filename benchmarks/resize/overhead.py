"""What running under swell run costs where nothing happens: steps under it against steps under torchrun.

python benchmarks/resize/overhead.py [--blocks 40] [--out overhead.json]

The same script on the same two workers under both, over the loopback interface; both are up all the time and take
turns, a block of steps each, so that they meet the same neighbours.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from processes import HERE, about, free_port, started, swell_run, torchrun, torchrun_variables, wait_for

STEPS = 20  # of a block; the first one is not counted, because it comes after a wait
NAMES = ("swell run", "torchrun")


def give_turn(turns: Path, name: str, block: int) -> None:
    aside = turns.with_suffix(".new")
    aside.write_text(f"{name.split()[0]} {block}")
    aside.replace(turns)


def block_s(notes: list[dict[str, Any]], block: int) -> float:
    """The median time of the block's steps, over all of them but the first and over both workers."""
    own = [note["took_s"] for note in notes if block * STEPS + 1 < note["step"] <= (block + 1) * STEPS]
    return statistics.median(own)


def measure(scratch: Path, blocks: int) -> dict[str, list[float]]:
    turns = scratch / "turns"
    give_turn(turns, "nobody", 0)
    folders = {name: scratch / name.split()[0] for name in NAMES}
    for folder in folders.values():
        folder.mkdir()

    def script(name: str) -> list[str]:
        return ["--turns", str(turns), "--name", name.split()[0], "--block", str(STEPS)]

    ours = swell_run(folders["swell run"], "--workers", "2", script=script("swell run"))
    train = [str(HERE / "train.py"), str(folders["torchrun"]), *script("torchrun")]
    theirs = torchrun("2", per_node=2, port=free_port(), script=train)
    found: dict[str, list[float]] = {name: [] for name in NAMES}
    with (
        started(ours, folders["swell run"]),
        started(theirs, folders["torchrun"], {**torchrun_variables(), "GLOO_SOCKET_IFNAME": "lo"}),
    ):
        for block in range(blocks + 1):  # the first one warms up
            for name in NAMES if block % 2 else reversed(NAMES):
                give_turn(turns, name, block)
                last = (block + 1) * STEPS
                notes = wait_for(
                    folders[name],
                    lambda notes, last=last: sum(note["step"] == last for note in notes) == 2 and notes,
                )
                if block:
                    found[name].append(block_s(notes, block))
    return found


def interval(ratios: list[float]) -> tuple[float, float]:
    """Between which values the median is, 95 times of 100, by drawing from the ratios again."""
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(2000))
    return medians[50], medians[-50]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=40)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("overhead.json"))
    args = parser.parse_args()
    began, load = time.strftime("%Y-%m-%d %H:%M"), os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as scratch:
        found = measure(Path(scratch), args.blocks)
    ratios = [ours / theirs for ours, theirs in zip(found["swell run"], found["torchrun"], strict=True)]
    low, high = interval(ratios)
    record = {
        **about(began, [load, os.getloadavg()[0]]),
        "blocks": args.blocks,
        "steps_a_block": STEPS,
        "step_s": {name: round(statistics.median(values), 5) for name, values in found.items()},
        "ratio": round(statistics.median(ratios), 4),
        "ratio_95": [round(low, 4), round(high, 4)],
    }
    print(json.dumps(record, indent=1))
    args.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
