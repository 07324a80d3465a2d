"""What cannot work is refused before it trains wrongly, with a message that says how to mend it."""

# pyright: reportMissingImports=false, reportMissingModuleSource=false, reportAttributeAccessIssue=false
from __future__ import annotations

import keras
import numpy as np
import pytest

import swell.keras
from swell.errors import ConfigError, DataError, LoopError, PlanError
from swell.integrations.keras.conductor import Conductor
from swell.policies import as_policy
from swell.rules import Constant
from tests.keras.spread import several
from tests.keras.toy import BACKEND, data, difference, loss, model, train_whole


def compiled(elastic, **options):
    made = model()
    made.compile(optimizer=elastic.optimizer("sgd"), loss=loss(), **options)
    return made


def test_an_optimizer_may_be_given_as_a_name_an_object_or_a_configuration():
    elastic = swell.keras.Elastic(batch=8)
    assert type(elastic.optimizer("adam").inner).__name__ == "Adam"
    described = keras.optimizers.serialize(keras.optimizers.SGD(0.3))
    assert float(keras.ops.convert_to_numpy(elastic.optimizer(described).learning_rate)) == pytest.approx(0.3)


def test_a_generator_is_refused_because_its_length_is_unknown():
    elastic = swell.keras.Elastic(batch=8)
    compiled(elastic)
    with pytest.raises(DataError, match="no known length"):
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
    with pytest.raises(DataError, match="infinite"):
        elastic.data(_Endless())
    torch_data = pytest.importorskip("torch.utils.data")
    with pytest.raises(DataError, match="no length"):
        elastic.data(type("Stream", (torch_data.IterableDataset,), {"__iter__": lambda self: iter(())})())


def test_a_model_compiled_without_elastic_is_named_and_the_one_call_form_takes_it():
    x, y = data(16)
    elastic = swell.keras.Elastic(batch=8, rule="constant")
    elastic.optimizer("sgd")
    made = model()
    made.compile(optimizer=keras.optimizers.Adam(0.01), loss=loss())
    with pytest.raises(LoopError, match="not compiled with this Elastic"):
        made.fit(elastic.data(x, y), callbacks=[elastic], verbose=0)


def test_a_model_trained_before_keeps_its_optimizers_state_in_the_one_call_form():
    x, y = data(24)
    made, twin = model(), model()
    for one in (made, twin):
        one.compile(optimizer=keras.optimizers.Adam(0.01), loss=loss())
        one.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    swell.keras.Elastic(batch=12, micro=8, rule="constant").fit(made, x, y, verbose=0)
    assert difference(made.get_weights(), train_whole(twin, twin.optimizer, x, y, 12)) < 2e-6


def test_a_batch_that_cannot_be_split_over_processes_is_refused_and_says_what_fits():
    elastic = Conductor(as_policy(2), Constant(), length=10, seed=0)
    elastic.replicas = 3
    with pytest.raises(PlanError, match=r"2 .*3 replicas"):
        elastic.step_to_train()


@pytest.mark.skipif(BACKEND == "torch", reason="torch spreads over processes, in the test above")
def test_a_batch_smaller_than_the_devices_of_a_pass_is_exact():
    x, y = data(9)
    alone = train_whole(model(), "sgd", x, y, 1)
    with several():
        elastic = swell.keras.Elastic(batch=1, rule="constant")
        made = compiled(elastic)
        made.fit(elastic.data(x, y), callbacks=[elastic], verbose=0)
        assert difference(made.get_weights(), alone) < 2e-6


def test_a_model_of_one_batch_size_is_refused():
    x, y = data(16)
    elastic = swell.keras.Elastic(batch=8)
    inputs = keras.Input(batch_shape=(8, 5))
    made = keras.Model(inputs, keras.layers.Dense(3, activation="softmax")(inputs))
    made.compile(optimizer=elastic.optimizer("sgd"), loss=loss())
    with pytest.raises(ConfigError, match="exactly 8 samples"):
        made.fit(elastic.data(x, y), callbacks=[elastic], verbose=0)


def test_a_sequence_of_layers_without_an_input_trains_as_with_one():
    x, y = data(40)

    def weights(*inputs):
        keras.utils.set_random_seed(1)
        elastic = swell.keras.Elastic(batch=16, micro=5)
        made = keras.Sequential([*inputs, keras.layers.Dense(3, activation="softmax")])
        made.compile(optimizer=elastic.optimizer("sgd"), loss=loss())
        made.fit(elastic.data(x, y), callbacks=[elastic], epochs=2, verbose=0)
        return made.get_weights()

    assert difference(weights(), weights(keras.Input((5,)))) < 1e-6


@pytest.mark.parametrize(
    ("inner", "match"),
    [
        (lambda: keras.optimizers.SGD(gradient_accumulation_steps=2), "accumulate a second time"),
        (lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()), "bfloat16"),
        (lambda: swell.keras.ElasticOptimizer("sgd"), "wrapped already"),
    ],
)
def test_optimizers_that_would_count_steps_of_their_own_are_refused(inner, match):
    with pytest.raises(ConfigError, match=match):
        swell.keras.Elastic(batch=8).optimizer(inner())


def test_a_policy_that_waits_for_the_noise_is_refused_where_none_is_measured():
    with pytest.raises(ConfigError, match="statistics is False"):
        swell.keras.Elastic(batch=swell.NoiseScale(8, max=64), statistics=False)


def test_a_batch_larger_than_the_data_is_refused():
    x, y = data(10)
    elastic = swell.keras.Elastic(batch=16)
    made = compiled(elastic)
    with pytest.raises(Exception, match="only 10 samples"):
        made.fit(elastic.data(x, y), callbacks=[elastic], verbose=0)


def test_forgetting_a_part_is_said_so():
    x, y = data(40)
    elastic = swell.keras.Elastic(batch=4)
    with pytest.raises(LoopError, match="Compile first"):
        elastic.data(x, y)
    made = compiled(elastic)
    with pytest.raises(LoopError, match=r"elastic\.data"):
        made.fit(x, y, callbacks=[elastic], verbose=0)
    elastic.data(x, y)
    with pytest.raises(LoopError, match="did not give it"):
        made.fit(x, y, callbacks=[elastic], verbose=0)
    with pytest.raises(ConfigError, match="batch_size"):
        elastic.fit(made, x, y, batch_size=3)
    with pytest.raises(ConfigError, match="another Elastic"):
        swell.keras.Elastic(batch=4).fit(made, x, y)
    with pytest.raises(LoopError, match="not compiled"):
        swell.keras.Elastic(batch=4).fit(model(), x, y)


@pytest.mark.parametrize(
    "unused",
    [{"class_weight": {0: 2.0}}, {"sample_weight": np.ones(16)}, {"batch_size": 4}, {"y": np.ones(16)}],
    ids=lambda options: next(iter(options)),
)
def test_what_plain_fit_would_leave_unused_is_refused(unused):
    x, y = data(16)
    elastic = swell.keras.Elastic(batch=8)
    made = compiled(elastic)
    with pytest.raises(ConfigError, match=f"{next(iter(unused))} beside elastic"):
        made.fit(elastic.data(x, y), callbacks=[elastic], verbose=0, **unused)


def test_class_weights_are_for_one_label_a_sample_and_no_other_weights():
    x, y = data(16)
    elastic = swell.keras.Elastic(batch=8)
    compiled(elastic)
    with pytest.raises(DataError, match="not both"):
        elastic.data(x, y, np.ones(16), class_weight={0: 2.0})
    with pytest.raises(DataError, match="needs samples of"):
        elastic.data(x, class_weight={0: 2.0})
    with pytest.raises(DataError, match="one class a sample"):
        elastic.data(x, np.zeros((16, 2, 2)), class_weight={0: 2.0})


def test_arrays_of_unequal_length_and_empty_data_are_refused():
    elastic = swell.keras.Elastic(batch=4)
    compiled(elastic)
    with pytest.raises(DataError, match=r"lengths \[3, 4\]"):
        elastic.data(np.zeros((4, 5)), np.zeros(3))
    with pytest.raises(DataError, match="empty"):
        elastic.data(np.zeros((0, 5)), np.zeros(0))


def test_what_would_tear_a_global_batch_apart_is_refused():
    x, y = data(16)
    summed = keras.losses.SparseCategoricalCrossentropy(reduction="sum")
    for options, match in (({"loss": summed}, "reduction='sum'"), ({"steps_per_execution": 2}, "steps_per_execution")):
        elastic = swell.keras.Elastic(batch=8)
        made = model()
        made.compile(**{"optimizer": elastic.optimizer("sgd"), "loss": loss(), **options})
        with pytest.raises((ConfigError, ValueError), match=match):
            made.fit(elastic.data(x, y), callbacks=[elastic], verbose=0)
