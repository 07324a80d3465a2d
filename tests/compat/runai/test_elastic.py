"""One global batch on any number of devices, never more on one than it can hold."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import swell.compat.runai as runai
from swell.errors import ConfigError, PlanError
from tests.golden.runai import scenarios
from tests.workers import run_workers

GOLDEN = json.loads(Path(scenarios.__file__).with_name("numbers.json").read_text())


def layout(*numbers: Any) -> tuple[int, int]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        runai.elastic.torch.init(*numbers)
    return runai.elastic.steps, runai.elastic.batch_size


@pytest.mark.parametrize(("gpus", "steps"), [(1, 4), (2, 2), (4, 1)])
def test_the_table_of_the_documentation_holds(gpus: int, steps: int) -> None:
    runai.elastic.torch.init(256, 64, gpus=gpus)
    assert (runai.elastic.steps, runai.elastic.batch_size) == (steps, 64)
    assert (runai.elastic.global_batch_size, runai.elastic.gpus, runai.elastic.master) == (256, gpus, True)


@pytest.mark.parametrize(("batch", "most", "gpus", "steps", "size"), GOLDEN["layouts"])
def test_layouts_that_run_ai_got_right_are_the_same_here(
    batch: int, most: int, gpus: int, steps: int, size: int
) -> None:
    if size <= most and steps * size * gpus == batch:
        assert layout(batch, most, gpus) == (steps, size)
    else:
        assert layout(batch, most, gpus) != (steps, size)


@given(batch=st.integers(1, 4096), most=st.integers(1, 300), gpus=st.integers(1, 16))
def test_no_device_holds_more_than_it_can_and_no_sample_is_lost(batch: int, most: int, gpus: int) -> None:
    """Run:AI R1: floors exceeded the memory limit, shrank the batch, or made it 0."""
    if batch < gpus:
        with pytest.raises(PlanError):
            layout(batch, most, gpus)
        return
    steps, size = layout(batch, most, gpus)
    assert 1 <= size <= most
    assert batch <= steps * size * gpus < batch + steps * gpus
    assert runai.elastic.plan.global_batch == batch


def test_a_batch_that_does_not_divide_is_reported() -> None:
    with pytest.warns(UserWarning, match="104 samples"):
        runai.elastic.torch.init(100, 16, 4)


@pytest.mark.parametrize("numbers", [(256, 0, 1), (-4, 2, 1), (256, 64, 0), (256, 64.0, 1)])
def test_numbers_that_are_no_counts_are_refused(numbers: tuple[Any, ...]) -> None:
    with pytest.raises(ConfigError):
        runai.elastic.torch.init(*numbers)


def test_a_machine_without_gpus_is_one_device() -> None:
    runai.elastic.torch.init(128, 32)
    assert runai.elastic.gpus == max(torch.cuda.device_count(), 1)


def test_a_loader_under_data_parallel_takes_the_batch_of_all_devices() -> None:
    """Run:AI R2: its examples trained with a batch too small by the number of GPUs."""
    runai.elastic.torch.init(256, 64, gpus=2)
    assert runai.elastic.loader_batch_size == 128
    assert runai.elastic.steps * runai.elastic.loader_batch_size == 256


def test_values_read_before_init_say_what_to_call() -> None:
    code = "import swell.compat.runai as runai; runai.elastic.steps"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "runai.elastic.torch.init(...)" in done.stderr


def test_nothing_is_logged_and_no_framework_is_loaded_by_the_import() -> None:
    """Run:AI R10: importing it logged to the terminal."""
    code = "import sys, swell.compat.runai; print('torch' in sys.modules, 'keras' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout.strip(), done.stderr) == ("False False", "")


def in_a_group(collective: Any) -> tuple[tuple[Any, ...], list[float]]:
    runai.elastic.torch.init(32, 8)
    elastic = runai.elastic
    values = (elastic.steps, elastic.batch_size, elastic.gpus, elastic.master, elastic.loader_batch_size)
    torch.manual_seed(0)
    x, net = torch.randn(32, 3).double(), torch.nn.Linear(3, 1).double()
    parallel = torch.nn.parallel.DistributedDataParallel(net)
    optimizer = runai.ga.torch.optim.SGD(elastic.steps, net.parameters(), lr=0.1)
    for start in range(collective.rank * 8, 32, 16):
        parallel(x[start : start + 8]).square().mean().backward()
        optimizer.step()
    return values, net.weight.flatten().tolist()


@pytest.mark.distributed
def test_under_ddp_the_process_group_is_counted_and_its_step_is_that_of_the_whole_batch() -> None:
    torch.manual_seed(0)
    x, net = torch.randn(32, 3).double(), torch.nn.Linear(3, 1).double()
    net(x).square().mean().backward()
    torch.optim.SGD(net.parameters(), lr=0.1).step()
    for rank, (values, weights) in enumerate(run_workers(2, in_a_group)):
        assert values == (2, 8, 2, rank == 0, 8)
        assert weights == pytest.approx(net.weight.flatten().tolist(), rel=1e-12)
