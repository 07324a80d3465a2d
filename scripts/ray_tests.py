"""Run tests/ray: swell on a Ray cluster of several nodes on this machine. Options are those of pytest."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def main() -> int:
    """Run the tests, each file in one process, because its tests share a cluster."""
    command = [sys.executable, "-m", "pytest", "tests/ray", "src/swell/integrations/ray", "-q", "--dist", "loadfile"]
    command += ["--override-ini", "filterwarnings=default"]
    command += ["--override-ini", "addopts=--import-mode=importlib --strict-markers --doctest-modules", *sys.argv[1:]]
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])  # for scripts among the tests
    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, **quiet}
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
