"""Notice gradients that the script changed between ``job.backward`` and ``job.step``."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from torch import Tensor

THOROUGH = 64  # micro-batches at the start that are looked at whole, and the interval after them


class Change(Enum):
    """What happened to a micro-batch's gradients after the backward pass."""

    NONE = "none"
    WRITTEN = "written"  # clipped, scaled, or added to by another backward pass
    GONE = "gone"  # all of them cleared; some alone may be, because that means the same for a sum of gradients


class GradientWatch:
    """Remembers the gradients that a backward pass left, by identity and by torch's count of writes to each.

    It reads no gradient, so nothing waits for the device. All parameters are compared at first and now and then, and
    one of them otherwise, so that a large model pays nothing: who clips or clears gradients mostly does so with all.
    Where a change would only be told, and not refused, nothing is compared otherwise.
    """

    def __init__(self) -> None:
        self._seen: list[tuple[Tensor, Tensor, int]] = []  # a parameter, its gradient, writes to it
        self._looks = 0
        self._all: Sequence[Tensor] = ()  # the parameters that were given last
        self._one: Sequence[Tensor] = ()  # one of those that had a gradient when all were looked at

    def remember(self, parameters: Sequence[Tensor], *, closely: bool = True) -> None:
        """A backward pass is done; ``closely`` if no change may be missed."""
        thorough = parameters is not self._all or self._looks < THOROUGH or self._looks % THOROUGH == 0
        if not thorough and not closely:
            self._seen = []
            return
        looked_at = parameters if thorough else self._one
        self._seen = seen = [(p, gradient, gradient._version) for p in looked_at if (gradient := p.grad) is not None]
        if thorough:
            self._all, self._one = parameters, [seen[len(seen) // 2][0]] if seen else []

    def change(self) -> Change:
        """What became of the gradients since; they are forgotten."""
        seen, self._seen = self._seen, []
        self._looks += 1
        found, gone = Change.NONE, bool(seen)
        for parameter, gradient, version in seen:
            now = parameter.grad
            if now is not None:
                gone = False
                if now is not gradient or gradient._version != version:
                    found = Change.WRITTEN
        gone = gone and all(parameter.grad is None for parameter in self._all)
        return Change.GONE if gone else found

    def forget(self) -> None:
        """The step is given up, or over."""
        self._seen = []
