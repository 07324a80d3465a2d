"""A process finds the world its launcher made, or is one by itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from swell.errors import ConfigError, WorldError
from swell.runtime.collective import Alone
from swell.runtime.environment import Environment, read_environment
from swell.runtime.world import open_world
from tests.workers import run_processes


def test_without_a_launcher_a_process_is_alone() -> None:
    world = open_world("cpu", environment=Environment())
    assert isinstance(world.collective, Alone)
    assert (world.device, world.nodes, world.generation, world.elastic) == (torch.device("cpu"), 1, 0, False)
    assert not world.pending()
    assert world.notice() is None
    with pytest.raises(WorldError, match="swell run"):
        world.reform()
    world.close()
    world.close()


def open_sum_close() -> dict[str, Any]:
    world = open_world("cpu")
    tensor = torch.ones(2)
    world.collective.sum_tensors([tensor])
    seen = {"size": world.collective.size, "sum": tensor[0].item(), "nodes": world.nodes}
    world.close()
    world.close()
    return {**seen, "left behind": dist.is_initialized()}


@pytest.mark.distributed
@pytest.mark.parametrize("size", [1, 2, 3])
def test_under_torchrun_the_group_is_made_and_destroyed(size: int) -> None:
    for seen in run_processes(size, open_sum_close):
        assert seen == {"size": size, "sum": size, "nodes": 1, "left behind": False}


def open_again_and_again() -> list[float]:
    sums = []
    for _ in range(4):
        world = open_world("cpu")
        tensor = torch.ones(2)
        world.collective.sum_tensors([tensor])
        sums.append(tensor[0].item())
        world.close()
    return sums


@pytest.mark.distributed
def test_a_script_may_open_one_world_after_another() -> None:
    assert run_processes(2, open_again_and_again) == [[2.0] * 4] * 2


def adopt() -> tuple[int, bool]:
    dist.init_process_group("gloo")
    world = open_world("cpu")
    size = world.collective.size
    world.close()
    kept = dist.is_initialized()
    dist.barrier()
    dist.destroy_process_group()
    return size, kept


@pytest.mark.distributed
def test_a_group_the_script_made_is_used_and_left_to_the_script() -> None:
    assert run_processes(2, adopt) == [(2, True)] * 2


def test_a_rank_without_a_world_size_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"RANK.*WORLD_SIZE"):
        read_environment({"RANK": "0"})


def test_a_rank_outside_its_world_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"RANK is 4.*3"):
        read_environment({"RANK": "4", "WORLD_SIZE": "4"})


@given(st.sampled_from(["RANK", "WORLD_SIZE", "MASTER_PORT", "SWELL_MEMBER"]), st.text(min_size=1))
def test_whatever_a_number_is_set_to_it_is_read_or_refused_by_name(name: str, value: str) -> None:
    try:
        read_environment({"RANK": "0", "WORLD_SIZE": "1", name: value})
    except ConfigError as error:
        assert name in str(error) or "RANK" in str(error)


def test_empty_variables_count_as_unset() -> None:
    assert read_environment({"RANK": "", "SWELL_CHANNEL": ""}) == Environment()


def test_a_time_that_cannot_pass_is_refused() -> None:
    with pytest.raises(ConfigError, match="timeout_s"):
        open_world("cpu", environment=Environment(), timeout_s=0)


def test_a_device_that_is_not_there_is_named() -> None:
    if torch.cuda.is_available():
        assert open_world("cuda", environment=Environment()).device.type == "cuda"
    else:
        with pytest.raises(ConfigError, match="device is 'cuda'"):
            open_world("cuda", environment=Environment())
