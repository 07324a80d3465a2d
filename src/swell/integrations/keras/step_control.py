"""What the host sets before a step, as one small vector, so that a compiled step does not contain it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from swell.core.types import Factors


@dataclass(frozen=True, slots=True, kw_only=True)
class StepControl:
    """How the passes of one step are weighted and how the update at its end is scaled; every field is one float.

    Passes come in at most three runs of equal size: whole ones, the rest, and, on several devices, the rest of that.
    Pass ``i`` has ``weight_1`` below ``end_1``, ``weight_2`` below ``end_2``, and ``weight_3`` from there on.
    """

    count: float = 1.0  # passes of the step
    end_1: float = 1.0
    end_2: float = 1.0
    weight_1: float = 1.0
    weight_2: float = 0.0
    weight_3: float = 0.0
    lr: float = 1.0
    eps: float = 1.0
    weight_decay: float = 1.0
    beta_power: float = 1.0
    momentum_power: float = 1.0
    ema_power: float = 1.0
    effective_step: float = 0.0  # the step that Adam's bias correction is due for, if betas move

    def numbers(self) -> list[float]:
        """All fields in order, as the optimizer's variable holds them."""
        return [float(getattr(self, name)) for name in NAMES]


NAMES = tuple(field.name for field in fields(StepControl))
PLAIN = StepControl()


def step_control(weights: Sequence[float], factors: Factors, *, effective_step: float) -> StepControl:
    """The control of a step whose passes have these weights, in the order they are computed.

    >>> control = step_control([0.4, 0.4, 0.2], Factors(lr=2.0), effective_step=1.0)
    >>> control.count, control.end_1, control.weight_1, control.weight_2, control.lr
    (3.0, 2.0, 0.4, 0.2, 2.0)
    """
    runs: list[tuple[float, int]] = []  # a weight, and the place after its last pass
    for place, weight in enumerate(weights):
        if runs and runs[-1][0] == weight:
            runs[-1] = (weight, place + 1)
        else:
            runs.append((weight, place + 1))
    assert 1 <= len(runs) <= 3, f"passes of {len(runs)} kinds, but a layout has at most 3"
    (first, end_1), (second, end_2), (third, _) = [*runs, (0.0, len(weights)), (0.0, len(weights))][:3]
    return StepControl(
        count=float(len(weights)),
        end_1=float(end_1),
        end_2=float(end_2),
        weight_1=first,
        weight_2=second,
        weight_3=third,
        lr=factors.lr,
        eps=factors.eps,
        weight_decay=factors.weight_decay,
        beta_power=factors.beta_power,
        momentum_power=factors.momentum_power,
        ema_power=factors.ema_power,
        effective_step=effective_step,
    )
