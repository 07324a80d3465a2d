"""How large a micro-batch one replica can hold, by what ran out of memory and by what is still free."""

from __future__ import annotations

import math

import torch

SPARE = 0.1  # of the device's memory, left for fragmentation and growth
CLOSE = 1.25  # between a size that fits and one that does not, no other size is tried
SETTLED = 2  # steps at a size before its memory is looked at: the first may compile, or make the optimizer's state


class Memory:
    """What one replica knows of its memory, as sizes of a micro-batch; infinite where nothing is known."""

    def __init__(self, device: torch.device, *, foresee: bool) -> None:
        self._device = device
        self._foresee = foresee and device.type == "cuda"
        self._too_much = math.inf  # the smallest size that did not fit
        self._ran_out = math.inf  # the largest size to use after memory ran out
        self._expected = math.inf  # the largest size by the memory that the largest one so far took
        self._largest, self._steps = 0, 0
        self._crowded = False

    @property
    def limit(self) -> float:
        """The largest micro-batch that should fit."""
        return min(self._ran_out, self._expected)

    def ran_out(self, size: int) -> None:
        """A micro-batch of ``size`` samples did not fit."""
        self._too_much = min(self._too_much, size)
        self._ran_out = min(self._ran_out, max(self._largest if self._largest < size else 1, size // 2))
        self._largest, self._steps = min(self._largest, int(self._ran_out)), 0
        self._crowded = True

    def tidy(self) -> None:
        """Before the next step: free what the failed one left, now that nothing refers to it any more."""
        if self._crowded and self._device.type == "cuda":
            torch.cuda.empty_cache()
        self._crowded = False

    def fitted(self, size: int) -> None:
        """A step with micro-batches of ``size`` samples was made."""
        if size < self._largest:
            return
        self._steps = self._steps + 1 if size == self._largest else 1
        self._largest = size
        if self._steps == SETTLED:
            self._expected = self._by_peak(size) if self._foresee else math.inf
            if size >= self._ran_out and self._too_much > CLOSE * size:
                self._ran_out = (size + int(self._too_much)) // 2  # the largest that fits lies between

    def _by_peak(self, size: int) -> float:
        """How many samples would fit if the memory that a step uses and frees grew with them."""
        resident = torch.cuda.memory_allocated(self._device)
        passing = torch.cuda.max_memory_allocated(self._device) - resident
        free, _ = torch.cuda.mem_get_info(self._device)
        room = (free + torch.cuda.memory_reserved(self._device)) * (1 - SPARE) - resident
        return math.inf if passing <= 0 else max(size, int(room / passing * size))


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, on an accelerator or on the host."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and ("out of memory" in text or "can't allocate memory" in text)
