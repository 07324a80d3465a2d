"""A script ends without an abort, whether it closes its job or not: no thread of a process group is left at exit.

A gloo thread that frees a tensor while the interpreter shuts down ended the process with SIGABRT.
"""

from __future__ import annotations

import atexit
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import TensorDataset

import swell
import swell.compat.adaptdl as adaptdl
from swell.errors import WorldError
from swell.runtime.at_exit import AtExit
from tests.workers import run_processes

TASKS = Path("/proc/self/task")
pytestmark = [
    pytest.mark.distributed,
    pytest.mark.skipif(not TASKS.exists(), reason="threads are listed by Linux only"),
]


def group_threads() -> int:
    """Threads of process groups in this process."""
    return sum("gloo_runloop" in (task / "comm").read_text() for task in TASKS.iterdir())


def train() -> swell.Job:
    """A loop as a script has it, with a job that is not closed."""
    job = swell.Job(batch=8, progress=False, device="cpu")
    model = torch.nn.Linear(4, 1)
    wrapped, _ = job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loader = job.loader(TensorDataset(torch.ones(16, 4), torch.ones(16, 1)))
    for _ in job.epochs(1):
        for x, y in loader:
            job.backward((wrapped(x) - y).square().mean())
            job.step()
    return job


def train_with_adaptdl() -> Any:
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    adaptdl.torch.init_process_group("gloo")
    wrapped = adaptdl.torch.AdaptiveDataParallel(model, optimizer)
    loader = adaptdl.torch.AdaptiveDataLoader(TensorDataset(torch.ones(16, 4), torch.ones(16, 1)), batch_size=8)
    for _ in adaptdl.torch.remaining_epochs_until(1):
        for x, y in loader:
            (wrapped(x) - y).square().mean().backward()
            optimizer.step()
    return wrapped


def end_script(kind: str) -> tuple[int, int]:
    """Threads of groups at the end of a script, and after what Python does when it exits."""
    if kind == "own group":
        dist.init_process_group("gloo")
    kept = train_with_adaptdl() if kind == "adaptdl" else train()
    if kind == "error":
        sys.last_value = SystemError("on purpose")  # what Python sets when an error ends a script
    during = group_threads()
    atexit._run_exitfuncs()
    assert kept is not None  # a script's own variables still hold their objects at exit
    return during, group_threads()


@pytest.mark.parametrize("kind", ["job", "adaptdl", "own group"])
def test_a_script_that_does_not_close_its_job_leaves_no_thread_behind(kind: str) -> None:
    """A group that the script itself made is left to the script."""
    theirs = 2 if kind == "own group" else 0
    for during, after in run_processes(2, end_script, kind):
        assert during > after == theirs


def test_a_script_that_ended_with_an_error_waits_for_nobody_at_exit() -> None:
    for during, after in run_processes(2, end_script, "error"):
        assert after == during


def test_a_forked_process_does_nothing_at_exit_for_the_one_it_came_from(tmp_path: Path) -> None:
    done = tmp_path / "done"

    def end() -> None:
        with done.open("a") as file:
            file.write(f"{os.getpid()} ")

    first = AtExit(end)
    child = os.fork()
    if child == 0:
        first.run()
        os._exit(0)
    os.waitpid(child, 0)
    assert not done.exists()
    first.run()
    first.cancel()
    assert done.read_text() == f"{os.getpid()} "


def close_twice() -> tuple[int, str]:
    job = train()
    collective: Any = job.collective
    job.close()
    job.close()
    with pytest.raises(WorldError) as raised:
        collective.gather_numbers([1.0])
    return group_threads(), str(raised.value)


def test_a_closed_job_has_no_threads_and_says_so_when_it_is_used() -> None:
    for threads, message in run_processes(2, close_twice):
        assert threads == 0 and message.startswith("the process group was left; expected")
