"""The world of replicas that a process trains in: one process, a launcher's fixed group, or an elastic run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import torch
import torch.distributed as dist

from swell.core.protocols import Collective
from swell.errors import ConfigError, WorldError
from swell.runtime.at_exit import AtExit
from swell.runtime.collective import Alone, TorchCollective
from swell.runtime.environment import Environment, read_environment
from swell.runtime.process_groups import (
    DEFAULT_TIMEOUT_S,
    choose_backend,
    choose_device,
    drop_control_group,
    drop_default_group,
    join_default_group,
    leave_default_group,
    wrap_default_group,
)
from swell.supervisor.notice import Notice


class World(Protocol):
    """Which replicas there are now, and how that changes."""

    @property
    def collective(self) -> Collective:
        """The collective of the present members; ``reform`` replaces it."""
        ...

    @property
    def device(self) -> torch.device: ...

    @property
    def nodes(self) -> int:
        """Number of machines of the members."""
        ...

    @property
    def generation(self) -> int:
        """Number of this world; rises whenever another is formed. 0 if none was: alone, static, or not yet joined."""
        ...

    @property
    def elastic(self) -> bool:
        """Whether ``reform`` can bring another world."""
        ...

    @property
    def joined(self) -> bool:
        """Whether this worker is in a group. A worker builds its model before it joins one."""
        ...

    @property
    def interim(self) -> bool:
        """Whether this world only completes what was begun together: form another before the next step."""
        ...

    def pending(self) -> bool:
        """Whether another generation was announced. Local and cheap, never blocks. Members may see it at different
        times, so they must agree (vote) before they act on it.
        """
        ...

    def reform(self) -> Collective:
        """Leave the present group, whole or broken, and join the newest generation; blocks until it is formed.

        Raises ``Dismissed`` (a ``SystemExit``) if there is no place for this worker any more, and ``WorldError`` in a
        world that cannot change.
        """
        ...

    def leave(self, source: str) -> bool:
        """Pass on a notice that reached this worker alone.

        True if a supervisor makes the others go on (``pending``, ``reform``) or stop too (``notice``); False if the
        caller must end the whole run.
        """
        ...

    def allow(self, sizes: Iterable[int], *, why: str) -> None:
        """Report the numbers of workers the job can be laid out on, and in ``why`` the bounds behind them."""
        ...

    def notice(self) -> Notice | None:
        """The notice for the whole run to stop, if any. Local and cheap; members may see it at different times."""
        ...

    def mark(self, doing: str) -> None:
        """A sign of progress, and what this worker does next (``swell.supervisor.stall.DOING``). Local and cheap."""
        ...

    def trouble(self, name: str, text: str) -> None:
        """Tell the owner of the run what is wrong, though training goes on; an empty text when it is right again."""
        ...

    def close(self, *, alone: bool = False) -> None:
        """Leave for good; may be called twice. ``alone`` says that the others still train."""
        ...


class StaticWorld:
    """A world that does not change until the process ends."""

    elastic = False
    interim = False
    joined = True
    generation = 0

    def __init__(self, collective: Collective, *, device: torch.device, nodes: int = 1, owns_group: bool) -> None:
        self.collective = collective
        self.device = device
        self.nodes = nodes
        self._owns_group = owns_group
        if isinstance(collective, TorchCollective):
            self._end = AtExit(self._leave_at_exit)

    def pending(self) -> bool:
        """Never: nobody can announce another world."""
        return False

    def reform(self) -> Collective:
        """Always fails: the processes of this world are fixed."""
        raise WorldError(
            f"this world has {self.collective.size} fixed process(es); expected an elastic one. Start the script with "
            f"`swell run` to keep training when workers come and go, or restart it to resume from its checkpoint."
        )

    def leave(self, source: str) -> bool:
        """False: the others cannot go on without this worker."""
        return False

    def allow(self, sizes: Iterable[int], *, why: str) -> None:
        """Nothing to do: the size of this world is fixed."""

    def notice(self) -> Notice | None:
        """None: this world has no supervisor."""
        return None

    def mark(self, doing: str) -> None:
        """Nothing to do: nobody watches."""

    def trouble(self, name: str, text: str) -> None:
        """Nothing to do: the run's own log tells it."""

    def close(self, *, alone: bool = False) -> None:
        """Destroy the process group if this world made it."""
        if self._owns_group and isinstance(self.collective, TorchCollective):
            self._owns_group = False
            self._end.cancel()
            leave_default_group(self.collective, alone=alone)

    def _leave_at_exit(self) -> None:
        """The script has ended without closing its job."""
        assert isinstance(self.collective, TorchCollective)
        if self._owns_group:
            drop_default_group(self.collective)
        else:
            drop_control_group(self.collective)


def open_world(
    device: torch.device | str = "auto",
    *,
    backend: str | None = None,
    environment: Environment | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> World:
    """The world this process belongs to.

    Without a launcher it is one process. Under torchrun it is the launcher's group, made here unless the script made it
    already, with gloo on CPU and NCCL on CUDA. Under ``swell run`` it is the supervisor's elastic world.
    ``environment`` is read from this process's variables unless given.

    >>> open_world("cpu", environment=Environment()).collective.size
    1
    """
    if timeout_s <= 0:
        raise ConfigError(f"timeout_s is {timeout_s}; expected seconds above 0.")
    environment = read_environment() if environment is None else environment
    if environment.supervised:
        from swell.runtime.elastic_world import open_elastic_world  # with all that links it to a supervisor

        return open_elastic_world(environment, device, backend=backend, timeout_s=timeout_s)
    if dist.is_available() and dist.is_initialized():
        return _adopt(environment, device, backend, timeout_s)
    if not environment.launched:
        return StaticWorld(Alone(), device=choose_device(device, local_rank=0), owns_group=False)
    own_device = choose_device(device, local_rank=environment.local_rank or 0, backend=backend)
    collective = join_default_group(backend=choose_backend(own_device, backend), device=own_device, timeout_s=timeout_s)
    collective.prepare_sums()
    return StaticWorld(collective, device=own_device, nodes=environment.nodes, owns_group=True)


def _adopt(environment: Environment, device: torch.device | str, backend: str | None, timeout_s: float) -> StaticWorld:
    """The group that the script made itself and will destroy itself."""
    local_rank = environment.local_rank if environment.local_rank is not None else dist.get_rank()
    own_device = choose_device(device, local_rank=local_rank, backend=backend or dist.get_backend())
    collective = wrap_default_group(own_device, timeout_s=timeout_s)
    collective.prepare_sums()
    return StaticWorld(collective, device=own_device, nodes=environment.nodes, owns_group=False)
