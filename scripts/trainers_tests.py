"""Run tests/trainers and tests/lightning: swell inside other people's trainers. Options are those of pytest."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def main() -> int:
    """Run the tests offline: models are made from configurations, and nothing is looked up on a hub."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "tests/trainers",
        "tests/lightning",
        "-q",
        "--override-ini",
        "filterwarnings=default",
    ]
    command += ["--override-ini", "addopts=--import-mode=importlib --strict-markers", *sys.argv[1:]]
    quiet = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "TOKENIZERS_PARALLELISM": "false"}
    preload = {
        "TEST_PRELOAD": "transformers.trainer,accelerate,datasets,lightning,swell.integrations.transformers.trainer"
    }
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])  # for scripts among the tests
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, **quiet, **preload}
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
