"""How far a run is, in the unit of a schedule."""

from __future__ import annotations

from typing import Literal

from swell.core.types import Observation
from swell.errors import ConfigError

Unit = Literal["samples", "epochs", "fraction"]
UNITS = ("samples", "epochs", "fraction")


def position(seen: Observation, unit: Unit, *, whole_epochs: bool = False) -> float:
    """How far the run is: samples committed, epochs (parts of one included), or a fraction of the run.

    With ``whole_epochs`` only whole epochs count, so an epoch may have an unknown length. Otherwise a unit that needs
    an unknown length is a ``ConfigError``, because a guess would change the run.
    """
    if unit == "samples":
        return float(seen.samples)
    if unit == "epochs":
        if whole_epochs:
            return float(seen.epoch)
        if seen.epoch_size is None:
            raise ConfigError(
                "unit is 'epochs' and the data set has no length; expected a length, for parts of an epoch. Use "
                "unit='samples', or a Schedule with whole epochs only."
            )
        return seen.epoch + min(1.0, seen.epoch_samples / max(1, seen.epoch_size))
    if seen.done is None:
        raise ConfigError(
            "unit is 'fraction' and the data set has no length; expected a run of known length. Use unit='samples' or "
            "unit='epochs', or loop over job.until(steps=n)."
        )
    return seen.done
