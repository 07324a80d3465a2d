"""Run:AI's Keras interface on Keras 3: the table of its documentation, and its faults fixed."""

# pyright: reportMissingImports=false, reportMissingModuleSource=false, reportAttributeAccessIssue=false
from __future__ import annotations

import runpy
import sys
from pathlib import Path

import keras
import pytest

import swell.compat.runai as runai
from swell.errors import ConfigError, LoopError
from tests.keras.toy import data, difference, loss, model, train_whole


@pytest.mark.parametrize(("gpus", "steps"), [(1, 4), (2, 2), (4, 1)])
def test_the_documented_table(gpus, steps):
    runai.elastic.keras.init(256, 64, gpus=gpus)
    assert (runai.elastic.steps, runai.elastic.batch_size, runai.elastic.gpus) == (steps, 64, gpus)
    assert runai.elastic.master is True


@pytest.mark.parametrize(("batch", "largest", "gpus"), [(100, 16, 4), (256, 64, 3), (512, 48, 3), (100, 64, 1)])
def test_uneven_divisions_stay_within_the_bound(batch, largest, gpus):
    """Run:AI R1: floors exceeded the memory limit, or shrank the batch."""
    runai.elastic.keras.init(batch, largest, gpus=gpus)
    assert runai.elastic.batch_size <= largest
    assert runai.elastic.plan.global_batch == batch


def test_a_wrapped_model_trains_the_exact_global_batch_given_positionally_and_as_a_name():
    """Run:AI R4 and R6: no name, no position, no ``fit_generator``; and only with TensorFlow 1 and Horovod."""
    x, y = data(28)
    runai.elastic.keras.init(12, 8)
    wrapped = runai.elastic.keras.models.Model(model())
    with pytest.raises(LoopError, match="compile"):
        wrapped.fit(x, y)
    wrapped.compile("sgd", loss())
    wrapped.fit(x, y, runai.elastic.batch_size, epochs=2, verbose=0)
    assert difference(wrapped.get_weights(), train_whole(model(), "sgd", x, y, 12, epochs=2)) < 2e-6
    assert wrapped.evaluate(x, y, verbose=0) > 0
    with pytest.raises(ConfigError, match="batch_size"):
        wrapped.fit(x, y, batch_size=5)
    with pytest.raises(LoopError, match="PyDataset"):
        wrapped.fit_generator(iter([(x, y)]))


def test_ready_made_optimizers_average_and_count_real_updates():
    """Run:AI R4 and R5: a ``TypeError`` on Keras 3, and silently an update with every batch on Keras 2.15."""
    x, y = data(24)
    network = model()
    network.compile(optimizer=runai.ga.keras.optimizers.Adam(2, 0.01), loss=loss())
    network.fit(x, y, batch_size=4, shuffle=False, verbose=0)
    twin = model()
    twin.compile(optimizer=keras.optimizers.Adam(0.01), loss=loss())
    twin.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    assert difference(network.get_weights(), twin.get_weights()) < 2e-6
    assert int(keras.ops.convert_to_numpy(network.optimizer.iterations)) == 3
    for name in ("SGD", "RMSprop", "Adagrad", "Adadelta", "Adamax", "Nadam"):
        assert type(getattr(runai.ga.keras.optimizers, name)(steps=3).inner).__name__ == name


def test_a_wrapped_optimizer_keeps_its_state_and_its_number_of_steps_when_saved():
    inner = keras.optimizers.SGD(0.1, momentum=0.9)
    wrapped = runai.ga.keras.optimizers.Optimizer(inner, 3)
    assert wrapped.inner is inner
    again = keras.optimizers.deserialize(keras.optimizers.serialize(wrapped))
    assert again.steps == 3
    with pytest.raises(ConfigError, match="steps"):
        runai.ga.keras.optimizers.Optimizer(inner, 0)


def test_the_readmes_sample_runs(monkeypatch, capsys):
    example = Path(__file__).parents[2] / "examples" / "migrating" / "runai" / "mnist_keras.py"
    monkeypatch.delenv("SWELL_DATA", raising=False)
    monkeypatch.setattr(sys, "argv", [str(example), "--epochs", "1", "--limit", "600"])
    runpy.run_path(str(example), run_name="__main__")
    first, second = capsys.readouterr().out.splitlines()[-2:]
    assert first.endswith("256 samples a step") and second.startswith("after 1 epoch(s): loss")
