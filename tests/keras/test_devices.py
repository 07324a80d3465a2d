"""Several devices compute one step as one device does: 4 on JAX, 2 on TensorFlow, 2 processes on torch."""

# pyright: reportMissingImports=false, reportMissingModuleSource=false, reportAttributeAccessIssue=false
from __future__ import annotations

import json
import socket

import keras
import numpy as np
import pytest

import swell.keras
import swell.telemetry
from tests.keras.spread import run_two, several
from tests.keras.toy import BACKEND, data, difference, loss, model, train_whole


def adam():
    return keras.optimizers.Adam(0.01, clipnorm=0.2)


@pytest.mark.skipif(BACKEND == "torch", reason="torch spreads over processes, in the test below")
def test_several_devices_make_the_weights_of_one_though_no_batch_divides_by_them():
    x, y = data(34)
    alone = train_whole(model(), adam(), x, y, 15, epochs=2)
    with several() as devices:
        network = model()
        elastic = swell.keras.Elastic(batch=15, micro=12 // devices, rule="constant")
        network.compile(optimizer=elastic.optimizer(adam()), loss=loss())
        network.fit(elastic.data(x, y), epochs=2, callbacks=[elastic], verbose=0)
        assert difference(network.get_weights(), alone) < 5e-6
    assert elastic.samples == 68


@pytest.mark.skipif(BACKEND != "torch", reason="other backends spread within one process, in the test above")
def test_two_processes_make_the_weights_of_one(tmp_path):
    x, y = data(31)
    alone = train_whole(model(), adam(), x, y, 15, epochs=2)
    for weights, _ in run_two("torch_worker", tmp_path):
        assert difference(weights, alone) < 5e-6


@pytest.mark.skipif(BACKEND != "tensorflow", reason="MultiWorkerMirroredStrategy is TensorFlow's")
def test_two_tensorflow_workers_make_the_weights_and_the_noise_of_one(tmp_path):
    x, y = data(31)
    alone = train_whole(model(), adam(), x, y, 15, epochs=2)
    with socket.socket() as one, socket.socket() as other:
        for listener in (one, other):
            listener.bind(("127.0.0.1", 0))
        cluster = {"worker": [f"127.0.0.1:{listener.getsockname()[1]}" for listener in (one, other)]}
    tasks = [json.dumps({"cluster": cluster, "task": {"type": "worker", "index": rank}}) for rank in range(2)]
    workers = run_two("tensorflow_worker", tmp_path, TF_CONFIG=tasks)
    for weights, _ in workers:
        assert difference(weights, alone) < 5e-6
    np.testing.assert_array_equal(workers[0][1], workers[1][1])  # they decide by the same figures
    steps = [event for event in swell.telemetry.read_events(tmp_path / "run" / "events.jsonl") if event.kind == "step"]
    assert [event.global_batch for event in steps] == [15, 15, 1] * 2  # written once, by the first
    assert {event.replicas for event in steps} == {2}
