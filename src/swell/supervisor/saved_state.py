"""A saved state of a run, as machines tell one another of it, and where such states are kept."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedState:
    """A complete checkpoint; two with the same digest have the same content, wherever they are."""

    name: str  # of its folder
    number: int  # grows with every save of the run
    digest: str  # the SHA-256 of its manifest, which has those of its files
    run_id: str
    named: bool = False  # whether it was saved under a name, and is kept however old it is

    def to_message(self) -> dict[str, Any]:
        """As it travels."""
        return asdict(self)

    @classmethod
    def from_message(cls, message: Any) -> SavedState:
        """As ``to_message`` wrote it; ``TypeError`` or ``ValueError`` for anything else."""
        state = cls(**message)
        texts = (state.name, state.digest, state.run_id)
        if not all(isinstance(text, str) for text in texts) or type(state.number) is not int:
            raise ValueError(f"{message!r} is no saved state")
        return state


class Readable(Protocol):
    """As much of a file as is read of one that comes from elsewhere."""

    def read(self, size: int = ..., /) -> bytes:
        """Up to that many bytes; none at the end."""
        ...


OpenFile = Callable[[str, int], AbstractContextManager[Readable]]  # a file of a state, by path and length


class StateFolder(Protocol):
    """The states that one machine has on its disk."""

    def states(self) -> list[SavedState]:
        """All that are complete, oldest first."""
        ...

    def manifest(self, state: SavedState) -> bytes:
        """The manifest of a state; ``OSError`` if it is gone."""
        ...

    def files(self, state: SavedState) -> Sequence[tuple[Path, int]]:
        """Its other files, in the manifest's order, and their lengths."""
        ...

    def receive(self, state: SavedState, manifest: bytes, open_file: OpenFile) -> None:
        """Take a state from elsewhere, completely or not at all.

        Every byte is compared with the checksums; raises ``CheckpointError`` where one differs.
        """
        ...

    def remove(self, names: Collection[str]) -> None:
        """Delete states that are not needed any more."""
        ...

    def set_aside(self, names: Collection[str]) -> Path | None:
        """Move states out of the way and delete nothing; where they are now."""
        ...
