"""What each worker of the demo's elastic run does: train, and write down which samples it used.

    swell run --workers 1:2 -m swell.demo.worker RUN_DIR

A worker writes a line before it uses a micro-batch: the number of steps done, of replicas, and the rows. What came of
the step is in the run's log, so the two together say which samples were committed, and they were written separately.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import time
from pathlib import Path

import torch
from torch import Tensor

import swell
from swell.demo.training import train, ways

USED = "used-{}.jsonl"  # by process id
RESULT = "result.json"
PACE = "pace"  # how many samples a second one worker may use, once the owner of the run has decided
_AT_FIRST = 20.0


class Witness:
    """Writes down the rows this process uses, and keeps to the pace that was set for the run."""

    def __init__(self, folder: Path) -> None:
        self._file = (folder / USED.format(os.getpid())).open("a", buffering=1)  # whole lines, whatever happens next
        self._told, self._pace = folder / PACE, 0.0
        self._free_at = 0.0

    def look(self, job: swell.Job, rows: Tensor) -> None:
        """A micro-batch is about to be used."""
        record = {"done": job.steps, "replicas": job.replicas, "rows": rows.tolist()}
        self._file.write(json.dumps(record) + "\n")
        if not self._pace and self._told.exists():
            self._pace = float(self._told.read_text())
        now = time.monotonic()
        time.sleep(max(0.0, self._free_at - now))
        self._free_at = max(self._free_at, now) + len(rows) / (self._pace or _AT_FIRST)

    def close(self) -> None:
        """Write no more."""
        self._file.close()


def main() -> None:
    """Take part in the run and leave its result in its folder."""
    parser = argparse.ArgumentParser(description="One worker of swell's demo; started by swell run.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--passes", type=int, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    witness = Witness(args.folder)
    result = train(args.folder, ways()["swell"], seed=args.seed, passes=args.passes, look=witness.look)
    witness.close()
    (args.folder / RESULT).write_text(json.dumps(dataclasses.asdict(result)))  # every worker has the same


if __name__ == "__main__":
    main()
