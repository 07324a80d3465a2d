"""Several devices compute one step as one device does: 4 on JAX, 2 on TensorFlow, 2 processes on torch."""

# pyright: reportMissingImports=false, reportMissingModuleSource=false, reportAttributeAccessIssue=false
from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import keras
import pytest

import swell.keras
from tests.keras.toy import BACKEND, data, difference, loss, model, train_whole

ROOT = Path(__file__).parents[2]


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


def adam():
    return keras.optimizers.Adam(0.01, clipnorm=0.2)


@pytest.mark.skipif(BACKEND == "torch", reason="torch spreads over processes, in the test below")
def test_several_devices_make_the_weights_of_one_though_no_batch_divides_by_them():
    x, y = data(34)
    alone = train_whole(model(), adam(), x, y, 15, epochs=2)
    with several() as devices:
        made = model()
        elastic = swell.keras.Elastic(batch=15, micro=12 // devices, rule="constant")
        made.compile(optimizer=elastic.optimizer(adam()), loss=loss())
        made.fit(elastic.data(x, y), epochs=2, callbacks=[elastic], verbose=0)
        assert difference(made.get_weights(), alone) < 5e-6
    assert elastic.samples == 68


@pytest.mark.skipif(BACKEND != "torch", reason="other backends spread within one process, in the test above")
def test_two_processes_make_the_weights_of_one(tmp_path):
    x, y = data(31)
    alone = train_whole(model(), adam(), x, y, 15, epochs=2)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    workers = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.keras.torch_worker", str(tmp_path), str(rank), "2"],
            env=environment,
            cwd=ROOT,
        )
        for rank in range(2)
    ]
    assert [worker.wait(timeout=240) for worker in workers] == [0, 0]
    import numpy as np

    for rank in range(2):
        with np.load(tmp_path / f"{rank}.npz") as saved:
            assert difference([saved[name] for name in saved.files], alone) < 5e-6
