"""How long the run is: a number of epochs, or base steps of progress."""

from __future__ import annotations

from dataclasses import dataclass

_ROUNDING = 1e-9  # progress is a sum of many gains


@dataclass(slots=True)
class Horizon:
    """The end of the run, as the loop gave it; nothing is known before the loop begins."""

    epochs: float | None = None
    target: float | None = None  # base steps of progress at which training stops

    def reached(self, progress: float) -> bool:
        """Whether the target is reached; False without one.

        >>> Horizon(target=10.0).reached(10.0), Horizon(epochs=3).reached(1e9)
        (True, False)
        """
        return self.target is not None and progress >= self.target * (1 - _ROUNDING)

    def total_samples(self, *, base_batch: int, epoch_size: int | None) -> int | None:
        """Samples of the whole run at the base batch; None where the loop does not say.

        >>> Horizon(epochs=3).total_samples(base_batch=8, epoch_size=100)
        300
        """
        if self.epochs is not None and epoch_size is not None:
            return int(self.epochs * epoch_size)
        return None if self.target is None else int(self.target * base_batch)
