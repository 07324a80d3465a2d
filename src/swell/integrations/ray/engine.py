"""The engine ``ray``: Ray places the agents of a run, one for each worker that the run may have."""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray

from swell.errors import ConfigError, SwellError
from swell.integrations.ray import cluster
from swell.integrations.ray.agent_actor import AgentActor
from swell.supervisor.control import ask
from swell.supervisor.run_dir import RunDir
from swell.supervisor.secure_channel import read_run_key
from swell.supervisor.sizes import WorldSizes

_LOOK_S = 1.0
_FIRST_WORD_S, _NEXT_WORD_S = 15.0, 60.0  # when a lack of room is spoken of, and again


class RayEngine:
    """Agents of a run in actors of a Ray cluster, while the ``with`` block runs.

    There are as many actors as the run may have workers. Those without room are pending, which is the demand that
    Ray's autoscaler sees; Ray places them when there is room, and starts lost ones again.
    """

    def __init__(
        self, sizes: WorldSizes, *, options: str, run_dir: Path, wait_s: float, write: Callable[[str], None]
    ) -> None:
        if not wait_s > 0:
            raise ConfigError(f"--ray-wait is {wait_s:g}; expected seconds above 0, or inf.")
        given = _read_options(options)
        cluster.connect()
        if cluster.has_working_copy() and not run_dir.is_absolute():
            raise ConfigError(
                f"the run's folder is {str(run_dir)!r}, inside the temporary copy that Ray has made of your folder; "
                f"expected one on a disk that all nodes share. Give --run-dir with an absolute path."
            )
        self._sizes, self._run_dir, self._wait_s, self._write = sizes, run_dir, wait_s, write
        self._options = cluster.actor_options(given)
        self._served: dict[Any, Any] = {}  # what each actor's service will return: the actor
        self._over = threading.Event()
        self._watcher: threading.Thread | None = None
        self._failure = ""
        self._spoke_at = self._began_at = time.monotonic()
        self._enough = False  # whether there has been room for the smallest number of workers

    @property
    def host(self) -> str:
        """The address of this node, at which the run listens."""
        return cluster.own_address()

    def __enter__(self) -> RayEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._watcher is not None:
            self._watcher.join()
        cluster.disconnect()

    def start_agents(self, address: str) -> None:
        """The run listens at this address: start an agent for each worker that it may have."""
        token = read_run_key(RunDir(self._run_dir).token_file).hex()
        for _ in range(self._sizes.largest):
            self._start(address, token)
        self._write(f"[swell] asked Ray for {self._sizes.largest} actors, each with {self._resources}")
        self._began_at = self._spoke_at = time.monotonic()
        watch = threading.Thread(target=self._watch, args=(address, token), name="swell-ray", daemon=True)
        self._watcher = watch
        watch.start()

    def raise_failure(self) -> None:
        """``ConfigError`` if the engine itself has ended the run."""
        if self._failure:
            raise ConfigError(self._failure)

    def _start(self, address: str, token: str) -> None:
        actor = ray.remote(AgentActor).options(**self._options, max_restarts=-1, max_task_retries=-1).remote()
        self._served[actor.serve.remote(address, token)] = actor

    def _watch(self, address: str, token: str) -> None:
        """In a thread of its own: replace actors that have ended, and speak of a lack of room."""
        while not self._over.wait(_LOOK_S):
            try:
                if self._failure:
                    ask(self._run_dir, "stop")
                    return
                ended, _ = ray.wait(list(self._served), num_returns=len(self._served), timeout=0)
                for each in ended:
                    self._succeed(each, address, token)
                self._look_for_room()
            except SwellError:  # the run does not answer at the moment
                continue

    def _succeed(self, service: Any, address: str, token: str) -> None:
        """An agent has ended though the run goes on; one that refused, or could not begin, is given up."""
        actor = self._served.pop(service)
        try:
            status, words = ray.get(service)
        except ray.exceptions.RayError as error:
            status, words = 2, str(error)
        ray.kill(actor)
        if self._over.is_set():
            return
        if status != 2:
            self._start(address, token)
            return
        self._write(f"[swell] an agent gives up: {words}")
        if not self._served:
            self._failure = f"no agent can work for the run; expected one at least. The last one said: {words}"

    def _look_for_room(self) -> None:
        if self._enough or self._failure:
            return
        machines = ask(self._run_dir, "status")["machines"]
        there, needed = sum(machine["slots"] for machine in machines), self._sizes.smallest
        now = time.monotonic()
        if there >= needed:
            self._enough = True
        elif now - self._began_at > self._wait_s:
            self._failure = (
                f"the Ray cluster has had room for {there} workers within {self._wait_s:g} s; expected {needed} at "
                f"least. {self._advice()}"
            )
        elif now - self._spoke_at > (_FIRST_WORD_S if self._spoke_at == self._began_at else _NEXT_WORD_S):
            self._spoke_at = now
            self._write(
                f"[swell] the Ray cluster has room for {there} of the {needed} workers that the run needs at least; "
                f"waiting for more. {self._advice()}"
            )

    def _advice(self) -> str:
        most = cluster.capacity(self._options)
        return (
            f"With nothing else on them, its nodes could hold {most} workers of {self._resources}. Add nodes, free "
            f"some, give fewer --workers or smaller --ray-options."
        )

    @property
    def _resources(self) -> str:
        """What one worker takes, in words."""
        wanted = cluster.needs(self._options).items()
        return ", ".join(f"{name}={amount:g}" for name, amount in wanted) or "no resources"


def _read_options(text: str) -> dict[str, Any]:
    try:
        options = json.loads(text or "{}")
        if isinstance(options, dict):
            return options
    except ValueError:
        pass
    raise ConfigError(
        f"--ray-options is {text!r}; expected options of a Ray actor as JSON, for example "
        f'\'{{"num_cpus": 4, "num_gpus": 1}}\'.'
    )
