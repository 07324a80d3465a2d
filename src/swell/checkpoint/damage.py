"""What to say where every checkpoint of a run is damaged."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from swell.errors import CheckpointError, DamagedCheckpointError


def damage_error(damage: Sequence[str], root: Path) -> CheckpointError | None:
    """Why a run must not begin again by itself: all the checkpoints it has are damaged; None if it has none."""
    if not damage:
        return None
    reasons = " ".join(reason.replace(" An older one may be complete.", "") for reason in damage)
    return DamagedCheckpointError(
        f"all {len(damage)} checkpoints in {root} are damaged; expected a complete one to resume from. {reasons} "
        f"Restore one, or begin again on purpose: swell.Job(fresh=True), SWELL_FRESH=1 in the environment or `swell "
        f"run --fresh` move them aside and start from the beginning."
    )
