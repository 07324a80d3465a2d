"""Rules reach the learning rate, betas, eps and decay of any Keras optimizer, and leave them as they were."""

# pyright: reportMissingImports=false, reportMissingModuleSource=false, reportAttributeAccessIssue=false
from __future__ import annotations

import keras
import pytest

import swell
import swell.keras
from swell.core.order import Shuffled
from swell.errors import ConfigError
from swell.rules import RULES
from tests.keras.toy import Heard, data, difference, loss, model, train_whole


def fitted(optimizer, rule, x, y, *, batch=8, base=4, epochs=1, callbacks=()):
    elastic = swell.keras.Elastic(batch=batch, base=base, rule=rule, statistics=False)
    network = model()
    network.compile(optimizer=elastic.optimizer(optimizer), loss=loss())
    network.fit(elastic.data(x, y), epochs=epochs, callbacks=[elastic, *callbacks], verbose=0)
    return network, elastic


def test_the_linear_rule_multiplies_the_learning_rate_and_the_base_rate_is_back_afterwards():
    x, y = data(24)
    network, elastic = fitted(keras.optimizers.SGD(0.1), "linear", x, y)
    assert difference(network.get_weights(), train_whole(model(), keras.optimizers.SGD(0.2), x, y, 8)) < 2e-6
    assert float(keras.ops.convert_to_numpy(network.optimizer.learning_rate)) == pytest.approx(0.1)
    assert elastic.progress == pytest.approx(6.0)


def test_the_adam_rule_moves_betas_and_eps_and_keeps_the_bias_correction_right():
    x, y = data(24)
    network, _ = fitted(keras.optimizers.Adam(0.01), swell.AdamSDE(), x, y)
    root = 2**0.5
    twin = keras.optimizers.Adam(0.01 * root, beta_1=0.9**2, beta_2=0.999**2, epsilon=1e-7 / root)
    assert difference(network.get_weights(), train_whole(model(), twin, x, y, 8)) < 5e-6
    assert network.optimizer.inner.beta_1 == 0.9


def test_the_dual_norm_is_refused_with_what_to_use_instead():
    elastic = swell.keras.Elastic(batch=8, base=4, micro=4, rule="dualscale")
    with pytest.raises(ConfigError, match=r"swell.keras does not measure gradients in a dual norm.*Use AdamScale"):
        elastic.optimizer(keras.optimizers.SGD(0.01))


@pytest.mark.parametrize("name", sorted(set(RULES) - {"adam-sde", "dualscale", "none", "sqrt"}))  # the others are above
def test_every_rule_of_the_core_sets_the_learning_rate_it_says(name):
    kind = keras.optimizers.Adam if name == "adamscale" else keras.optimizers.SGD
    x, y = data(64)
    sink = Heard()
    elastic = swell.keras.Elastic(batch=8, base=4, micro=4, rule=name, sinks=[sink])
    network, twin = model(), model()
    network.compile(optimizer=elastic.optimizer(kind(0.01)), loss=loss())
    network.fit(elastic.data(x, y), callbacks=[elastic], verbose=0)
    factors = [event.lr_factor[0] for event in sink.events if event.kind == "step"]
    assert len(factors) == 8 and all(0 < factor <= 2 for factor in factors)
    assert len(set(factors)) > 1 or name in ("constant", "linear", "root", "legw", "adam-mean-gain")
    twin.compile(optimizer=kind(0.01), loss=loss())
    order = Shuffled(64, seed=0, epoch=0).indices(0, 64)
    for step, factor in enumerate(factors):
        twin.optimizer.learning_rate = 0.01 * factor
        rows = order[8 * step : 8 * step + 8]
        twin.train_on_batch(x[rows], y[rows])
    assert difference(network.get_weights(), twin.get_weights()) < 5e-6


def test_weight_decay_keeps_its_time_scale():
    x, y = data(24)
    network, elastic = fitted(keras.optimizers.AdamW(0.01, weight_decay=0.1), "auto", x, y)
    assert "KeepDecayTime" in repr(elastic.rule)
    assert network.optimizer.inner.weight_decay == 0.1
    network, _ = fitted(keras.optimizers.AdamW(0.01, weight_decay=0.1), swell.rules.KeepDecayTime(swell.Root()), x, y)
    twin = keras.optimizers.AdamW(0.01 * 2**0.5, weight_decay=0.1 * 2**0.5)
    assert difference(network.get_weights(), train_whole(model(), twin, x, y, 8)) < 5e-6


def test_an_average_of_weights_keeps_its_time_scale():
    x, y = data(24)
    averaged = {"use_ema": True, "ema_momentum": 0.5}
    network, _ = fitted(keras.optimizers.SGD(0.1, **averaged), swell.rules.KeepAverageTime(swell.Constant()), x, y)
    twin = model()
    train_whole(twin, keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.25), x, y, 8)
    twin.optimizer.finalize_variable_values(twin.trainable_weights)
    assert difference(network.get_weights(), twin.get_weights()) < 5e-6


def test_callbacks_that_set_the_learning_rate_keep_working():
    x, y = data(16)
    schedule = keras.callbacks.LearningRateScheduler(lambda epoch: 0.1 / (epoch + 1))
    network, _ = fitted(keras.optimizers.SGD(0.5), "linear", x, y, epochs=2, callbacks=[schedule])
    twin = keras.optimizers.SGD(keras.optimizers.schedules.PiecewiseConstantDecay([1], [0.2, 0.1]))  # 2 steps an epoch
    assert difference(network.get_weights(), train_whole(model(), twin, x, y, 8, epochs=2)) < 2e-6
    assert float(keras.ops.convert_to_numpy(network.optimizer.learning_rate)) == pytest.approx(0.05)


def test_a_policy_moves_the_batch_inside_an_epoch():
    x, y = data(40)
    elastic = swell.keras.Elastic(batch=swell.Ramp(4, 12, over=40, unit="samples"), rule="constant", micro=8)
    network = model()
    network.compile(optimizer=elastic.optimizer("sgd"), loss=loss())
    history = network.fit(elastic.data(x, y), epochs=2, callbacks=[elastic], verbose=0)
    assert history.history["global_batch"][-1] == 12
    assert elastic.samples == 80


class _UntilSixteen:
    base = 4

    def batch(self, seen):
        return 4

    def finished(self, seen):
        return seen.samples >= 16


def test_a_policy_that_knows_its_end_ends_the_run():
    x, y = data(40)
    elastic = swell.keras.Elastic(batch=_UntilSixteen(), statistics=False)
    network = model()
    network.compile(optimizer=elastic.optimizer("sgd"), loss=loss())
    history = network.fit(elastic.data(x, y), epochs=3, callbacks=[elastic], verbose=0)
    assert elastic.samples == 16
    assert len(history.history["loss"]) == 1
