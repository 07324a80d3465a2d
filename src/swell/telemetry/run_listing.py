"""A run in one row: what a list of runs shows."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from swell.telemetry.run_document import finite
from swell.telemetry.run_folder import RunFolder


def listing(path: Path, *, below: Path) -> dict[str, Any]:
    """The row of the run in ``path``, named by its place below a folder."""
    run = RunFolder(path)
    run.poll()
    run.reader.close()
    return row_of(run, name=name_below(path, below))


def row_of(run: RunFolder, *, name: str) -> dict[str, Any]:
    """The row of a run that was read."""
    model, latest = run.model, run.model.latest
    return {
        "name": name,
        "path": str(run.path),
        "state": run.state(),
        "done": model.done,
        "left": None if model.left is None else str(model.left),
        "steps": 0 if latest is None else latest.step,
        "samples": 0 if latest is None else latest.samples,
        "workers": None if latest is None else latest.replicas,
        "batch": None if latest is None else latest.global_batch,
        "loss": None if latest is None or not math.isfinite(latest.loss or 0.0) else latest.loss,
        "metrics": finite(model.metrics),
        "last_time": model.last_time,
        "problem": run.reader.problem,
    }


def name_below(path: Path, folder: Path) -> str:
    """The run's path below a folder, or its own name if it is that folder."""
    try:
        relative = path.resolve().relative_to(folder.resolve())
    except ValueError:
        return path.name
    return str(relative) if relative.parts else path.resolve().name
