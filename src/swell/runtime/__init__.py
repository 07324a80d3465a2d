"""Processes, devices and process groups: the only part that reads the environment or speaks to other workers.

Names are found when they are first used, so that the supervisor and the command line start without importing torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from swell.runtime.collective import Alone, Pending, TorchCollective
    from swell.runtime.environment import Environment, read_environment
    from swell.runtime.failures import is_peer_failure, lost_peers_as_world_errors
    from swell.runtime.link import Dismissed
    from swell.runtime.notice import EXIT_RESUME, Notice, Notices
    from swell.runtime.world import StaticWorld, World, open_world

_HOMES = {
    "Alone": "collective",
    "Pending": "collective",
    "TorchCollective": "collective",
    "Environment": "environment",
    "read_environment": "environment",
    "is_peer_failure": "failures",
    "lost_peers_as_world_errors": "failures",
    "Dismissed": "link",
    "EXIT_RESUME": "notice",
    "Notice": "notice",
    "Notices": "notice",
    "StaticWorld": "world",
    "World": "world",
    "open_world": "world",
}

__all__ = [
    "EXIT_RESUME",
    "Alone",
    "Dismissed",
    "Environment",
    "Notice",
    "Notices",
    "Pending",
    "StaticWorld",
    "TorchCollective",
    "World",
    "is_peer_failure",
    "lost_peers_as_world_errors",
    "open_world",
    "read_environment",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
