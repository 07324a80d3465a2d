"""torchrun is started with the settings that make it quick."""

from __future__ import annotations

import pytest

from swell.errors import ConfigError
from swell.supervisor.sizes import parse_sizes
from swell.supervisor.torchrun import torchrun_command, torchrun_environment


def command(workers: str, per_node: int = 1) -> list[str]:
    return torchrun_command(
        ["train.py", "--lr", "1"],
        sizes=parse_sizes(workers),
        per_node=per_node,
        rendezvous="host:29400",
        max_restarts=3,
    )


def test_workers_become_nodes_and_the_script_comes_last() -> None:
    line = command("2:8:2", per_node=2)
    assert "--nnodes=1:4" in line
    assert "--nproc-per-node=2" in line
    assert "--rdzv-conf=last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=5" in line
    assert line[-3:] == ["train.py", "--lr", "1"]


@pytest.mark.parametrize(("workers", "per_node"), [("2,4,8", 1), ("3", 2), ("1:4", 0)])
def test_numbers_torchrun_cannot_keep_to_are_refused(workers: str, per_node: int) -> None:
    with pytest.raises(ConfigError):
        command(workers, per_node)


def test_late_nodes_can_join_unless_the_user_says_otherwise() -> None:
    assert torchrun_environment({})["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] == "1"
    assert (
        torchrun_environment({"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "0"})["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] == "0"
    )
