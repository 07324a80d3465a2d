"""The one class that users hold, for ``Trainer(strategy=...)`` and for ``Fabric(strategy=...)``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from swell.integrations.lightning.fabric import FabricStrategy


class Strategy(FabricStrategy):
    """Trains with whatever workers there are: one global batch on any number of them, moved by a policy.

    ``batch`` chooses the global batch of every step, as in :class:`swell.Job`, whose other arguments are taken too
    (``base``, ``rule``, ``statistics``, ``save``, ``keep``, ``seed``, ``sinks`` …). ``micro``, what one worker sends
    through the model at once, is the training loader's ``batch_size`` unless given. ``schedule`` says what moves the
    scheduler that ``fabric.setup(..., scheduler=...)`` is given: ``"progress"`` for one that the loop steps with the
    optimizer, ``"epoch"``, or ``"manual"``.

        fabric = Fabric(strategy=swell.lightning.Strategy("runs/digits", batch=64))
    """

    def __init__(
        self, run_dir: str | Path | None = None, *, batch: Any, schedule: str = "progress", **options: Any
    ) -> None:
        self._prepare(run_dir, schedule, {"batch": batch, **options})
        self._prepare_fabric()
