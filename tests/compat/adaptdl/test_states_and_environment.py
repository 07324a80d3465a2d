"""The user's own states, collectives, variables, and what importing does: nothing."""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import torch

import swell.compat.adaptdl as adaptdl
from swell.compat.adaptdl.opening import address_of
from swell.errors import CheckpointError, ConfigError
from tests.compat.adaptdl.scenario import loader, open_run, train
from tests.workers import run_processes


class Counter(adaptdl.checkpoint.State):
    def __init__(self, name: str = "counter") -> None:
        super().__init__(name)
        self.value, self.synced = 0, 0

    def save(self, fileobj: BinaryIO) -> None:
        pickle.dump(self.value, fileobj)

    def load(self, fileobj: BinaryIO) -> None:
        self.value = pickle.load(fileobj)

    def sync(self) -> None:
        self.synced += 1


def test_a_state_comes_back_and_can_be_saved_again_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """AdaptDL C1: the second save of a process failed, and its progress was lost."""
    monkeypatch.setenv("ADAPTDL_CHECKPOINT_PATH", str(tmp_path))
    values = []
    for _ in range(3):  # the same number of restarts each time: the original could save only once
        _, optimizer, wrapped = open_run()
        counter = Counter()
        values.append((adaptdl.checkpoint.load_state(counter), counter.value))
        train(wrapped, optimizer, loader())
        for _ in range(2):
            counter.value += 1
            adaptdl.checkpoint.save_all_states()
        first = not values[-1][0]  # a run without a checkpoint saves the end of its first epoch too
        assert counter.synced == 2 + first
        adaptdl.close()
    assert values == [(False, 0), (True, 2), (True, 4)]


def test_names_are_unique() -> None:
    Counter()
    with pytest.raises(ValueError, match="counter"):
        Counter()


@pytest.mark.parametrize("joined", [False, True])
def test_states_are_saved_and_loaded_before_training_has_begun(
    joined: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in the original: with or without a process group, a model or a loader, once or again and again."""
    monkeypatch.setenv("ADAPTDL_CHECKPOINT_PATH", str(tmp_path))
    values = []
    for _ in range(3):
        if joined:
            adaptdl.torch.init_process_group("gloo")
        counter = Counter()
        values.append((adaptdl.checkpoint.load_state(counter), counter.value))
        counter.value += 1
        adaptdl.checkpoint.save_all_states()
        counter.value += 100
        assert adaptdl.checkpoint.load_state(counter) and counter.synced == 1, "the latest save is the newest one"
        adaptdl.close()
    assert values == [(False, 0), (True, 1), (True, 2)]


def test_what_was_saved_before_training_comes_back_and_gives_way_to_a_newer_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADAPTDL_CHECKPOINT_PATH", str(tmp_path))

    def program(*, trains: bool, saves_first: bool) -> tuple[int, float, int]:
        model, optimizer, wrapped = open_run()
        with torch.no_grad():
            bias = list(model.parameters())[-1]
            if not (tmp_path / "before-training").exists():
                bias.fill_(7.0)
        counter = Counter()
        adaptdl.checkpoint.load_state(counter)
        found, first = counter.value, bias.flatten()[0].item()
        counter.value += 1
        if saves_first:
            adaptdl.checkpoint.save_all_states()
        if trains:
            for _ in adaptdl.torch.remaining_epochs_until(1):
                train(wrapped, optimizer, loader())
        adaptdl.close()
        return found, first, counter.value

    assert program(trains=False, saves_first=True) == (0, 7.0, 1)
    assert program(trains=False, saves_first=True) == (1, 7.0, 2), "the model's weights were saved too"
    assert program(trains=True, saves_first=False)[0] == 2
    assert program(trains=False, saves_first=True)[0] == 3, "the run's own checkpoint is newer now"
    assert program(trains=False, saves_first=False)[0] == 4, "and then the latest one again"


def test_without_a_folder_saving_only_brings_the_states_together() -> None:
    counter = Counter()
    adaptdl.checkpoint.save_all_states()
    assert counter.synced == 1


def test_one_state_can_be_written_to_a_folder_of_its_own(tmp_path: Path) -> None:
    counter = Counter()
    counter.value = 5
    adaptdl.checkpoint.save_state(counter, tmp_path / "states")
    assert pickle.loads((tmp_path / "states" / "counter").read_bytes()) == 5 and counter.synced == 1
    with pytest.raises(ConfigError, match="a/b"):
        adaptdl.checkpoint.save_state(Counter("a/b"), tmp_path)


def test_values_are_reduced_and_broadcast_but_never_code() -> None:
    assert adaptdl.collective.allreduce({"a": 1}, lambda a, b: {**a, **b}) == {"a": 1}
    assert adaptdl.collective.allreduce_async(3).result() == 3
    assert adaptdl.collective.broadcast([1, torch.ones(1)])[0] == 1
    adaptdl.collective.initialize()
    with pytest.raises(CheckpointError):
        adaptdl.collective.broadcast(Counter)
    adaptdl.collective.teardown()


def test_variables_are_read_when_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    env = adaptdl.env
    assert (env.replica_rank(), env.num_replicas(), env.num_nodes(), env.num_restarts()) == (0, 1, 1, 0)
    assert (env.checkpoint_path(), env.share_path(), env.job_id(), env.supervisor_url()) == (None,) * 4
    assert (env.master_addr(), env.master_port(), env.adaptdl_sched_version(), env.from_ray()) == (
        "0.0.0.0", 0, None, False,
    )  # fmt: skip
    for name, value in {"REPLICA_RANK": 3, "NUM_REPLICAS": 8, "MASTER_PORT": 47000, "NUM_RESTARTS": 2}.items():
        monkeypatch.setenv(f"ADAPTDL_{name}", str(value))
    monkeypatch.setenv("ADAPTDL_JOB_ID", "ns/name")
    monkeypatch.setenv("ADAPTDL_TUNE_TRIAL_SCHED", "true")
    assert (env.replica_rank(), env.num_replicas(), env.master_port(), env.num_restarts()) == (3, 8, 47000, 2)
    assert env.num_nodes() == 1, "eight replicas are not eight machines"
    assert (env.job_id(), env.from_ray()) == ("ns/name", True)
    monkeypatch.setenv("ADAPTDL_NUM_REPLICAS", "many")
    with pytest.raises(ConfigError, match="ADAPTDL_NUM_REPLICAS"):
        env.num_replicas()


def test_addresses_are_understood_with_ipv6_and_nonsense_is_not() -> None:
    assert address_of("tcp://10.0.0.1:47000") == ("10.0.0.1", 47000)
    assert address_of("tcp://[::1]:47000") == ("::1", 47000)
    with pytest.raises(ConfigError, match="init_method"):
        address_of("file:///tmp/x")


def test_several_replicas_need_a_port_to_meet_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADAPTDL_NUM_REPLICAS", "2")
    with pytest.raises(ConfigError, match="port"):
        adaptdl.torch.init_process_group("gloo")
    with pytest.raises(ConfigError, match="rank"):
        adaptdl.torch.init_process_group("gloo", rank=2, world_size=2)


def test_importing_changes_no_signal_and_no_logging() -> None:
    code = (
        "import signal, logging\n"
        "before = [signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGINT)]\n"
        "import swell.compat.adaptdl as adaptdl\n"
        "adaptdl.torch, adaptdl.goodput, adaptdl.AdaptDLTorchTrainer\n"
        "assert before == [signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGINT)]\n"
        "assert not logging.getLogger().handlers\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_unknown_names_are_refused() -> None:
    missing: Any = "torchx"
    with pytest.raises(AttributeError, match="torchx"):
        getattr(adaptdl, missing)


def meet(port: int) -> tuple[Any, ...]:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        os.environ[f"ADAPTDL_TEST_{name}"] = os.environ.pop(name)
    os.environ["ADAPTDL_REPLICA_RANK"] = os.environ["ADAPTDL_TEST_RANK"]
    os.environ["ADAPTDL_NUM_REPLICAS"] = "2"
    os.environ["ADAPTDL_MASTER_PORT"] = str(port)
    adaptdl.torch.init_process_group("gloo")
    mine = {"rank": adaptdl.env.replica_rank(), "tensor": torch.full((2,), adaptdl.env.replica_rank() + 1.0)}
    joined = adaptdl.collective.allreduce([mine])
    largest = adaptdl.collective.allreduce(adaptdl.env.replica_rank(), max)
    first = adaptdl.collective.broadcast(mine)
    adaptdl.close()
    return [each["rank"] for each in joined], [each["tensor"].tolist() for each in joined], largest, first["rank"]


@pytest.mark.distributed
def test_replicas_meet_by_adaptdls_own_variables_and_exchange_plain_values() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert run_processes(2, meet, port) == [([0, 1], [[1.0, 1.0], [2.0, 2.0]], 1, 0)] * 2
