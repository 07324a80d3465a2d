"""A saved model is a Keras model; a run that is cut off goes on mid-epoch, elsewhere, as if nothing had happened."""

# pyright: reportMissingImports=false, reportMissingModuleSource=false, reportAttributeAccessIssue=false
from __future__ import annotations

import json

import keras
import pytest

import swell.keras
from swell.errors import CheckpointError
from tests.keras.toy import BACKEND, data, difference, loss, model


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
    made = model()
    made.compile(optimizer=elastic.optimizer(keras.optimizers.Adam(0.01)), loss=loss())
    callbacks = [elastic] if cut is None else [elastic, _Cut(cut)]
    made.fit(elastic.data(x, y), epochs=epochs, callbacks=callbacks, verbose=0)
    return made, elastic


@pytest.mark.filterwarnings("ignore")
def test_a_run_cut_off_in_the_middle_of_a_step_ends_with_the_weights_of_an_undisturbed_one(tmp_path):
    whole, undisturbed = run()
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, cut=7)  # 5 passes an epoch: in the second epoch, inside its first step
    if BACKEND == "jax":  # saved on one device, resumed on four
        keras.distribution.set_distribution(keras.distribution.DataParallel())
    try:
        made, elastic = run(tmp_path)
    finally:
        if BACKEND == "jax":
            keras.distribution.set_distribution(None)
    assert elastic.samples == undisturbed.samples == 56
    assert elastic.steps == undisturbed.steps
    assert elastic.progress == pytest.approx(undisturbed.progress)
    assert difference(made.get_weights(), whole.get_weights()) < 5e-6


@pytest.mark.filterwarnings("ignore")
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_is_used(tmp_path):
    run(tmp_path, epochs=1)
    newest = sorted(tmp_path.glob("keras-*"))[-1]
    (newest / "arrays.npz").write_bytes(b"torn")
    with pytest.warns(UserWarning, match="torn or corrupt"):
        _, elastic = run(tmp_path, epochs=1)
    assert elastic.samples == 28


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    run(tmp_path, epochs=1)
    x, y = data(28)
    elastic = swell.keras.Elastic(batch=12, directory=tmp_path)
    other = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3, activation="softmax")])
    other.compile(optimizer=elastic.optimizer("adam"), loss=loss())
    with pytest.raises(CheckpointError, match="Build the same model"):
        other.fit(elastic.data(x, y), callbacks=[elastic], verbose=0)


def test_a_saved_model_loads_with_its_optimizer_and_trains_on(tmp_path):
    made, _ = run(epochs=1)
    made.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    x, y = data(28)
    assert difference(loaded.get_weights(), made.get_weights()) == 0
    assert type(loaded.optimizer.inner).__name__ == "Adam"
    steps = [int(keras.ops.convert_to_numpy(m.optimizer.iterations)) for m in (made, loaded)]
    assert steps[0] == steps[1] == 3
    loaded.fit(x, y, batch_size=28, verbose=0)
    made.fit(x, y, batch_size=28, verbose=0)
    assert difference(loaded.get_weights(), made.get_weights()) < 2e-6


def test_checkpoints_are_plain_data(tmp_path):
    run(tmp_path, epochs=1)
    record = json.loads((sorted(tmp_path.glob("keras-*"))[-1] / "state.json").read_text())
    assert record["state"]["ledger"]["samples"] == 28
    assert len(list(tmp_path.glob("keras-*"))) == 2
