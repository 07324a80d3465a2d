"""What the membership of a run decides, for the supervisor to carry out."""

from __future__ import annotations

from dataclasses import dataclass

from swell.supervisor.generation import Generation
from swell.supervisor.notice import Notice


@dataclass(frozen=True, slots=True)
class Start:
    """Start a worker process under this name, in this slot of a machine."""

    member: int
    slot: int
    node: int = 0  # the machine's number


@dataclass(frozen=True, slots=True)
class Announce:
    """Send this generation to every worker."""

    generation: Generation


@dataclass(frozen=True, slots=True)
class Ask:
    """Give a worker notice."""

    member: int
    notice: Notice


@dataclass(frozen=True, slots=True)
class Release:
    """Tell a worker that waits to join that it is not needed any more."""

    member: int
    reason: str


@dataclass(frozen=True, slots=True)
class Kill:
    """End a worker at once."""

    member: int
    reason: str


@dataclass(frozen=True, slots=True)
class Log:
    """Tell the user."""

    text: str


@dataclass(frozen=True, slots=True)
class End:
    """The run is over and every worker is gone."""

    code: int


Action = Start | Announce | Ask | Release | Kill | Log | End
