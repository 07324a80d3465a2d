"""One generation of an elastic world: who belongs to it, in which order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """An announced membership. It never changes: later changes make the next generation."""

    number: int  # rises by 1 with each announcement
    members: tuple[int, ...]  # names of workers in rank order
    dismissed: tuple[int, ...] = ()  # workers that must leave; all others that are no members wait for the next
    alive: tuple[int, ...] = ()  # every worker that was alive at the announcement, member or not
    rendezvous: str = ""  # path of the folder in which its members meet
    interim: bool = False  # only to complete what was begun together: this number of members may take no step

    def to_message(self) -> dict[str, Any]:
        """The message to each worker."""
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
        """The generation in a message."""
        return cls(
            number=message["number"],
            members=tuple(message["members"]),
            dismissed=tuple(message["dismissed"]),
            alive=tuple(message["alive"]),
            rendezvous=message["rendezvous"],
            interim=message["interim"],
        )
