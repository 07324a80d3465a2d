"""An argument that cannot work is refused where it is given, by its own name, with the way to fix it."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

import swell
from swell.errors import ConfigError, LossError
from tests.job.scenario import Points, make_model, mean_loss


class Numbers(IterableDataset):
    def __iter__(self) -> Any:
        return iter(range(8))


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


# swell.Job


@pytest.mark.parametrize(
    ("micro", "message"),
    [
        ("8", "micro.*'8'"),
        ("auto", "micro is 'auto'.*Goodput"),
        ([4, 8], r"micro is \[4, 8\]"),
        (0, "micro is 0"),
        (True, "micro is True"),
        (1.5, r"micro.*1\.5"),
        ((0, 4), r"micro\[0\] is 0"),
        ((None, "4"), r"micro\[1\] is '4'"),
        ((1, 2, 3), r"micro is \(1, 2, 3\)"),
        ((8, 4), r"micro is \(8, 4\)"),
    ],
)
def test_a_micro_batch_that_cannot_be_is_refused_by_the_job(micro: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        swell.Job(batch=8, micro=micro)


@pytest.mark.parametrize("micro", [None, 4, np.int64(4), (2, 4), (None, 4), (2, None)])
def test_a_micro_batch_is_a_number_or_a_pair_of_bounds(micro: Any) -> None:
    swell.Job(batch=8, micro=micro)


def test_a_rule_that_is_not_known_is_refused_by_the_job() -> None:
    with pytest.raises(ConfigError, match=r"rule is 'adscale'.*'auto'.*'adascale'"):
        swell.Job(batch=8, rule="adscale")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"save": "5m"}, "save is '5m'"),
        ({"save": True}, "save is True"),
        ({"save": 0}, "save is 0; expected .* above 0"),
        ({"keep": 0}, "keep is 0"),
        ({"keep": "3"}, "keep is '3'"),
        ({"run_dir": 5}, "run_dir is 5"),
        ({"device": "gpu"}, "device is 'gpu'"),
        ({"device": None}, "device is None"),
    ],
    ids=str,
)
def test_a_setting_of_the_job_that_cannot_be_is_refused_by_its_name(settings: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        swell.Job(batch=8, **settings)


@pytest.mark.parametrize("settings", [{"save": None}, {"save": 60}, {"save": np.float32(0.5)}, {"keep": np.int64(1)}])
def test_settings_are_taken_in_every_form_of_a_number(settings: Any) -> None:
    swell.Job(batch=8, device=torch.device("cpu"), **settings)


# job.loader and job.evaluation


def test_a_batch_size_for_the_loader_is_refused_and_the_job_named_as_its_place() -> None:
    for dataset in (Points(16), Numbers()):
        with pytest.raises(ConfigError, match=r"batch_size is 32.*batch=.*micro="):
            swell.Job(batch=8).loader(dataset, batch_size=32)


@pytest.mark.parametrize(
    ("dataset", "expected"), [(Points(16), "num_workers.*order.*shuffle"), (Numbers(), "num_workers.*split")]
)
def test_an_unknown_option_of_the_loader_is_refused_and_the_known_ones_named(dataset: Any, expected: str) -> None:
    with pytest.raises(ConfigError, match=f"workers.*{expected}"):
        swell.Job(batch=8).loader(dataset, workers=2)


def test_a_refused_option_leaves_the_job_ready_for_a_loader_without_it() -> None:
    job = swell.Job(batch=8)
    with pytest.raises(ConfigError):
        job.loader(Points(16), batch_size=32)
    assert len(job.loader(Points(16), sample_seed=1)) == 2


@pytest.mark.parametrize("call", ["loader", "evaluation"])
def test_a_data_loader_is_refused_at_once_where_a_data_set_is_expected(call: str) -> None:
    job = swell.Job(batch=8)
    with pytest.raises(ConfigError, match=rf"dataset is a DataLoader.*job\.{call}"):
        getattr(job, call)(DataLoader(Points(16)))


# job.wrap


def test_a_model_and_an_optimizer_in_the_wrong_order_are_refused() -> None:
    model: Any = make_model()
    optimizer: Any = sgd(model)
    with pytest.raises(ConfigError, match="model is a SGD"):
        swell.Job(batch=8).wrap(optimizer, model)


def test_what_is_no_optimizer_is_refused() -> None:
    model: Any = make_model()
    with pytest.raises(ConfigError, match="optimizer is a generator"):
        swell.Job(batch=8).wrap(model, model.parameters())


@pytest.mark.parametrize("kind", [list, tuple])
def test_several_optimizers_at_once_are_refused(kind: Any) -> None:
    model = make_model()
    with pytest.raises(ConfigError, match=r"optimizer is a .* of 2"):
        swell.Job(batch=8).wrap(model, kind([sgd(model), sgd(model)]))


def test_the_optimizer_of_another_model_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"optimizer is a SGD of 4 parameters.*Sequential"):
        swell.Job(batch=8).wrap(make_model(), sgd(make_model()))


def test_an_optimizer_of_some_parameters_or_of_a_compiled_model_is_taken() -> None:
    model: Any = make_model()
    swell.Job(batch=8).wrap(model, sgd(model[0]))
    compiled: Any = torch.compile(model, backend="eager")
    swell.Job(batch=8).wrap(compiled, sgd(model))
    swell.Job(batch=8).wrap(model[0], sgd(model))


def test_an_optimizer_whose_parameters_come_later_is_taken() -> None:
    model = make_model()
    optimizer = torch.optim.SGD([{"params": []}], lr=0.1)
    swell.Job(batch=8).wrap(model, optimizer)
    optimizer.add_param_group({"params": list(model.parameters())})


# job.step and job.backward


def one_step(clip: Any) -> bool:
    job, model = swell.Job(batch=8, statistics=False), make_model()
    job.wrap(model, sgd(model))
    for x, y, _ in job.loader(Points(8)):
        job.backward(mean_loss(model, x, y))
        return job.step(clip=clip)
    raise AssertionError("not reached")


@pytest.mark.parametrize("clip", [-1, 0, 0.0, "1", math.nan, math.inf, True, [1.0]])
def test_gradients_cannot_be_clipped_by_what_is_no_number_above_zero(clip: Any) -> None:
    with pytest.raises(ConfigError, match="clip is "):
        one_step(clip)


@pytest.mark.parametrize("clip", [None, 0.5, 1, np.float32(2), Fraction(1, 2), lambda parameters: None])
def test_gradients_are_clipped_by_any_number_above_zero_or_a_function(clip: Any) -> None:
    assert one_step(clip)


@pytest.mark.parametrize("batch", [swell.Goodput(8, max=64), swell.Clamp(swell.NoiseScale(8, max=64), high=32)])
def test_a_policy_that_waits_for_the_noise_is_refused_where_none_is_measured(batch: Any) -> None:
    with pytest.raises(ConfigError, match="statistics is False"):
        swell.Job(batch=batch, statistics=False)


def test_a_policy_sees_which_part_of_a_run_that_progress_ends_is_done() -> None:
    seen: list[Any] = []
    job, model = swell.Job(batch=lambda here: (seen.append(here), 16)[1], base=8, rule="linear"), make_model()
    job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.01))
    loader = job.loader(Points(64))
    for _ in job.until(steps=8):
        for x, y, _index in loader:
            job.backward(mean_loss(model, x, y))
            job.step()
    assert [(here.samples, here.progress, here.done) for here in seen] == [(16 * n, 2.0 * n, n / 4) for n in range(4)]


def test_a_loss_that_was_made_a_number_is_refused_and_the_way_back_said() -> None:
    job, model = swell.Job(batch=8), make_model()
    job.wrap(model, sgd(model))
    with pytest.raises(LossError, match="loss is a float"):
        for x, y, _ in job.loader(Points(8)):
            job.backward(mean_loss(model, x, y).item())  # type: ignore[arg-type]
