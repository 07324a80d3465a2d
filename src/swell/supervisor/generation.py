"""One generation of an elastic world: who belongs to it, in which order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """An announced membership. Immutable: whatever changes afterwards makes the next generation."""

    number: int  # rises by 1 with every announcement
    members: tuple[int, ...]  # names of workers in rank order
    dismissed: tuple[int, ...] = ()  # workers that are to leave the world; everyone else not named waits for the next
    alive: tuple[int, ...] = ()  # every worker that lived when it was announced, member or not
    rendezvous: str = ""  # the file its members meet in
    interim: bool = False  # whether it is for finishing what was begun together; for a step its members are too few

    def to_message(self) -> dict[str, Any]:
        """What is sent to each worker."""
        return {
            "say": "generation",
            "number": self.number,
            "members": list(self.members),
            "dismissed": list(self.dismissed),
            "alive": list(self.alive),
            "rendezvous": self.rendezvous,
            "interim": self.interim,
        }

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> Generation:
        """The generation a message was made from."""
        return cls(
            number=message["number"],
            members=tuple(message["members"]),
            dismissed=tuple(message["dismissed"]),
            alive=tuple(message["alive"]),
            rendezvous=message["rendezvous"],
            interim=message["interim"],
        )
