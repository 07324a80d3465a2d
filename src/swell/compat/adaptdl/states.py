"""Which states are alive and which wait in a checkpoint for their owner to be created again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from swell.errors import ConfigError

if TYPE_CHECKING:
    from swell.compat.adaptdl.checkpoint import State


class States:
    """States by name, in the order they were created."""

    def __init__(self) -> None:
        self._live: dict[str, State] = {}
        self._saved: dict[str, Any] = {}

    def add(self, state: State) -> None:
        """Take a name; ``ConfigError`` where it is taken."""
        if state.name in self._live:
            raise ConfigError(f"there is a state named {state.name!r} already. Give each state a name of its own.")
        self._live[state.name] = state

    def load(self, state: State) -> bool:
        """Give a state what the checkpoint holds for it; False where that is nothing."""
        if state.name not in self._saved:
            return False
        state._restore(self._saved[state.name])
        return True

    def sync(self) -> None:
        """Let every state come together with its kin on the other replicas."""
        for state in list(self._live.values()):
            state.sync()

    def capture(self) -> dict[str, Any]:
        """Everything alive, and what waits for an owner that was not created yet."""
        return {**self._saved, **{name: state._capture() for name, state in self._live.items()}}

    def keep(self, saved: dict[str, Any]) -> None:
        """Hold what a checkpoint has, for owners still to come."""
        self._saved = dict(saved)

    def restore(self, saved: dict[str, Any]) -> None:
        """Bring everything alive to what another replica has."""
        self.keep(saved)
        for state in list(self._live.values()):
            self.load(state)

    def lives(self, prefix: str) -> bool:
        """Whether there are states whose names begin so."""
        return any(name.startswith(prefix) for name in self._live)

    def retire(self, prefix: str) -> None:
        """Put states whose names begin so aside, as a restart would: their owners will be created again."""
        for name in [name for name in self._live if name.startswith(prefix)]:
            self._saved[name] = self._live.pop(name)._capture()

    def forget(self, prefix: str) -> None:
        """Let go of states whose names begin so; without this, checkpoints would grow with every epoch."""
        for held in (self._live, self._saved):
            for name in [name for name in held if name.startswith(prefix)]:
                del held[name]
