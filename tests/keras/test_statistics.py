"""Gradient noise is the same figure on every backend, and the one plain PyTorch finds."""

# pyright: reportMissingImports=false, reportMissingModuleSource=false, reportAttributeAccessIssue=false
from __future__ import annotations

import keras
import pytest

import swell
import swell.keras
from swell.core.moments import gain
from swell.errors import ConfigError
from tests.keras.toy import data, difference, loss, model
from tests.reference.keras_statistics import figures


def trained(x, y, *, adam):
    """The run, its weights, and what plain PyTorch makes of the same steps: weights, plain and metric moments."""
    rate = 0.01 if adam else 0.1
    optimizer = keras.optimizers.Adam(rate) if adam else keras.optimizers.SGD(rate)
    elastic = swell.keras.Elastic(batch=12, base=4, micro=8, rule=_Still("preconditioned" if adam else "plain"))
    network = model()
    start = network.get_weights()
    network.compile(optimizer=elastic.optimizer(optimizer), loss=loss())
    network.fit(elastic.data(x, y), epochs=4, callbacks=[elastic], verbose=0)
    return elastic, network, figures(start, x, y, batch=12, micro=8, epochs=4, base=4, rate=rate, adam=adam)


METRIC_IS_SMALLER, PLAIN_IS_SMALLER = 8, 3  # seeds of data, by the noise scale that plain PyTorch finds


@pytest.mark.parametrize("adam", [False, True])
def test_gain_and_noise_agree_with_plain_pytorch(adam):
    x, y = data(28, seed=METRIC_IS_SMALLER)
    elastic, network, (weights, plain, metric) = trained(x, y, adam=adam)
    expected = metric if adam else plain
    assert difference(network.get_weights(), weights) < 1e-5
    assert elastic.noise is not None and expected is not None
    assert elastic.noise.total.noise == pytest.approx(expected.noise, rel=1e-4)
    assert elastic.noise.total.signal == pytest.approx(expected.signal, rel=1e-4, abs=1e-4 * expected.noise / 12)
    assert gain(3.0, elastic.noise.total, base_batch=4) == pytest.approx(gain(3.0, expected, base_batch=4), rel=1e-4)


@pytest.mark.parametrize("seed", [METRIC_IS_SMALLER, PLAIN_IS_SMALLER])
def test_of_both_metrics_the_one_with_the_smaller_noise_scale_is_acted_on(seed):
    elastic, _, (_, plain, metric) = trained(*data(28, seed=seed), adam=True)
    assert elastic.noise is not None and metric is not None
    assert (metric.noise_scale < plain.noise_scale) == (seed == METRIC_IS_SMALLER)
    expected = min(plain, metric, key=lambda moments: moments.noise_scale)
    assert elastic.noise.total.noise_scale == pytest.approx(expected.noise_scale, rel=1e-3)
    assert elastic.noise.total.noise == pytest.approx(expected.noise, rel=1e-4)


class _Still:
    """A rule that looks at one metric and changes nothing, so that the twin need not scale."""

    def __init__(self, metric):
        self.metric = metric

    def factors(self, state):
        return swell.rules.Constant().factors(state)

    def gain(self, state):
        return 1.0


def test_a_batch_of_one_pass_is_split_now_and_then_to_measure():
    x, y = data(24)
    elastic = swell.keras.Elastic(batch=8)
    network = model()
    network.compile(optimizer=elastic.optimizer("sgd"), loss=loss())
    network.fit(elastic.data(x, y), callbacks=[elastic], verbose=0)
    assert elastic.noise is not None
    assert elastic.noise.observations == sum(swell.Statistics().splits(step) for step in range(3)) == 2


def test_without_statistics_nothing_is_measured():
    x, y = data(24)
    elastic = swell.keras.Elastic(batch=12, micro=8, statistics=False)
    network = model()
    network.compile(optimizer=elastic.optimizer("sgd"), loss=loss())
    network.fit(elastic.data(x, y), callbacks=[elastic], verbose=0)
    assert elastic.noise is None


@pytest.mark.parametrize("statistics", [5, swell.Statistics(every=5, warm_up=100)])
def test_a_number_of_steps_means_what_it_means_for_a_job(statistics):
    x, y = data(1040)
    elastic = swell.keras.Elastic(batch=8, micro=4, statistics=statistics)
    network = model()
    network.compile(optimizer=elastic.optimizer("sgd"), loss=loss())
    network.fit(elastic.data(x, y), callbacks=[elastic], verbose=0)
    assert elastic.noise is not None
    assert elastic.noise.observations == 100 + 6  # the warm-up, and steps 100, 105, ..., 125


@pytest.mark.parametrize("option", [{"alone": "differences"}, {"exact": True}])
def test_ways_to_measure_that_compiled_steps_do_not_have_are_refused(option):
    with pytest.raises(ConfigError, match=next(iter(option))):
        swell.keras.Elastic(batch=8, statistics=swell.Statistics(**option))
