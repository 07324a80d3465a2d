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
FAIRSCALE_NAMES = {"signal": "grad_sqr_avg", "noise": "grad_var_avg"}


class Averages:
    """Signal and noise of each parameter group, averaged over steps as FairScale does.

    Its ``sqr`` is the signal; its ``var`` is the noise per base batch instead of per sample. One step's figures are
    clamped before they are averaged. ``swell.core`` never does that, because a sum of clamped figures is biased.

    With ``debias`` it is an exponential average divided by its weight; otherwise the plain mean of the first
    ``1 / (1 - smoothing)`` steps and then an exponential average (Johnson et al. 2020, appendix B.3). Before the first
    step the signal is 1 and the noise 0, so every gain is 1.
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
        """Signal and noise of one group, or summed over all."""
        if group is None:
            return Moments(signal=float(self.signal.sum()), noise=float(self.noise.sum()))
        return Moments(signal=float(self.signal[group]), noise=float(self.noise[group]))

    def rescale(self, factor: float) -> None:
        """Multiply the noise, as FairScale does when the scale changes; the mathematics gives no reason for it."""
        self.noise, self.noise_sum = self.noise * factor, self.noise_sum * factor

    def add_group(self) -> None:
        """Add a parameter group, which starts as the first ones did."""
        for name in NAMES:
            setattr(self, name, np.append(getattr(self, name), 1.0 if name == "signal" else 0.0))

    def figures(self) -> list[float]:
        """All numbers as one list."""
        return [float(self.count), *np.concatenate([getattr(self, name) for name in NAMES]).tolist()]

    def set_figures(self, figures: Sequence[float]) -> None:
        """Replace all numbers by those of ``figures()``."""
        self.count = round(figures[0])
        for name, part in zip(NAMES, np.split(np.array(figures[1:]), len(NAMES)), strict=True):
            setattr(self, name, part)

    def state_dict(self) -> dict[str, Any]:
        """Only numbers, lists and booleans."""
        return {"debias": self.debias, "count": self.count, **{name: getattr(self, name).tolist() for name in NAMES}}

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any], *, num_groups: int) -> Averages:
        """From what ``state_dict`` returned, or from a checkpoint of FairScale itself."""
        values = _translated(state) if "grad_sqr_avg" in state else state
        try:
            new = cls(num_groups, debias=bool(values["debias"]))
            new.count = int(values["count"])
            for name in NAMES:
                array = np.array(values[name], dtype=np.float64)
                if array.shape != (num_groups,):
                    raise CheckpointError(
                        f"the checkpoint has averages of {array.size} parameter groups; expected {num_groups}, as in "
                        "this optimizer. Make the same parameter groups before loading."
                    )
                setattr(new, name, array)
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"the checkpoint's averages cannot be read ({error!r}); expected AdaScale's. Load what state_dict() of "
                "this class or of FairScale's returned."
            ) from error
        return new


def _translated(state: Mapping[str, Any]) -> dict[str, Any]:
    """A state with FairScale's names, by our names."""
    debias = "grad_var_avg_count" not in state
    zeros = np.zeros(len(state["grad_sqr_avg"]))
    sums = "_biased" if debias else "_total"
    values: dict[str, Any] = {name: state[fairscale_name] for name, fairscale_name in FAIRSCALE_NAMES.items()}
    values |= {
        f"{name}_sum": state.get(fairscale_name + sums, zeros) for name, fairscale_name in FAIRSCALE_NAMES.items()
    }
    values["weight"] = state.get("grad_var_avg_unbias", zeros)
    values["count"] = int(np.asarray(state.get("grad_var_avg_count", [0]))[0])
    return values | {"debias": debias}
