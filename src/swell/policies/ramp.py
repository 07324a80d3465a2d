"""A batch that grows or shrinks evenly from one size to another."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from swell.core.counts import whole_number
from swell.core.types import Observation
from swell.errors import ConfigError
from swell.policies.arguments import assign, number, word
from swell.policies.position import UNITS, Unit, position

Kind = Literal["linear", "geometric"]


@dataclass(frozen=True, slots=True, init=False)
class Ramp:
    r"""A batch that goes from ``start`` to ``end`` while the run goes from 0 to ``over``, and stays at ``end``.

    With :math:`p` = position / over, between 0 and 1:

    .. math:: B = s + (e - s)\,p \quad\text{(linear)}, \qquad B = s\,(e/s)^{p} \quad\text{(geometric)}

    rounded to the nearest multiple of ``multiple``; ``start`` and ``end`` must be multiples too. With ``multiple=1``
    nearly every step has another size; with a larger one, or :class:`~swell.policies.Hysteresis` around it, the batch
    moves in steps. ``unit`` and its errors are those of :class:`~swell.policies.Schedule`; ``base`` is the batch the
    learning rate was tuned for, by default ``start``.

    >>> from swell.policies import Ramp
    >>> Ramp(64, 1024, over=0.5, unit="fraction", multiple=64).base
    64
    """

    start: int
    end: int
    over: float
    unit: Unit
    base: int
    multiple: int
    kind: Kind

    def __init__(
        self,
        start: int,
        end: int,
        *,
        over: float,
        unit: Unit = "samples",
        base: int | None = None,
        multiple: int = 1,
        kind: Kind = "linear",
    ) -> None:
        start, end = whole_number(start, name="start"), whole_number(end, name="end")
        multiple = whole_number(multiple, name="multiple")
        for name, size in (("start", start), ("end", end)):
            if size % multiple:
                nearby = max(1, round(size / multiple)) * multiple
                raise ConfigError(
                    f"{name} is {size}; expected a multiple of {multiple}. Give {name}={nearby}, or another multiple."
                )
        over = number(over, name="over", above=0)
        if word(unit, name="unit", known=UNITS) == "fraction" and over > 1:
            raise ConfigError(
                f"over is {over:g}; expected a fraction of the run, 0 to 1. Use unit='epochs' or unit='samples'."
            )
        base = whole_number(start if base is None else base, name="base")
        word(kind, name="kind", known=("linear", "geometric"))
        assign(self, start=start, end=end, over=over, unit=unit, base=base, multiple=multiple, kind=kind)

    def batch(self, seen: Observation) -> int:
        part = position(seen, self.unit) / self.over
        if part >= 1:
            return self.end
        if self.kind == "linear":
            exact = self.start + (self.end - self.start) * part
        else:
            exact = self.start * (self.end / self.start) ** part
        return self.multiple * math.floor(exact / self.multiple + 0.5)
