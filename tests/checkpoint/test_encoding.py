from __future__ import annotations

import enum
import io
from collections import defaultdict, namedtuple
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from torch.optim import lr_scheduler

from swell.checkpoint.encoding import MARK, decode, encode, host_tensor, plain_tensor
from swell.errors import CheckpointError
from tests.checkpoint.states import same, states


def saved_and_loaded(state: Any) -> Any:
    file = io.BytesIO()
    torch.save(encode(state, leaf=host_tensor), file)
    file.seek(0)
    return decode(torch.load(file, weights_only=True))


@given(state=states)
def test_every_state_comes_back_from_the_safe_loader_bit_for_bit(state: Any) -> None:
    assert same(saved_and_loaded(state), state)


@given(state=states)
def test_the_encoded_state_shares_no_container_with_the_original(state: Any) -> None:
    def containers(value: Any) -> set[int]:
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
        mutable = {id(value)} if isinstance(value, (dict, list, set)) else set()
        return mutable.union(*map(containers, inner))

    assert not containers(state) & containers(encode(state, leaf=host_tensor))


class Colour(enum.IntEnum):
    RED = 1


Point = namedtuple("Point", "x y")


@pytest.mark.parametrize(
    "stranger",
    [
        object(),
        Colour.RED,
        Point(1, 2),
        defaultdict(list),
        np.ma.masked_array([1], [True]),
        np.array([object()]),
        lambda: None,
        {np.int64(3): 1},
        {"a": [{MARK: 1}]},
        torch.ones(2).to_sparse(),
        torch.empty(2, device="meta"),
    ],
    ids=lambda stranger: type(stranger).__name__,
)
def test_what_would_not_come_back_as_it_was_is_refused_by_name(stranger: Any) -> None:
    with pytest.raises(CheckpointError, match=r"metrics\['top'\]\[0\]"):
        encode({"top": [stranger]}, leaf=plain_tensor, where="metrics")


@pytest.mark.parametrize("dtype", ["|O", [("a", "<i8"), ("b", "|O")]], ids=str)
def test_bytes_are_never_taken_for_the_addresses_of_objects(dtype: Any) -> None:
    address = id(dtype).to_bytes(8, "little")
    for data in (address, 8 * address):
        forged = {
            MARK: "array",
            "dtype": dtype,
            "shape": (1,),
            "data": torch.frombuffer(bytearray(data), dtype=torch.uint8),
        }
        for value in (forged, {MARK: "scalar", "dtype": dtype, "hex": data.hex()}):
            with pytest.raises(CheckpointError, match="objects"):
                decode(value)


def test_a_slice_is_saved_without_its_base() -> None:
    file = io.BytesIO()
    torch.save(encode(torch.zeros(1_000_000)[:3], leaf=host_tensor), file)
    assert file.tell() < 10_000


def test_a_module_keeps_the_versions_of_its_layers() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    state = module.state_dict()
    loaded = saved_and_loaded(state)
    assert same(loaded, state)
    assert loaded._metadata["1"] == {"version": 2}


def every_scheduler(optimizer: torch.optim.Optimizer) -> list[Any]:
    return [
        lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.9**epoch),
        lr_scheduler.MultiplicativeLR(optimizer, lambda epoch: 0.9),
        lr_scheduler.StepLR(optimizer, 2),
        lr_scheduler.MultiStepLR(optimizer, [2, 2, 4]),
        lr_scheduler.ConstantLR(optimizer),
        lr_scheduler.LinearLR(optimizer),
        lr_scheduler.ExponentialLR(optimizer, 0.9),
        lr_scheduler.PolynomialLR(optimizer),
        lr_scheduler.CosineAnnealingLR(optimizer, 10),
        lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 10),
        lr_scheduler.SequentialLR(
            optimizer, [lr_scheduler.LinearLR(optimizer), lr_scheduler.ExponentialLR(optimizer, 0.9)], [3]
        ),
        lr_scheduler.ChainedScheduler([lr_scheduler.ConstantLR(optimizer)]),
        lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=20),
        lr_scheduler.CyclicLR(optimizer, 0.01, 0.1),
        lr_scheduler.ReduceLROnPlateau(optimizer),
        torch.optim.swa_utils.SWALR(optimizer, 0.1),
    ]


def test_the_state_of_every_scheduler_of_torch_can_be_held() -> None:
    optimizer = torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=0.1, momentum=0.9)
    for scheduler in every_scheduler(optimizer):
        state = scheduler.state_dict()
        assert same(saved_and_loaded(state), state), type(scheduler).__name__


@pytest.mark.parametrize(
    "make",
    [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adafactor, torch.optim.LBFGS, torch.optim.Rprop],
)
def test_the_state_of_an_optimizer_can_be_held(make: Any) -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = make(model.parameters(), lr=np.float64(0.1))

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        value = model(torch.ones(4, 3)).square().mean()
        value.backward()
        return value

    optimizer.step(loss)
    state = optimizer.state_dict()
    assert same(saved_and_loaded(state), state)
