"""Real worker processes for tests: each runs one function in a gloo world of its own, quickly and without leaks."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import pickle
import time
import traceback
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Died:
    """Stands in for the result of a worker that was allowed to die and did."""

    exitcode: int | None  # negative: killed by that signal


class WorkerTraceback(Exception):
    """The worker's own traceback, shown as the cause of the exception raised in the test."""

    def __str__(self) -> str:
        return "\n" + str(self.args[0])


def run_workers(
    n: int,
    function: Callable[..., Any],
    *args: Any,
    timeout_s: float = 60.0,
    environ: Mapping[str, str] | None = None,
    may_die: Collection[int] = (),
) -> list[Any]:
    """Each rank's result of ``function(collective, *args)``, run in ``n`` processes joined by gloo, in rank order.

    ``function`` and ``args`` must be picklable, so the function is defined at the top of its module. The default
    process group is there, and RANK, WORLD_SIZE and so on are set as torchrun sets them. A worker's exception is raised
    here, with its traceback as cause; a worker that dies without a word fails the test, unless its rank is in
    ``may_die``.
    """
    return run_processes(n, _in_a_group, function, *args, timeout_s=timeout_s, environ=environ, may_die=may_die)


def run_processes(
    n: int,
    function: Callable[..., Any],
    *args: Any,
    timeout_s: float = 60.0,
    environ: Mapping[str, str] | None = None,
    may_die: Collection[int] = (),
) -> list[Any]:
    """Each rank's result of ``function(*args)`` in ``n`` processes with torchrun's environment and no group yet."""
    from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

    context = _context()
    # Hosted here, so that the port is free for certain and no worker's death takes the store with it.
    store = TCPStore(LOOPBACK, 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=timeout_s))
    call = pickle.dumps((function, args))  # plain pickle: torch's own would share memory that dies with its process
    workers = []
    try:
        for rank in range(n):
            variables = {**_torchrun(rank, n, store.port), **(environ or {})}
            near, far = context.Pipe(duplex=False)
            process = context.Process(target=_work, args=(far, variables, call), daemon=True)
            process.start()
            far.close()
            workers.append((process, near))
        return _collect(workers, deadline=time.monotonic() + timeout_s, timeout_s=timeout_s, may_die=may_die)
    finally:
        for process, near in workers:
            if process.is_alive():
                process.kill()
            process.join()
            near.close()


def _context() -> Any:
    """Workers are forked from a server that has torch imported already: 0.1 s each and no import."""
    context = multiprocessing.get_context("forkserver")
    # torch imports _dynamo with the first optimizer: seconds of each worker, or once here.
    more = [name for name in os.environ.get("TEST_PRELOAD", "").split(",") if name]  # of make test-trainers
    context.set_forkserver_preload(["torch", "torch.distributed", "torch._dynamo", "swell.job", *more])
    return context


def _torchrun(rank: int, n: int, port: int) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(n),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(n),
        "GROUP_WORLD_SIZE": "1",
        "MASTER_ADDR": LOOPBACK,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RUN_ID": "test",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",  # more workers than a machine may have of them
    }


def _work(pipe: Any, variables: dict[str, str], call: bytes) -> None:
    os.environ.update(variables)
    try:
        import torch

        torch.set_num_threads(1)
        function, args = pickle.loads(call)
        answer = pickle.dumps(("result", function(*args)))
    except BaseException as error:
        text = traceback.format_exc()
        try:
            answer = pickle.dumps(("error", error, text))
            pickle.loads(answer)
        except Exception:
            answer = pickle.dumps(("error", RuntimeError(f"{type(error).__name__}: {error}"), text))
    pipe.send_bytes(answer)
    pipe.close()


def _in_a_group(function: Callable[..., Any], *args: Any) -> Any:
    from swell.runtime.world import open_world

    world = open_world("cpu")
    result = function(world.collective, *args)
    world.close()
    return result


def _collect(workers: list[Any], *, deadline: float, timeout_s: float, may_die: Collection[int]) -> list[Any]:
    answers: dict[int, Any] = {}
    waiting: dict[Any, int] = {near: rank for rank, (_, near) in enumerate(workers)}
    errors: list[tuple[int, BaseException, str]] = []
    while waiting:
        ready = multiprocessing.connection.wait(list(waiting), timeout=max(0.0, deadline - time.monotonic()))
        for near in (connection for connection in list(waiting) if connection in ready):
            rank = waiting.pop(near)
            try:
                kind, *rest = pickle.loads(near.recv_bytes())
            except EOFError:
                process = workers[rank][0]
                process.join(timeout=5)
                if rank in may_die:
                    answers[rank] = Died(process.exitcode)
                else:
                    gone = RuntimeError(f"worker {rank} died without a word, exit code {process.exitcode}")
                    errors.append((rank, gone, ""))
                continue
            if kind == "result":
                answers[rank] = rest[0]
            else:
                errors.append((rank, *rest))
                deadline = min(deadline, time.monotonic() + 1.0)  # a moment to hear who failed first
        if errors and (not ready or not all(_is_echo(error) for _, error, _ in errors)):
            break
        if not ready:
            late = sorted(waiting.values())
            raise TimeoutError(f"workers {late} of {len(workers)} gave no answer within {timeout_s:g} s")
    if errors:
        rank, error, text = min(errors, key=lambda item: _is_echo(item[1]))
        raise error from WorkerTraceback(f"in worker {rank} of {len(workers)}:\n{text}")
    return [answers[rank] for rank in range(len(workers))]


def _is_echo(error: BaseException) -> bool:
    """Whether the error only says that somebody else failed."""
    from swell.errors import WorldError

    return isinstance(error, WorldError)
