"""Run tests/keras on each backend, each in its own process, at most one per core at a time."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[1]
BACKENDS = ("jax", "tensorflow", "torch")  # the slowest first


def run(backend: str) -> subprocess.CompletedProcess[str]:
    """Run the tests on one backend."""
    command = [sys.executable, "-m", "pytest", "tests/keras", "-q", "--override-ini", "filterwarnings=default"]
    command += ["--override-ini", "addopts=--import-mode=importlib --strict-markers", *sys.argv[1:]]
    environment = {**os.environ, "KERAS_BACKEND": backend, "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def main() -> int:
    """Run all backends; returns 1 if a test failed."""
    failed = 0
    with ThreadPoolExecutor(min(len(BACKENDS), os.cpu_count() or 1)) as pool:
        for backend, result in zip(BACKENDS, pool.map(run, BACKENDS), strict=True):
            lines = result.stdout.strip().splitlines() or [result.stderr[-2000:]]
            print(f"swell: Keras on {backend}: {lines[-1].strip('= ')}", flush=True)
            if result.returncode != 0:
                failed += 1
                print(result.stdout[-20000:], result.stderr[-4000:], sep="\n", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
