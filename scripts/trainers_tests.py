"""Run tests/trainers: swell inside Hugging Face's Trainer, TRL, Accelerate, Lightning and Fabric. Options: pytest's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def main() -> int:
    """Run the tests offline: models are made from configurations, and nothing is looked up on a hub."""
    command = [sys.executable, "-m", "pytest", "tests/trainers", "-q", "--override-ini", "filterwarnings=default"]
    command += ["--override-ini", "addopts=--import-mode=importlib --strict-markers", *sys.argv[1:]]
    quiet = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "TOKENIZERS_PARALLELISM": "false"}
    preload = {"TEST_PRELOAD": "transformers.trainer,accelerate,datasets,swell.integrations.transformers.trainer"}
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **quiet, **preload}
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
