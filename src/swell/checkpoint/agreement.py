"""Actions that replicas take together: if one replica fails, all of them fail at the same place, with its reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from swell.checkpoint.disk import disk_error
from swell.core.protocols import Collective
from swell.errors import CheckpointError, DamagedCheckpointError


class Agreement:
    """Runs the steps of saving and loading that every replica takes part in; errors of a disk name ``root``."""

    def __init__(self, collective: Collective, root: Path) -> None:
        self.rank = collective.rank
        self.size = collective.size
        self._collective = collective
        self._root = root

    def on_first(self, action: Callable[[], str]) -> str:
        """Run the action on the first replica; its result, on every replica."""
        return self.on_each(lambda: action() if self.rank == 0 else "")[0]

    def on_each(self, action: Callable[[], Any]) -> list[Any]:
        """Run the action on each replica; all results (as JSON), in rank order, on every replica.

        A ``CheckpointError`` or ``OSError`` of one replica is a ``CheckpointError`` on all of them.
        """
        error: CheckpointError | None = None
        result: Any = None
        try:
            result = action()
        except CheckpointError as failure:
            error = failure
        except OSError as failure:
            error = disk_error(failure, doing="work on a checkpoint", folder=self._root)
            error.__cause__ = failure
        reply = {"result": result, "error": str(error) if error else None, "kind": type(error).__name__}
        replies = [json.loads(text) for text in self._collective.gather_text(json.dumps(reply))]
        if error is not None:
            raise error
        for rank, other in enumerate(replies):
            if other["error"] is not None:
                damaged = other["kind"] == DamagedCheckpointError.__name__
                raise (DamagedCheckpointError if damaged else CheckpointError)(f"replica {rank}: {other['error']}")
        return [other["result"] for other in replies]
