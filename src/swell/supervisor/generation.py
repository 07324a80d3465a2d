"""One generation of an elastic world: who belongs to it in which order, and what each worker is told of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """An announced membership. It never changes: later changes make the next generation."""

    number: int  # rises by 1 with each announcement
    members: tuple[int, ...]  # names of workers in rank order
    dismissed: tuple[int, ...] = ()  # workers that must leave; all others that are no members wait for the next
    alive: tuple[int, ...] = ()  # every worker that was alive at the announcement, member or not
    broken: tuple[int, ...] = ()  # earlier generations that workers may still be in, and that lost a member
    nodes: int = 1  # machines that its members are on
    interim: bool = False  # only to complete what was begun together: this number of members may take no step

    def calls(self, workers: Iterable[int], *, meeting: str = "") -> Iterator[tuple[int, Call]]:
        """What each of these workers is told: its own part only, so that a message is as short for many as for few."""
        ranks = {member: rank for rank, member in enumerate(self.members)}
        dismissed = set(self.dismissed)
        for worker in workers:
            yield (
                worker,
                Call(
                    number=self.number,
                    rank=ranks.get(worker),
                    size=len(self.members),
                    dismissed=worker in dismissed,
                    broken=self.broken,
                    nodes=self.nodes,
                    interim=self.interim,
                    meeting=meeting,
                ),
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A generation as one worker hears of it."""

    number: int
    rank: int | None  # None where it is no member
    size: int
    dismissed: bool = False  # it must leave; otherwise one that is no member waits for the next generation
    broken: tuple[int, ...] = ()  # earlier generations that lost a member
    nodes: int = 1
    interim: bool = False
    meeting: str = ""  # a file of the supervisor's machine, where all members are on that machine

    def to_message(self) -> dict[str, Any]:
        """The message to the worker."""
        return {
            "say": "generation",
            "number": self.number,
            "rank": self.rank,
            "size": self.size,
            "dismissed": self.dismissed,
            "broken": list(self.broken),
            "nodes": self.nodes,
            "interim": self.interim,
            "meeting": self.meeting,
        }

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> Call:
        """The call in a message."""
        return cls(
            number=message["number"],
            rank=message["rank"],
            size=message["size"],
            dismissed=message["dismissed"],
            broken=tuple(message["broken"]),
            nodes=message["nodes"],
            interim=message["interim"],
            meeting=message["meeting"],
        )
