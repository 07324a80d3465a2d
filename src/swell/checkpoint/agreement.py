"""Work that replicas do together: what one of them cannot do fails on all, in the same place, with its reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from swell.checkpoint.disk import explained
from swell.core.protocols import Collective
from swell.errors import CheckpointError, DamagedCheckpointError


class Together:
    """Steps of saving and loading that every replica takes part in; ``root`` is named when a disk fails."""

    def __init__(self, collective: Collective, root: Path) -> None:
        self.rank = collective.rank
        self.size = collective.size
        self._collective = collective
        self._root = root

    def first_does(self, action: Callable[[], str]) -> str:
        """What the action gives on the first replica, on every one."""
        return self.each_does(lambda: action() if self.rank == 0 else "")[0]

    def each_does(self, action: Callable[[], Any]) -> list[Any]:
        """What the action gives on each replica (as JSON), in rank order, on every one.

        A ``CheckpointError`` or ``OSError`` of one replica is a ``CheckpointError`` on all of them.
        """
        error: CheckpointError | None = None
        answer: Any = None
        try:
            answer = action()
        except CheckpointError as failed:
            error = failed
        except OSError as failed:
            error = explained(failed, doing="work on a checkpoint", folder=self._root)
            error.__cause__ = failed
        said = {"answer": answer, "error": str(error) if error else None, "kind": type(error).__name__}
        heard = [json.loads(text) for text in self._collective.gather_text(json.dumps(said))]
        if error is not None:
            raise error
        for rank, theirs in enumerate(heard):
            if theirs["error"] is not None:
                damaged = theirs["kind"] == DamagedCheckpointError.__name__
                raise (DamagedCheckpointError if damaged else CheckpointError)(f"replica {rank}: {theirs['error']}")
        return [theirs["answer"] for theirs in heard]
