"""The CUDA stream that work is queued on now, looked up cheaply."""

from __future__ import annotations

from typing import Any

import torch

_raw_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # what compiled code asks; a number


class CurrentStream:
    """Remembers the stream's object, because making it takes longer than queueing something on it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._number: int | None = None
        self._stream: Any = None

    def get(self) -> Any:
        """The device's current stream."""
        index = torch.cuda.current_device() if self._device.index is None else self._device.index
        number = None if _raw_stream is None else _raw_stream(index)
        if self._stream is None or number is None or number != self._number:
            self._stream, self._number = torch.cuda.current_stream(index), number
        return self._stream
