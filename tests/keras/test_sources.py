"""Every kind of data a Keras user has gives each sample exactly once an epoch, cut as swell cuts it."""

# pyright: reportMissingImports=false, reportMissingModuleSource=false, reportAttributeAccessIssue=false
from __future__ import annotations

import itertools
from typing import Any

import keras
import numpy as np
import pytest

import swell.keras
from swell.errors import DataError
from swell.integrations.keras.sources import as_source
from tests.keras.toy import BACKEND


class Batches(keras.utils.PyDataset):
    def __init__(self, x, y, size):
        super().__init__()
        self._x, self._y, self._size = x, y, size

    def __len__(self):
        return -(-len(self._x) // self._size)

    def __getitem__(self, index):
        cut = slice(index * self._size, (index + 1) * self._size)
        return self._x[cut], self._y[cut]


def every_sample(source, epoch=0, cuts=(0, 5, 6, 13, 20, 23)):
    taken = [source.take(epoch, a, b) for a, b in itertools.pairwise(cuts)]
    return [int(v) for batch in taken for v in batch[1]]


X, Y = np.arange(46.0).reshape(23, 2), np.arange(23)


@pytest.mark.parametrize("shuffle", [False, True])
def test_arrays_nested_structures_and_batches_give_each_sample_once(shuffle):
    for source in (
        as_source(X, Y, shuffle=shuffle, seed=0, length=None),
        as_source({"a": X}, Y, shuffle=shuffle, seed=0, length=None),
        as_source(Batches(X, Y, 4), shuffle=shuffle, seed=0, length=None),
    ):
        assert source.length == 23
        assert sorted(every_sample(source)) == list(range(23))
        assert (every_sample(source) == list(range(23))) is not shuffle
        assert every_sample(source)[6:13] == [int(v) for v in source.take(0, 6, 13)[1]]


def test_a_torch_data_set_or_loader_gives_each_sample_once():
    torch_data = pytest.importorskip("torch.utils.data")
    import torch

    dataset = torch_data.TensorDataset(torch.tensor(X), torch.tensor(Y))
    for dataset_or_loader in (dataset, torch_data.DataLoader(dataset, batch_size=4, shuffle=True)):
        source = as_source(dataset_or_loader, shuffle=True, seed=0, length=None)
        assert sorted(every_sample(source)) == list(range(23))


@pytest.mark.skipif(BACKEND != "tensorflow", reason="tf.data is for TensorFlow")
def test_a_tf_data_set_gives_each_sample_once_and_can_begin_in_the_middle():
    import tensorflow as tf

    source = as_source(tf.data.Dataset.from_tensor_slices((X, Y)).batch(4), shuffle=True, seed=0, length=None)
    assert source.length == 23
    assert every_sample(source) == list(range(23))
    assert [int(v) for v in source.take(1, 9, 12)[1]] == [9, 10, 11]
    endless = tf.data.Dataset.from_tensor_slices((X, Y)).batch(4).repeat()
    with pytest.raises(DataError, match="length="):
        as_source(endless, shuffle=True, seed=0, length=None)
    assert as_source(endless, shuffle=True, seed=0, length=23).length == 23


@pytest.mark.skipif(BACKEND != "tensorflow", reason="tf.data is for TensorFlow")
def test_a_tf_data_set_that_is_not_batched_is_refused():
    import tensorflow as tf

    one_hot = np.eye(23)
    unbatched: list[Any] = [(X, Y), (Y, X), (X, one_hot), {"a": X, "b": Y}, Y]
    for parts in unbatched:
        with pytest.raises(DataError, match=r"single samples.*dataset\.batch"):
            as_source(tf.data.Dataset.from_tensor_slices(parts), shuffle=True, seed=0, length=None)
    whole = tf.data.Dataset.from_tensor_slices((X, one_hot)).batch(4, drop_remainder=True)
    assert as_source(whole, shuffle=True, seed=0, length=None).length == 20


def test_a_py_dataset_trains_like_the_arrays_inside_it():
    x, y = np.random.default_rng(0).normal(size=(20, 5)).astype("float32"), np.arange(20) % 3
    from tests.keras.toy import difference, loss, model

    weights = []
    for arguments in ((x, y), (Batches(x, y, 3),)):
        elastic = swell.keras.Elastic(batch=8, rule="constant", statistics=False)
        network = model()
        network.compile(optimizer=elastic.optimizer("sgd"), loss=loss())
        network.fit(elastic.data(*arguments, shuffle=False), callbacks=[elastic], verbose=0)
        weights.append(network.get_weights())
    assert difference(*weights) == 0
