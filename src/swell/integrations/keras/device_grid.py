"""Where a Keras program computes a step: processes with a share each, and the devices of each process."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceGrid:
    """Processes that take a share of every step, this one's rank, and the devices that compute a pass together."""

    processes: int = 1
    rank: int = 0
    devices: int = 1  # of one process

    @property
    def total(self) -> int:
        """All devices: what a policy counts as replicas."""
        return self.processes * self.devices
