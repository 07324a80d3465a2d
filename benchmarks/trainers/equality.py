"""Do the final weights depend on the number of processes? The plain trainers and swell's, at one global batch.

``python benchmarks/trainers/equality.py`` in ``.venv-trainers`` trains a small float64 network with SGD at a global
batch of 12 on 1, 2 and 3 processes, over 96 and 100 samples, writes ``equality.json`` and prints the pages' table.
"""

from __future__ import annotations

import json
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1]))

from tests.trainers import accelerate_worker, transformers_worker  # noqa: E402
from tests.workers import run_processes  # noqa: E402

BATCH = 12


def weights(library: str, plain: bool, processes: int, samples: int) -> float:
    """The sum of |w| after two epochs."""
    micro = BATCH // processes if plain else 4
    with tempfile.TemporaryDirectory() as folder:
        if library == "transformers":
            args = {
                "output_dir": folder,
                "per_device_train_batch_size": micro,
                "num_train_epochs": 2,
                "save_strategy": "no",
            }
            args |= {"train_sampling_strategy": "sequential"}
            settings: dict[str, Any] = {"samples": samples, "args": args, "plain": plain}
            settings |= {} if plain else {"job": {"batch": BATCH}}
            train: Any = transformers_worker.train
        else:
            settings = {"samples": samples, "micro": micro, "accumulation": 1, "plain": plain}
            settings |= {} if plain else {"accelerator": {"batch": BATCH}}
            train = accelerate_worker.train
        return sum(run_processes(processes, train, settings, timeout_s=500)[0]["digest"])


def main() -> None:
    """Measure all and print the table."""
    rows = []
    print("| | samples | 1 process | 2 processes | 3 processes |\n|---|---|---|---|---|")
    for library in ("transformers", "accelerate"):
        for plain in (True, False):
            for samples in (96, 100):
                found = [weights(library, plain, processes, samples) for processes in (1, 2, 3)]
                name = f"{'plain' if plain else 'swell'} {library}"
                rows.append({"name": name, "samples": samples, "weights": found})
                print(f"| {name} | {samples} | " + " | ".join(f"{value:.12f}" for value in found) + " |", flush=True)
    result = {"date": datetime.now(UTC).date().isoformat(), "batch": BATCH, "rows": rows}
    (HERE / "equality.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
