"""Guarantee 1 on every backend: a step computed in passes is the step one process would make."""

# pyright: reportMissingImports=false, reportMissingModuleSource=false, reportAttributeAccessIssue=false
from __future__ import annotations

import functools
import importlib

import keras
import numpy as np
import pytest

import swell.keras
from swell.core.types import Factors
from swell.integrations.keras.step_control import step_control
from tests.keras.toy import BACKEND, data, difference, loss, model, train_whole

OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "momentum, decay, clipping": lambda: keras.optimizers.SGD(0.1, momentum=0.9, weight_decay=0.01, clipnorm=0.2),
    "adam with a schedule": lambda: keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(0.02, 3, 0.5)),
    "average of weights": lambda: keras.optimizers.AdamW(0.01, use_ema=True, ema_momentum=0.5),
}


def fitted(batch, optimizer, x, y, *, epochs=1, micro=8, compiled=None, **options):
    elastic = swell.keras.Elastic(batch=batch, micro=micro, rule=options.pop("rule", "constant"), **options)
    network = model()
    network.compile(optimizer=elastic.optimizer(optimizer), loss=loss(), **(compiled or {}))
    network.fit(elastic.data(x, y), epochs=epochs, callbacks=[elastic], verbose=0)
    return network, elastic


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_uneven_passes_and_the_short_last_step_make_the_same_weights_as_whole_batches(name):
    x, y = data(28)
    network, elastic = fitted(12, OPTIMIZERS[name](), x, y, epochs=2)
    twin = model()
    whole = train_whole(twin, OPTIMIZERS[name](), x, y, 12, epochs=2)
    twin.optimizer.finalize_variable_values(twin.trainable_weights)
    if "average" in name:
        whole = twin.get_weights()
    assert difference(network.get_weights(), whole) < 2e-6
    assert elastic.steps == 6
    assert elastic.samples == 56


def test_a_batch_that_moves_inside_a_compiled_step_is_exact_and_counts_real_updates():
    x, y = data(36)
    sizes = [4, 12, 8, 12]
    network, _ = fitted(sizes, keras.optimizers.Adam(0.01), x, y)
    assert difference(network.get_weights(), train_whole(model(), keras.optimizers.Adam(0.01), x, y, sizes)) < 2e-6
    assert int(keras.ops.convert_to_numpy(network.optimizer.iterations)) == 4


def test_an_eager_model_does_the_same():
    x, y = data(24)
    network, _ = fitted(12, "sgd", x, y, compiled={"run_eagerly": True})
    assert difference(network.get_weights(), train_whole(model(), "sgd", x, y, 12)) < 2e-6


def test_a_compiled_model_does_the_same(monkeypatch):
    if BACKEND == "torch":
        # Traced as usual, but not given to a C++ compiler, which a machine may not have and which takes a minute.
        monkeypatch.setattr(
            "torch.compile", functools.partial(importlib.import_module("torch").compile, backend="eager")
        )
    x, y = data(24)
    network, _ = fitted([12, 8, 4], "sgd", x, y, compiled={"jit_compile": True})
    assert difference(network.get_weights(), train_whole(model(), "sgd", x, y, [12, 8, 4])) < 2e-6


def test_in_double_precision_the_gradient_that_reaches_the_optimizer_is_exact():
    if BACKEND == "jax":
        import jax

        jax.config.update("jax_enable_x64", True)
    before = keras.config.floatx()
    try:
        keras.config.set_floatx("float64")  # Keras's own losses divide in single precision, so the test gives gradients
        sizes = [7, 7, 7, 2]
        gradients = np.random.default_rng(0).normal(size=(4, 5))
        variable = keras.Variable(np.zeros(5))
        optimizer = swell.keras.ElasticOptimizer(keras.optimizers.SGD(1.0))
        optimizer.build([variable])
        optimizer.gradients.set_control(step_control([size / 23 for size in sizes], Factors(), effective_step=1.0))
        for gradient in gradients:
            assert not np.any(keras.ops.convert_to_numpy(variable.value))
            optimizer.apply([keras.ops.convert_to_tensor(gradient)], [variable])
        expected = -np.asarray(sizes) @ gradients / 23
        assert difference([keras.ops.convert_to_numpy(variable.value)], [expected]) < 1e-12
    finally:
        keras.config.set_floatx(before)
        if BACKEND == "jax":
            jax.config.update("jax_enable_x64", False)


def test_sample_weights_weigh_as_in_one_batch():
    x, y = data(20)
    weights = np.linspace(0.1, 2.0, 20).astype("float32")
    elastic = swell.keras.Elastic(batch=20, micro=8, rule="constant")
    network = model()
    network.compile(optimizer=elastic.optimizer("sgd"), loss=loss())
    network.fit(elastic.data(x, y, weights, shuffle=False), callbacks=[elastic], verbose=0)
    twin = model()
    twin.compile(optimizer="sgd", loss=loss())
    twin.train_on_batch(x, y, weights)
    assert difference(network.get_weights(), twin.get_weights()) < 2e-6


@pytest.mark.parametrize("one_call", [False, True])
@pytest.mark.parametrize("labels", ["numbers", "rows"])
def test_class_weights_weigh_as_in_one_batch(one_call, labels):
    x, y = data(20)
    weights, targets, cost = {0: 0.5, 2: 3.0}, y, loss()
    if labels == "rows":
        targets, cost = np.eye(3, dtype="float32")[y], keras.losses.CategoricalCrossentropy()
    elastic = swell.keras.Elastic(batch=20, micro=8, rule="constant")
    network, twin = model(), model()
    twin.compile(optimizer="sgd", loss=cost)
    twin.train_on_batch(x, targets, class_weight=weights)
    if one_call:
        network.compile(optimizer="sgd", loss=cost)
        elastic.fit(network, x, targets, class_weight=weights, verbose=0)
    else:
        network.compile(optimizer=elastic.optimizer("sgd"), loss=cost)
        network.fit(elastic.data(x, targets, class_weight=weights), callbacks=[elastic], verbose=0)
    assert difference(network.get_weights(), twin.get_weights()) < 2e-6


def test_the_one_call_form_wraps_a_compiled_model_and_leaves_evaluate_alone():
    x, y = data(40)
    network = model()
    network.compile(optimizer="adam", loss=loss(), metrics=["accuracy"])
    elastic = swell.keras.Elastic(batch=16, micro=8)
    history = elastic.fit(network, x, y, epochs=2, validation_data=(x, y), verbose=0)
    metrics = network.evaluate(x, y, verbose=0, return_dict=True)
    assert history.history["val_loss"][-1] == pytest.approx(metrics["loss"], rel=1e-5)
    assert history.history["global_batch"] == [16.0, 16.0]
    assert network.predict(x, verbose=0).shape == (40, 3)
    again = elastic.fit(network, x, y, epochs=1, verbose=0)  # continues where it was
    assert elastic.samples == 120
    assert len(again.history["loss"]) == 1


def test_after_training_the_optimizer_behaves_as_the_one_inside():
    x, y = data(24)
    network, _ = fitted(12, keras.optimizers.SGD(0.1), x, y)
    twin = model()
    twin.set_weights(network.get_weights())
    twin.compile(optimizer=keras.optimizers.SGD(0.1), loss=loss())
    network.fit(x, y, batch_size=24, verbose=0)
    twin.train_on_batch(x, y)
    assert difference(network.get_weights(), twin.get_weights()) < 2e-6
