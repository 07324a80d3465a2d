"""A batch that grows, or shrinks, evenly from one size to another."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from swell.core.types import Observation
from swell.errors import ConfigError
from swell.policies.arguments import assign, number, samples, word
from swell.policies.position import UNITS, Unit, position

Kind = Literal["linear", "geometric"]


@dataclass(frozen=True, slots=True, init=False)
class Ramp:
    r"""A batch that goes from ``start`` to ``end`` while the run goes from 0 to ``over``, and stays at ``end``.

    With :math:`p` = position / over, between 0 and 1:

    .. math:: B = s + (e - s)\,p \quad\text{(linear)}, \qquad B = s\,(e/s)^{p} \quad\text{(geometric)}

    rounded to the nearest multiple of ``multiple``, of which ``start`` and ``end`` must be multiples themselves. With
    ``multiple=1`` nearly every step has another size; a coarser one, or :class:`~swell.policies.Hysteresis` around
    it, makes it move in steps. ``unit`` and its failures are those of :class:`~swell.policies.Schedule`; ``base`` is
    the batch the learning rate was tuned for, ``start`` unless you say otherwise.

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
        start, end, multiple = samples(start, "start"), samples(end, "end"), samples(multiple, "multiple")
        for name, size in (("start", start), ("end", end)):
            if size % multiple:
                nearby = max(1, round(size / multiple)) * multiple
                raise ConfigError(
                    f"{name} is {size}, which is no multiple of {multiple}; expected every size of the ramp to be one. "
                    f"Give {name}={nearby}, or another multiple."
                )
        over = number(over, "over", above=0)
        if word(unit, "unit", UNITS) == "fraction" and over > 1:
            raise ConfigError(
                f"over is {over:g} of the run; a fraction lies between 0 and 1. Use unit='epochs' or unit='samples'."
            )
        base = samples(start if base is None else base, "base")
        word(kind, "kind", ("linear", "geometric"))
        assign(self, start=start, end=end, over=over, unit=unit, base=base, multiple=multiple, kind=kind)

    def batch(self, seen: Observation) -> int:
        part = position(seen, self.unit) / self.over
        if part >= 1:
            return self.end
        if self.kind == "linear":
            wanted = self.start + (self.end - self.start) * part
        else:
            wanted = self.start * (self.end / self.start) ** part
        return self.multiple * math.floor(wanted / self.multiple + 0.5)
