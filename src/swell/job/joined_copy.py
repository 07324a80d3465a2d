"""One copy of many small tensors side by side, made again before every step."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

_RECORD_AFTER = 64  # copies; a run that ends sooner would not gain by a record
_RECORD_FROM = 8  # tensors; to copy fewer takes no longer than to replay a record


class JoinedCopy:
    """The values of flat tensors of one type and device, as they were when the copy was last renewed.

    On a GPU the host takes longer to list the tensors than the GPU to copy them. So the copy is recorded as a CUDA
    graph once it has been made often, and replayed from then on. A record reads the memory that the tensors had then;
    it keeps that memory alive, and ``follows`` says where a tensor lies elsewhere since.
    """

    def __init__(self, tensors: list[Tensor]) -> None:
        self._tensors = tensors
        self._values = torch.cat(tensors)
        self._copies = 0
        self._record: Any = None
        self._recorded: list[tuple[int, Any]] = []  # where the tensors were then, and the memory itself, kept alive

    def renew(self) -> None:
        """Copy the tensors again."""
        if self._record is not None:
            self._record.replay()
            return
        torch.cat(self._tensors, out=self._values)
        self._copies += 1
        if self._copies == _RECORD_AFTER and self._values.is_cuda and len(self._tensors) >= _RECORD_FROM:
            self._make_record()

    @property
    def follows(self) -> bool:
        """Whether the next copy will be of all tensors, wherever their memory lies now."""
        return self._record is None or all([self._is_recorded(place) for place in range(len(self._tensors))])

    def put_back(self) -> None:
        """Give the tensors the values that were copied; not those whose memory was replaced since a record was made."""
        parts = self._values.split([tensor.numel() for tensor in self._tensors])
        places = [place for place in range(len(parts)) if self._record is None or self._is_recorded(place)]
        if places:
            torch._foreach_copy_([self._tensors[place] for place in places], [parts[place] for place in places])

    def _is_recorded(self, place: int) -> bool:
        return self._tensors[place].data_ptr() == self._recorded[place][0]

    def _make_record(self) -> None:
        """Record the copy, if the device can; other threads may use it meanwhile."""
        device = self._values.device
        record, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.device(device), torch.cuda.stream(stream), suppress(RuntimeError):
            record.capture_begin(capture_error_mode="thread_local")
            try:
                torch.cat(self._tensors, out=self._values)
            finally:
                record.capture_end()
            self._recorded = [(tensor.data_ptr(), tensor.untyped_storage()) for tensor in self._tensors]
            self._record = record
        torch.cuda.current_stream(device).wait_stream(stream)
