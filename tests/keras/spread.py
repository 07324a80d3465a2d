"""Several devices in this process, and several processes, for the tests that spread a step."""

# pyright: reportMissingImports=false, reportMissingModuleSource=false, reportAttributeAccessIssue=false
from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np

from tests.keras.toy import BACKEND

ROOT = Path(__file__).parents[2]
PATH = os.pathsep.join([str(ROOT / "src"), str(ROOT)])  # this tree's swell and its tests, whatever is installed


@contextlib.contextmanager
def several():
    if BACKEND == "jax":
        keras.distribution.set_distribution(keras.distribution.DataParallel())
        try:
            yield 4
        finally:
            keras.distribution.set_distribution(None)
    else:
        import tensorflow as tf

        strategy = tf.distribute.MirroredStrategy(
            ["/device:CPU:0", "/device:CPU:1"], cross_device_ops=tf.distribute.ReductionToOneDevice()
        )
        with strategy.scope():
            yield 2


def run_two(module, directory, **environments):
    """Two processes of a test module; their weights, by rank."""
    workers = [
        subprocess.Popen(
            [sys.executable, "-m", f"tests.keras.{module}", str(directory), str(rank), "2"],
            env={**os.environ, "PYTHONPATH": PATH, **{name: values[rank] for name, values in environments.items()}},
            cwd=ROOT,
        )
        for rank in range(2)
    ]
    assert [worker.wait(timeout=240) for worker in workers] == [0, 0]
    archives = [dict(np.load(directory / f"{rank}.npz")) for rank in range(2)]
    return [([one[name] for name in one if name.startswith("arr_")], one.get("figures")) for one in archives]
