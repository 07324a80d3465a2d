"""Processes, devices and process groups: the only part that reads the environment or speaks to other workers."""

from swell.runtime.collective import Alone, Pending, TorchCollective
from swell.runtime.environment import Environment, read_environment
from swell.runtime.failures import is_peer_failure, lost_peers_as_world_errors
from swell.runtime.notice import Notice
from swell.runtime.world import StaticWorld, World, open_world

__all__ = [
    "Alone",
    "Environment",
    "Notice",
    "Pending",
    "StaticWorld",
    "TorchCollective",
    "World",
    "is_peer_failure",
    "lost_peers_as_world_errors",
    "open_world",
    "read_environment",
]
