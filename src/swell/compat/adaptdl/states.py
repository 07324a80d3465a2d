"""The states of a script: live ones, and saved ones that wait until the script creates their owners again."""

from __future__ import annotations

from typing import Any

from swell.compat.adaptdl.members import NamedState
from swell.errors import ConfigError


class States:
    """States by name, in the order they were created."""

    def __init__(self) -> None:
        self._live: dict[str, NamedState] = {}
        self._saved: dict[str, Any] = {}
        self.read = False  # whether a checkpoint was looked for

    def add(self, state: NamedState) -> None:
        """Add a live state; its name must be unique."""
        if state.name in self._live:
            raise ConfigError(f"name is {state.name!r}; expected one that no other state has. Choose another name.")
        self._live[state.name] = state

    def load(self, name: str) -> bool:
        """Restore a live state from its saved values; False if there are none."""
        if name not in self._saved:
            return False
        self._live[name].restore(self._saved[name])
        return True

    def sync(self) -> None:
        """Combine what the replicas hold of every state."""
        for state in list(self._live.values()):
            state.sync()

    def capture(self) -> dict[str, Any]:
        """The values of every live state, and saved ones whose owners were not created yet."""
        return {**self._saved, **{name: state.capture() for name, state in self._live.items()}}

    def keep(self, saved: dict[str, Any]) -> None:
        """Hold the values of a checkpoint until their owners are created."""
        self._saved, self.read = dict(saved), True

    def restore(self, saved: dict[str, Any]) -> None:
        """Restore every live state from the values of another replica."""
        self.keep(saved)
        for name in list(self._live):
            self.load(name)

    def has_live(self, prefix: str) -> bool:
        """Whether the name of a live state begins with ``prefix``."""
        return any(name.startswith(prefix) for name in self._live)

    def retire(self, prefix: str) -> None:
        """Turn live states with that prefix into saved ones, as a restart would: the script creates them again."""
        for name in [name for name in self._live if name.startswith(prefix)]:
            self._saved[name] = self._live.pop(name).capture()

    def forget(self, prefix: str) -> None:
        """Drop states with that prefix; otherwise checkpoints would grow with every epoch."""
        for states in (self._live, self._saved):
            for name in [name for name in states if name.startswith(prefix)]:
                del states[name]
