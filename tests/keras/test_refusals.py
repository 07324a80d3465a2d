"""What cannot work is refused before it trains wrongly, with a message that says how to fix it."""

# pyright: reportMissingImports=false, reportMissingModuleSource=false, reportAttributeAccessIssue=false
from __future__ import annotations

import keras
import numpy as np
import pytest

import swell.keras
from swell.errors import ConfigError, DataError, LoopError, PlanError
from swell.integrations.keras.device_grid import DeviceGrid
from swell.integrations.keras.step_sequence import StepSequence
from swell.policies import as_policy
from swell.rules import Constant
from tests.keras.spread import several
from tests.keras.toy import BACKEND, data, difference, loss, model, train_whole


def compiled(elastic, **options):
    network = model()
    network.compile(optimizer=elastic.optimizer("sgd"), loss=loss(), **options)
    return network


def test_an_optimizer_may_be_given_as_a_name_an_object_or_a_configuration():
    elastic = swell.keras.Elastic(batch=8)
    assert type(elastic.optimizer("adam").inner).__name__ == "Adam"
    described = keras.optimizers.serialize(keras.optimizers.SGD(0.3))
    assert float(keras.ops.convert_to_numpy(elastic.optimizer(described).learning_rate)) == pytest.approx(0.3)


def test_a_generator_is_refused_because_its_length_is_unknown():
    elastic = swell.keras.Elastic(batch=8)
    compiled(elastic)
    with pytest.raises(DataError, match="generator"):
        elastic.data(row for row in [1, 2])


class _Endless(keras.utils.PyDataset):
    @property
    def num_batches(self):
        return None

    def __getitem__(self, index):
        return np.zeros((4, 5)), np.zeros(4)


def test_data_without_an_end_is_refused():
    elastic = swell.keras.Elastic(batch=8)
    compiled(elastic)
    with pytest.raises(DataError, match="num_batches is None"):
        elastic.data(_Endless())
    torch_data = pytest.importorskip("torch.utils.data")
    with pytest.raises(DataError, match="Stream"):
        elastic.data(type("Stream", (torch_data.IterableDataset,), {"__iter__": lambda self: iter(())})())


def test_a_model_compiled_without_elastic_is_named_and_the_one_call_form_takes_it():
    x, y = data(16)
    elastic = swell.keras.Elastic(batch=8, rule="constant")
    elastic.optimizer("sgd")
    network = model()
    network.compile(optimizer=keras.optimizers.Adam(0.01), loss=loss())
    with pytest.raises(LoopError, match="optimizer of type Adam"):
        network.fit(elastic.data(x, y), callbacks=[elastic], verbose=0)


def test_a_model_trained_before_keeps_its_optimizers_state_in_the_one_call_form():
    x, y = data(24)
    network, twin = model(), model()
    for one in (network, twin):
        one.compile(optimizer=keras.optimizers.Adam(0.01), loss=loss())
        one.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    swell.keras.Elastic(batch=12, micro=8, rule="constant").fit(network, x, y, verbose=0)
    assert difference(network.get_weights(), train_whole(twin, twin.optimizer, x, y, 12)) < 2e-6


def test_a_batch_that_cannot_be_split_over_processes_is_refused_and_says_what_fits():
    steps = StepSequence(as_policy(2), Constant(), length=10, seed=0)
    steps.place(DeviceGrid(processes=3))
    with pytest.raises(PlanError, match=r"2 .*3 replicas"):
        steps.step_to_train()


@pytest.mark.skipif(BACKEND == "torch", reason="torch spreads over processes, in the test above")
def test_a_batch_smaller_than_the_devices_of_a_pass_is_exact():
    x, y = data(9)
    alone = train_whole(model(), "sgd", x, y, 1)
    with several():
        elastic = swell.keras.Elastic(batch=1, rule="constant")
        network = compiled(elastic)
        network.fit(elastic.data(x, y), callbacks=[elastic], verbose=0)
        assert difference(network.get_weights(), alone) < 2e-6


def test_a_model_of_one_batch_size_is_refused():
    x, y = data(16)
    elastic = swell.keras.Elastic(batch=8)
    inputs = keras.Input(batch_shape=(8, 5))
    network = keras.Model(inputs, keras.layers.Dense(3, activation="softmax")(inputs))
    network.compile(optimizer=elastic.optimizer("sgd"), loss=loss())
    with pytest.raises(ConfigError, match="8 samples"):
        network.fit(elastic.data(x, y), callbacks=[elastic], verbose=0)


def test_a_sequence_of_layers_without_an_input_trains_as_with_one():
    x, y = data(40)

    def weights(*inputs):
        keras.utils.set_random_seed(1)
        elastic = swell.keras.Elastic(batch=16, micro=5)
        network = keras.Sequential([*inputs, keras.layers.Dense(3, activation="softmax")])
        network.compile(optimizer=elastic.optimizer("sgd"), loss=loss())
        network.fit(elastic.data(x, y), callbacks=[elastic], epochs=2, verbose=0)
        return network.get_weights()

    assert difference(weights(), weights(keras.Input((5,)))) < 1e-6


@pytest.mark.parametrize(
    ("inner", "match"),
    [
        (lambda: keras.optimizers.SGD(gradient_accumulation_steps=2), "gradient_accumulation_steps is 2"),
        (lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()), "LossScaleOptimizer"),
        (lambda: swell.keras.ElasticOptimizer("sgd"), "ElasticOptimizer"),
    ],
)
def test_optimizers_that_would_count_steps_of_their_own_are_refused(inner, match):
    with pytest.raises(ConfigError, match=match):
        swell.keras.Elastic(batch=8).optimizer(inner())


def test_a_policy_that_waits_for_the_noise_is_refused_where_none_is_measured():
    with pytest.raises(ConfigError, match="statistics"):
        swell.keras.Elastic(batch=swell.NoiseScale(8, max=64), statistics=False)


def test_a_batch_larger_than_the_data_is_refused():
    x, y = data(10)
    elastic = swell.keras.Elastic(batch=16)
    network = compiled(elastic)
    with pytest.raises(Exception, match=r"global batch is 16.*10"):
        network.fit(elastic.data(x, y), callbacks=[elastic], verbose=0)


def test_forgetting_a_part_is_said_so():
    x, y = data(40)
    elastic = swell.keras.Elastic(batch=4)
    with pytest.raises(LoopError, match=r"elastic\.optimizer"):
        elastic.data(x, y)
    network = compiled(elastic)
    with pytest.raises(LoopError, match=r"elastic\.data"):
        network.fit(x, y, callbacks=[elastic], verbose=0)
    elastic.data(x, y)
    with pytest.raises(LoopError, match=r"elastic\.data"):
        network.fit(x, y, callbacks=[elastic], verbose=0)
    with pytest.raises(ConfigError, match="batch_size"):
        elastic.fit(network, x, y, batch_size=3)
    with pytest.raises(ConfigError, match="Elastic"):
        swell.keras.Elastic(batch=4).fit(network, x, y)
    with pytest.raises(LoopError, match="compile"):
        swell.keras.Elastic(batch=4).fit(model(), x, y)


@pytest.mark.parametrize(
    "unused",
    [{"class_weight": {0: 2.0}}, {"sample_weight": np.ones(16)}, {"batch_size": 4}, {"y": np.ones(16)}],
    ids=lambda options: next(iter(options)),
)
def test_what_plain_fit_would_leave_unused_is_refused(unused):
    x, y = data(16)
    elastic = swell.keras.Elastic(batch=8)
    network = compiled(elastic)
    with pytest.raises(ConfigError, match=next(iter(unused))):
        network.fit(elastic.data(x, y), callbacks=[elastic], verbose=0, **unused)


def test_class_weights_are_for_one_label_a_sample_and_no_other_weights():
    x, y = data(16)
    elastic = swell.keras.Elastic(batch=8)
    compiled(elastic)
    with pytest.raises(DataError, match=r"class_weight.* 3 part"):
        elastic.data(x, y, np.ones(16), class_weight={0: 2.0})
    with pytest.raises(DataError, match=r"class_weight.* 1 part"):
        elastic.data(x, class_weight={0: 2.0})
    with pytest.raises(DataError, match="class_weight"):
        elastic.data(x, np.zeros((16, 2, 2)), class_weight={0: 2.0})


def test_arrays_of_unequal_length_and_empty_data_are_refused():
    elastic = swell.keras.Elastic(batch=4)
    compiled(elastic)
    with pytest.raises(DataError, match=r"lengths \[3, 4\]"):
        elastic.data(np.zeros((4, 5)), np.zeros(3))
    with pytest.raises(DataError, match="0 samples"):
        elastic.data(np.zeros((0, 5)), np.zeros(0))


def test_what_would_tear_a_global_batch_apart_is_refused():
    x, y = data(16)
    summed = keras.losses.SparseCategoricalCrossentropy(reduction="sum")
    for options, match in (({"loss": summed}, "reduction='sum'"), ({"steps_per_execution": 2}, "steps_per_execution")):
        elastic = swell.keras.Elastic(batch=8)
        network = model()
        network.compile(**{"optimizer": elastic.optimizer("sgd"), "loss": loss(), **options})
        with pytest.raises((ConfigError, ValueError), match=match):
            network.fit(elastic.data(x, y), callbacks=[elastic], verbose=0)
