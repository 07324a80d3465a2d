"""The world of replicas a process trains in: one process, a launcher's fixed group, or an elastic run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

import torch
import torch.distributed as dist

from swell.core.protocols import Collective
from swell.errors import ConfigError, WorldError
from swell.runtime.collective import Alone, TorchCollective
from swell.runtime.elastic_world import open_elastic_world
from swell.runtime.environment import Environment, read_environment
from swell.runtime.process_groups import (
    DEFAULT_TIMEOUT_S,
    choose_backend,
    choose_device,
    join_default_group,
    leave_default_group,
    wrap_default_group,
)
from swell.supervisor.notice import Notice


class World(Protocol):
    """Which replicas there are now, and how that changes."""

    @property
    def collective(self) -> Collective:
        """What the present members speak over; replaced by ``reform``."""
        ...

    @property
    def device(self) -> torch.device: ...

    @property
    def nodes(self) -> int:
        """Machines the members are spread over."""
        ...

    @property
    def generation(self) -> int:
        """Which world this is; rises whenever another is formed. 0 where none was: alone, static, not yet joined."""
        ...

    @property
    def elastic(self) -> bool:
        """Whether ``reform`` can bring another world."""
        ...

    @property
    def joined(self) -> bool:
        """Whether there is a group to speak over. A worker that has yet to join one builds its model first."""
        ...

    @property
    def interim(self) -> bool:
        """Whether this world is for finishing what was begun together: before the next step another must be formed."""
        ...

    def pending(self) -> bool:
        """Whether another generation was announced. Local and cheap, never blocks; members may see it at different
        times, so they must agree (vote) before they act on it.
        """
        ...

    def reform(self) -> Collective:
        """Leave the present group, whole or broken, and join the newest generation; blocks until it is formed.

        Raises ``Dismissed`` (a ``SystemExit``) where there is no place for this worker any more, and ``WorldError`` in
        a world that cannot change at all.
        """
        ...

    def leave(self, source: str) -> bool:
        """Pass on a notice that reached this worker alone.

        True where somebody sees to it that the others go on (``pending``, ``reform``) or stop too (``notice``); False
        where the caller must bring the whole run to its end.
        """
        ...

    def allow(self, sizes: Iterable[int], *, why: str) -> None:
        """Say which numbers of workers the job can be laid out on, and by which of its bounds."""
        ...

    def notice(self) -> Notice | None:
        """Whether somebody asked the whole run to stop. Local and cheap; members may hear of it at different times."""
        ...

    def close(self) -> None:
        """Leave for good; may be called twice."""
        ...


class StaticWorld:
    """A world that stays as it is until the process ends."""

    elastic = False
    interim = False
    joined = True
    generation = 0

    def __init__(self, collective: Collective, *, device: torch.device, nodes: int = 1, owns_group: bool) -> None:
        self.collective = collective
        self.device = device
        self.nodes = nodes
        self._owns_group = owns_group

    def pending(self) -> bool:
        """Never: nobody can announce another world."""
        return False

    def reform(self) -> Collective:
        """Always fails: the processes of this world are fixed."""
        raise WorldError(
            f"this world of {self.collective.size} process(es) cannot be formed anew. Start the script with "
            f"`swell run` to keep training when workers come and go, or restart it to resume from its checkpoint."
        )

    def leave(self, source: str) -> bool:
        """False: nobody can go on without this worker."""
        return False

    def allow(self, sizes: Iterable[int], *, why: str) -> None:
        """Nobody to tell: the size of this world is what it is."""

    def notice(self) -> Notice | None:
        """None: no supervisor speaks to this world."""
        return None

    def close(self) -> None:
        """Destroy the process group if this world made it."""
        if self._owns_group and isinstance(self.collective, TorchCollective):
            self._owns_group = False
            leave_default_group(self.collective)


def open_world(
    device: torch.device | str = "auto",
    *,
    backend: str | None = None,
    environ: Mapping[str, str] | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> World:
    """The world this process belongs to.

    One process where no launcher spoke; the launcher's group under torchrun (made here unless the script made it
    already, with gloo on CPU and NCCL on CUDA); the supervisor's elastic world under ``swell run``.

    >>> open_world("cpu", environ={}).collective.size
    1
    """
    if timeout_s <= 0:
        raise ConfigError(f"timeout_s is {timeout_s}, expected seconds above 0.")
    said = read_environment(environ)
    if said.supervised:
        return open_elastic_world(said, device, backend=backend, timeout_s=timeout_s)
    if dist.is_available() and dist.is_initialized():
        return _adopt(said, device, backend, timeout_s)
    if not said.launched:
        return StaticWorld(Alone(), device=choose_device(device, local_rank=0), owns_group=False)
    own = choose_device(device, local_rank=said.local_rank or 0, backend=backend)
    collective = join_default_group(backend=choose_backend(own, backend), device=own, timeout_s=timeout_s)
    return StaticWorld(collective, device=own, nodes=said.nodes, owns_group=True)


def _adopt(said: Environment, device: torch.device | str, backend: str | None, timeout_s: float) -> StaticWorld:
    """The group the script made itself; it also ends it."""
    local_rank = said.local_rank if said.local_rank is not None else dist.get_rank()
    own = choose_device(device, local_rank=local_rank, backend=backend or dist.get_backend())
    return StaticWorld(wrap_default_group(own, timeout_s=timeout_s), device=own, nodes=said.nodes, owns_group=False)
