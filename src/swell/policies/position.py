"""Where a run stands, in the unit a schedule counts in."""

from __future__ import annotations

from typing import Literal

from swell.core.types import Observation
from swell.errors import ConfigError

Unit = Literal["samples", "epochs", "fraction"]
UNITS = ("samples", "epochs", "fraction")


def position(seen: Observation, unit: Unit, *, whole_epochs: bool = False) -> float:
    """How far the run has come: samples committed, epochs (parts of one included), or a fraction of the run.

    ``whole_epochs`` says that only whole epochs matter, so that an epoch of unknown length will do. A unit that needs a
    length nobody knows is a ``ConfigError``: a guess would change the run.
    """
    if unit == "samples":
        return float(seen.samples)
    if unit == "epochs":
        if whole_epochs:
            return float(seen.epoch)
        if seen.epoch_size is None:
            raise ConfigError(
                "unit='epochs' with parts of an epoch needs to know how long an epoch is, and this data set has no "
                "length. Use unit='samples', or a Schedule with whole epochs only."
            )
        return seen.epoch + min(1.0, seen.epoch_samples / max(1, seen.epoch_size))
    if seen.done is None:
        raise ConfigError(
            "unit='fraction' needs to know how long the run is, and this loop does not: its data set has no length. "
            "Use unit='samples' or unit='epochs', or loop over job.until(steps=n)."
        )
    return seen.done
