"""A worker of the demo's elastic run: it trains, and records which samples it used.

    swell run --workers 1:2 -m swell.demo.worker RUN_DIR

A worker writes a line before it uses a micro-batch: the number of previous steps, of replicas, and the rows. The run's
log says which steps were committed, so the two together, written independently, say which samples were committed.
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
PACE = "pace"  # file with the samples per second that one worker may use, once the owner of the run has set it
_FIRST_PACE = 20.0


class Witness:
    """Records the rows that this process uses, and keeps to the pace of the run."""

    def __init__(self, folder: Path) -> None:
        self._file = (folder / USED.format(os.getpid())).open("a", buffering=1)  # one write per line
        self._pace_file, self._pace = folder / PACE, 0.0
        self._free_at = 0.0

    def record(self, job: swell.Job, rows: Tensor) -> None:
        """Record a micro-batch before its use, and wait as long as the pace demands."""
        record = {"done": job.steps, "replicas": job.replicas, "rows": rows.tolist()}
        self._file.write(json.dumps(record) + "\n")
        if not self._pace and self._pace_file.exists():
            self._pace = float(self._pace_file.read_text())
        now = time.monotonic()
        time.sleep(max(0.0, self._free_at - now))
        self._free_at = max(self._free_at, now) + len(rows) / (self._pace or _FIRST_PACE)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def main() -> None:
    """Take part in the run and write its result to its folder."""
    parser = argparse.ArgumentParser(description="One worker of swell's demo; started by swell run.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    witness = Witness(args.folder)
    result = train(args.folder, ways()["swell"], seed=args.seed, epochs=args.epochs, record=witness.record)
    witness.close()
    (args.folder / RESULT).write_text(json.dumps(dataclasses.asdict(result)))  # every worker has the same


if __name__ == "__main__":
    main()
