"""Open a session by arguments, environment or launcher, and close it."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from swell.checkpoint.transfer import share_state
from swell.compat.adaptdl.saved_states import checkpoint_folder, read_states
from swell.compat.adaptdl.session import Session, current_session, end_session
from swell.errors import ConfigError, LoopError
from swell.runtime.adaptdl_environment import read_adaptdl_environment
from swell.runtime.at_exit import AtExit
from swell.runtime.environment import read_environment
from swell.runtime.explicit_group import open_direct_world
from swell.runtime.world import World, open_world


def open_session(
    backend: str | None,
    *,
    address: str | None = None,
    port: int | None = None,
    rank: int | None = None,
    size: int | None = None,
) -> Session:
    """Join the world of this process: by arguments, ``swell run``, ADAPTDL_* variables or torchrun; else alone."""
    session = current_session()
    if session.opened:
        raise LoopError(
            "adaptdl.torch.init_process_group was called a second time; expected one call. Call it once, or "
            "adaptdl.close() before the second."
        )
    adaptdl, launcher = read_adaptdl_environment(), read_environment()
    explicit = rank is not None or size is not None or address is not None
    if not explicit and (launcher.supervised or (adaptdl.num_replicas is None and launcher.launched)):
        world = open_world(backend=backend)
    else:
        world = open_direct_world(
            backend=backend,
            rank=rank if rank is not None else adaptdl.replica_rank or 0,
            size=size if size is not None else adaptdl.num_replicas or 1,
            address=address or adaptdl.master_addr or "127.0.0.1",
            port=port or adaptdl.master_port or 0,
            nodes=adaptdl.num_nodes or launcher.nodes,
            local_rank=launcher.local_rank,
        )
    session.closers.append(AtExit(close).cancel)
    folder = checkpoint_folder()
    session.open(world, folder, None if folder is None else _shared_state(world, folder))
    return session


def _shared_state(world: World, folder: Path) -> dict[str, Any] | None:
    """The session's state in the newest complete checkpoint, from rank 0; a newcomer reads it by itself."""
    if not world.joined:
        return read_states(folder)
    collective = world.collective
    return share_state(read_states(folder) if collective.rank == 0 else None, collective=collective, source=0)


def close() -> None:
    """End the session; the process may open another one."""
    end_session()


def address_of(init_method: str) -> tuple[str, int | None]:
    """Host and port of ``tcp://host:port``, with an IPv6 host in brackets."""
    parts = urlsplit(init_method if "//" in init_method else f"tcp://{init_method}")
    if parts.scheme != "tcp" or not parts.hostname:
        raise ConfigError(
            f"init_method is {init_method!r}; expected tcp://host:port. Correct it, or leave it out to use "
            f"ADAPTDL_* or torchrun's variables."
        )
    return parts.hostname, parts.port
