"""FairScale's own smoothing of signal and noise, kept because its users' numbers depend on it."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from swell.core.types import Moments
from swell.errors import CheckpointError

LEAST_NOISE = 1e-6  # FairScale's floor for the variance of one step; the signal's is 0
NAMES = ("signal", "noise", "signal_sum", "noise_sum", "weight")
# FairScale's checkpoints: its "sqr" is the signal, its "var" the noise of a base batch.
THEIRS = {"signal": "grad_sqr_avg", "noise": "grad_var_avg"}


class Averages:
    """Signal and noise of each parameter group, averaged over steps as FairScale does.

    Its ``sqr`` is the signal, its ``var`` the noise with the base batch for a unit instead of a sample. One step's
    figures are clamped before they are averaged (``swell.core`` never does: a sum of clamped ones is biased).

    With ``debias`` an exponential average divided by its weight; otherwise the plain mean of the first
    ``1 / (1 - smoothing)`` steps and an exponential average from there on (Johnson et al. 2020, appendix B.3). Before
    the first step the signal is 1 and the noise 0, which makes every gain 1.
    """

    def __init__(self, num_groups: int, *, debias: bool) -> None:
        self.debias = debias
        self.count = 0
        self.signal = np.ones(num_groups)
        self.noise = np.zeros(num_groups)
        self.signal_sum = np.zeros(num_groups)
        self.noise_sum = np.zeros(num_groups)
        self.weight = np.zeros(num_groups)

    def updated(self, groups: Sequence[Moments], *, smoothing: float) -> Averages:
        """A copy with one more step in it."""
        new = copy.copy(self)  # arrays are replaced, never written to
        signal = np.array([max(moments.signal, 0.0) for moments in groups])
        noise = np.array([max(moments.noise, LEAST_NOISE) for moments in groups])
        keep, take = smoothing, 1.0 - smoothing
        new.count += 1
        if self.debias:
            new.weight = keep * self.weight + take
            new.signal_sum, new.noise_sum = keep * self.signal_sum + take * signal, keep * self.noise_sum + take * noise
            new.signal, new.noise = new.signal_sum / new.weight, new.noise_sum / new.weight
        elif new.count < 1 / take:
            new.signal_sum, new.noise_sum = self.signal_sum + signal, self.noise_sum + noise
            new.signal, new.noise = new.signal_sum / new.count, new.noise_sum / new.count
        else:
            new.signal, new.noise = keep * self.signal + take * signal, keep * self.noise + take * noise
        return new

    def moments(self, group: int | None = None) -> Moments:
        """Of one group, or summed over all."""
        if group is None:
            return Moments(signal=float(self.signal.sum()), noise=float(self.noise.sum()))
        return Moments(signal=float(self.signal[group]), noise=float(self.noise[group]))

    def rescale(self, factor: float) -> None:
        """Multiply the noise, as FairScale does on a change of scale; it has no reason in the mathematics."""
        self.noise, self.noise_sum = self.noise * factor, self.noise_sum * factor

    def add_group(self) -> None:
        """Make room for one more parameter group, which starts as the first ones did."""
        for name in NAMES:
            setattr(self, name, np.append(getattr(self, name), 1.0 if name == "signal" else 0.0))

    def figures(self) -> list[float]:
        """All numbers in a row."""
        return [float(self.count), *np.concatenate([getattr(self, name) for name in NAMES]).tolist()]

    def set_figures(self, figures: Sequence[float]) -> None:
        """Take over a row of numbers."""
        self.count = round(figures[0])
        for name, part in zip(NAMES, np.split(np.array(figures[1:]), len(NAMES)), strict=True):
            setattr(self, name, part)

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers, lists and truth values."""
        return {"debias": self.debias, "count": self.count, **{name: getattr(self, name).tolist() for name in NAMES}}

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any], *, num_groups: int) -> Averages:
        """What ``state_dict`` gave, or what FairScale's own checkpoints hold."""
        values = _translated(state) if "grad_sqr_avg" in state else state
        try:
            new = cls(num_groups, debias=bool(values["debias"]))
            new.count = int(values["count"])
            for name in NAMES:
                array = np.array(values[name], dtype=np.float64)
                if array.shape != (num_groups,):
                    raise CheckpointError(
                        f"the checkpoint has AdaScale's averages of {array.size} parameter groups, this optimizer has "
                        f"{num_groups}. Make the same parameter groups before loading."
                    )
                setattr(new, name, array)
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"not AdaScale's averages: {error!r}. Load what state_dict() of this class or of FairScale's gave."
            ) from error
        return new


def _translated(state: Mapping[str, Any]) -> dict[str, Any]:
    """FairScale's own names in ours."""
    debias = "grad_var_avg_count" not in state
    nothing = np.zeros(len(state["grad_sqr_avg"]))
    sums = "_biased" if debias else "_total"
    values: dict[str, Any] = {ours: state[theirs] for ours, theirs in THEIRS.items()}
    values |= {f"{ours}_sum": state.get(theirs + sums, nothing) for ours, theirs in THEIRS.items()}
    values["weight"] = state.get("grad_var_avg_unbias", nothing)
    values["count"] = int(np.asarray(state.get("grad_var_avg_count", [0]))[0])
    return values | {"debias": debias}
