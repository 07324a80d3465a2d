"""A saved model is a Keras model; a run that is cut off continues within its epoch, also on other devices."""

# pyright: reportMissingImports=false, reportMissingModuleSource=false, reportAttributeAccessIssue=false
from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import keras
import pytest

import swell.keras
from swell.errors import CheckpointError
from swell.telemetry import read_events
from tests.keras.spread import PATH, ROOT, run_two, several
from tests.keras.toy import BACKEND, data, difference, loss, model, train_whole


class _Cut(keras.callbacks.Callback):
    """Raises in the middle of a step."""

    def __init__(self, at):
        super().__init__()
        self._left = at

    def on_train_batch_begin(self, batch, logs=None):
        self._left -= 1
        if self._left < 0:
            raise KeyboardInterrupt


def run(directory=None, cut=None, epochs=2):
    x, y = data(28)
    elastic = swell.keras.Elastic(
        batch=12, base=4, micro=8, rule=lambda scale: scale**0.5, directory=directory, save_every=1
    )
    network = model()
    network.compile(optimizer=elastic.optimizer(keras.optimizers.Adam(0.01)), loss=loss())
    callbacks = [elastic] if cut is None else [elastic, _Cut(cut)]
    network.fit(elastic.data(x, y), epochs=epochs, callbacks=callbacks, verbose=0)
    return network, elastic


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("first", ["one device", "several"])
def test_a_run_cut_off_in_the_middle_of_a_step_goes_on_elsewhere_as_if_nothing_had_happened(tmp_path, first):
    """On JAX from one device to four and back, on TensorFlow to two; torch spreads by processes, in the next test."""
    whole, undisturbed = run()
    before, after = (several, contextlib.nullcontext) if first == "several" else (contextlib.nullcontext, several)
    if BACKEND == "torch":
        before = after = contextlib.nullcontext
    with before(), pytest.raises(KeyboardInterrupt):
        run(tmp_path, cut=7)  # at least 5 passes an epoch: in the middle of the second
    with after():
        network, elastic = run(tmp_path)
        weights = network.get_weights()
    assert elastic.samples == undisturbed.samples == 56
    assert elastic.steps == undisturbed.steps
    assert elastic.progress == pytest.approx(undisturbed.progress)
    assert difference(weights, whole.get_weights()) < 5e-6


@pytest.mark.skipif(BACKEND != "torch", reason="other backends spread within one process, in the test above")
@pytest.mark.filterwarnings("ignore")
def test_a_run_of_one_process_is_cut_off_and_goes_on_in_two(tmp_path):
    x, y = data(31)
    adam = keras.optimizers.Adam(0.01, clipnorm=0.2)
    elastic = swell.keras.Elastic(batch=15, micro=4, rule="constant", directory=tmp_path / "run", save_every=1)
    network = model()
    network.compile(optimizer=elastic.optimizer(adam), loss=loss())
    with pytest.raises(KeyboardInterrupt):
        network.fit(
            elastic.data(x, y), epochs=2, callbacks=[elastic, _Cut(6)], verbose=0
        )  # in the second step of three
    assert elastic.samples == 15
    elastic.close()  # this process lives, and the others may write the directory now
    alone = train_whole(model(), keras.optimizers.Adam(0.01, clipnorm=0.2), x, y, 15, epochs=2)
    for weights, _ in run_two("torch_worker", tmp_path):
        assert difference(weights, alone) < 5e-6
    events = list(read_events(tmp_path / "run" / "events.jsonl"))
    assert [(event.replicas, event.samples) for event in events if event.kind == "run"] == [(1, 0), (2, 15)]


@pytest.mark.filterwarnings("ignore")
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_is_used(tmp_path):
    run(tmp_path, epochs=1)
    newest = sorted(tmp_path.glob("keras-*"))[-1]
    (newest / "arrays.npz").write_bytes(b"torn")
    with pytest.warns(UserWarning, match=r"keras-000000000003.*arrays\.npz"):
        _, elastic = run(tmp_path, epochs=1)
    assert elastic.samples == 28


@pytest.mark.filterwarnings("ignore")
def test_a_checkpoint_of_the_first_format_is_continued(tmp_path):
    """It was written by the code that had that format, in the middle of the second epoch, on torch."""
    whole, undisturbed = run()
    shutil.copytree(Path(__file__).parent / "format_1", tmp_path, dirs_exist_ok=True)
    network, elastic = run(tmp_path)
    events = list(read_events(tmp_path / "events.jsonl"))
    assert [event.samples for event in events if event.kind == "run"] == [40]
    assert (elastic.samples, elastic.steps, elastic.global_batch) == (56, 6, 12)
    assert elastic.progress == pytest.approx(undisturbed.progress)
    assert elastic.noise is not None and undisturbed.noise is not None
    assert elastic.noise.observations == undisturbed.noise.observations
    assert difference(network.get_weights(), whole.get_weights()) < 5e-6


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    run(tmp_path, epochs=1)
    x, y = data(28)
    elastic = swell.keras.Elastic(batch=12, directory=tmp_path)
    other = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3, activation="softmax")])
    other.compile(optimizer=elastic.optimizer("adam"), loss=loss())
    with pytest.raises(CheckpointError, match=r"2 model variables.* 4 of"):
        other.fit(elastic.data(x, y), callbacks=[elastic], verbose=0)


def test_a_saved_model_loads_with_its_optimizer_and_trains_on(tmp_path):
    network, _ = run(epochs=1)
    network.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    x, y = data(28)
    assert difference(loaded.get_weights(), network.get_weights()) == 0
    assert type(loaded.optimizer.inner).__name__ == "Adam"
    steps = [int(keras.ops.convert_to_numpy(m.optimizer.iterations)) for m in (network, loaded)]
    assert steps[0] == steps[1] == 3
    loaded.fit(x, y, batch_size=28, verbose=0)
    network.fit(x, y, batch_size=28, verbose=0)
    assert difference(loaded.get_weights(), network.get_weights()) < 2e-6


def test_a_loaded_model_is_taken_up_by_a_new_elastic_with_its_optimizers_state(tmp_path):
    network, _ = run(epochs=1)
    network.save(tmp_path / "model.keras")
    loaded, twin = (keras.saving.load_model(tmp_path / "model.keras") for _ in range(2))
    x, y = data(28)
    elastic = swell.keras.Elastic(batch=12, micro=8, rule="constant")
    elastic.fit(loaded, x, y, verbose=0)
    assert difference(loaded.get_weights(), train_whole(twin, twin.optimizer.inner, x, y, 12)) < 2e-6
    assert int(keras.ops.convert_to_numpy(loaded.optimizer.iterations)) == 6


def test_checkpoints_are_plain_data(tmp_path):
    run(tmp_path, epochs=1)
    record = json.loads((sorted(tmp_path.glob("keras-*"))[-1] / "state.json").read_text())
    assert record["state"]["ledger"]["samples"] == 28
    assert len(list(tmp_path.glob("keras-*"))) == 2


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None  # an import of it fails
from tests.keras.test_saving import run
run(sys.argv[1], epochs=1)
_, elastic = run(sys.argv[1], epochs=2)
assert elastic.samples == 56 and elastic.steps == 6
"""


@pytest.mark.skipif(BACKEND != "jax", reason="torch needs torch; one of the other backends is enough")
def test_checkpoints_need_no_torch(tmp_path):
    environment = {**os.environ, "PYTHONPATH": PATH}
    command = [sys.executable, "-c", WITHOUT_TORCH, str(tmp_path)]
    assert subprocess.run(command, env=environment, cwd=ROOT, check=False).returncode == 0
