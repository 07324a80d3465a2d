"""Which states are alive, and which wait in a checkpoint until their owner is created again."""

from __future__ import annotations

from typing import Any

from swell.compat.adaptdl.members import Kept
from swell.errors import ConfigError


class States:
    """States by name, in the order they were created."""

    def __init__(self) -> None:
        self._live: dict[str, Kept] = {}
        self._saved: dict[str, Any] = {}

    def add(self, state: Kept) -> None:
        """Take a name; ``ConfigError`` where it is taken."""
        if state.name in self._live:
            raise ConfigError(f"name is {state.name!r}; expected one that no other state has. Choose another name.")
        self._live[state.name] = state

    def load(self, name: str) -> bool:
        """Give a state what the checkpoint holds for it; False where that is nothing."""
        if name not in self._saved:
            return False
        self._live[name].restore(self._saved[name])
        return True

    def sync(self) -> None:
        """Bring the replicas' parts of every state together."""
        for state in list(self._live.values()):
            state.sync()

    def capture(self) -> dict[str, Any]:
        """Everything alive, and what waits for an owner that was not created yet."""
        return {**self._saved, **{name: state.capture() for name, state in self._live.items()}}

    def keep(self, saved: dict[str, Any]) -> None:
        """Hold what a checkpoint has, for owners that are still to come."""
        self._saved = dict(saved)

    def restore(self, saved: dict[str, Any]) -> None:
        """Bring everything alive to what another replica has."""
        self.keep(saved)
        for name in list(self._live):
            self.load(name)

    def lives(self, prefix: str) -> bool:
        """Whether there are states whose names begin with ``prefix``."""
        return any(name.startswith(prefix) for name in self._live)

    def retire(self, prefix: str) -> None:
        """Put states with that prefix aside, as a restart would: their owners will be created again."""
        for name in [name for name in self._live if name.startswith(prefix)]:
            self._saved[name] = self._live.pop(name).capture()

    def forget(self, prefix: str) -> None:
        """Drop states with that prefix; without this, checkpoints would grow with every epoch."""
        for states in (self._live, self._saved):
            for name in [name for name in states if name.startswith(prefix)]:
                del states[name]
