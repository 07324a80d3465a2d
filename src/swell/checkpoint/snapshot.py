"""A copy of a state in host memory: taken while training waits, written while it goes on."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch

from swell.checkpoint.encoding import Leaf, encode, host_tensor, plain_tensor
from swell.checkpoint.tensor_memory import dense_stride, identity

_SMALLEST_BLOCK = 2 << 20
_LARGEST_BLOCK = 256 << 20
_ALIGNMENT = 64
_PIECE = 4 << 20  # bytes that one thread copies at a time
_MOST_THREADS = 4  # a few are enough to be far quicker than a disk

Move = tuple[int, int, int]  # address of the copy, address of the original, length in bytes
Substitute = Callable[[str, torch.Tensor], Any]  # what replaces a tensor that is kept elsewhere; None to keep it here


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Parts as they are written, independent of the objects they were taken from."""

    parts: Mapping[str, Any]  # encoded
    settle: Callable[[], None]  # waits until every copy has arrived; call it before the tensors are read


def keep_all(where: str, tensor: torch.Tensor) -> Any:
    """Keep every tensor in the snapshot."""
    return None


def take(state: Mapping[str, Any], *, substitute: Substitute = keep_all) -> Snapshot:
    """A snapshot to be written at once: tensors that are already in host memory are not copied."""
    return Snapshot(parts=_encoded(state, host_tensor, substitute), settle=lambda: None)


class HostBuffers:
    """Host memory for snapshots, kept from one to the next: each snapshot overwrites the previous one.

    A copy into fresh memory is many times slower than a copy into memory that was touched before, so the memory is
    kept. For tensors of a CUDA device it is page-locked: their copies are queued on the device's current stream, ahead
    of whatever training queues next, and training does not wait for them.

    >>> weight = torch.ones(2)
    >>> snapshot = HostBuffers().take({"model": {"weight": weight}})
    >>> _ = weight.zero_()
    >>> snapshot.parts["model"]["weight"]
    tensor([1., 1.])
    """

    def __init__(self) -> None:
        self._pageable = _Arena(pinned=False)
        self._pinned = _Arena(pinned=True)

    def take(self, state: Mapping[str, Any], *, substitute: Substitute = keep_all) -> Snapshot:
        """Copy the state; the previous snapshot must not be needed any more."""
        copier = _Copier(self._pageable.rewind(), self._pinned.rewind())
        parts = _encoded(state, copier.leaf, substitute)
        _move(copier.moves)
        return Snapshot(parts=parts, settle=copier.arrival())

    def room_for(self, state: Mapping[str, Any], *, substitute: Substitute = keep_all) -> Callable[[], None]:
        """A function, for any thread, that allocates and touches the memory for a state of this size."""
        lengths = {True: 0, False: 0}  # of tensors on a device, and of others

        def measure(where: str, tensor: torch.Tensor) -> None:
            tensor = plain_tensor(where, tensor)
            lengths[tensor.is_cuda] += _aligned(tensor.numel() * tensor.element_size())

        _encoded(state, measure, substitute)

        def reserve() -> None:
            self._pageable.reserve(lengths[False])
            self._pinned.reserve(lengths[True])

        return reserve

    @property
    def num_bytes(self) -> int:
        """Host memory in use."""
        return self._pageable.num_bytes + self._pinned.num_bytes


def _encoded(state: Mapping[str, Any], leaf: Leaf, substitute: Substitute) -> dict[str, Any]:
    def leaf_or_substitute(where: str, tensor: torch.Tensor) -> Any:
        replacement = substitute(where, tensor)
        return leaf(where, tensor) if replacement is None else replacement

    return {name: encode(value, leaf=leaf_or_substitute, where=name) for name, value in state.items()}


class _Copier:
    """Copies each tensor once, however often the state names it."""

    def __init__(self, pageable: _Arena, pinned: _Arena) -> None:
        self._pageable = pageable
        self._pinned = pinned
        self._copies: dict[Any, tuple[torch.Tensor, torch.Tensor]] = {}  # original and copy, by the original's identity
        self._devices: set[torch.device] = set()
        self.moves: list[Move] = []  # still to be made

    def leaf(self, where: str, tensor: torch.Tensor) -> torch.Tensor:
        tensor = plain_tensor(where, tensor)
        key = identity(tensor)
        if tensor.numel() and key in self._copies:
            return self._copies[key][1]
        copy = (self._pinned if tensor.is_cuda else self._pageable).like(tensor)
        if tensor.is_cuda:
            copy.copy_(tensor, non_blocking=True)
            self._devices.add(tensor.device)
        elif tensor.is_cpu and tensor.stride() == copy.stride():
            if tensor.numel():
                self.moves.append((copy.data_ptr(), tensor.data_ptr(), tensor.numel() * tensor.element_size()))
        else:
            copy.copy_(tensor)
        self._copies[key] = (tensor, copy)
        return copy

    def arrival(self) -> Callable[[], None]:
        """A function that waits for every copy made so far."""
        events = [torch.cuda.current_stream(device).record_event() for device in self._devices]

        def settle() -> None:
            for event in events:
                event.synchronize()

        return settle


def _move(moves: list[Move]) -> None:
    """Copy memory on a few threads; they end here, because threads do not survive a fork.

    Not by ``copy_``: its threads wait for one another at every tensor. On 16 cores it took 0.3 to 0.5 times as long
    when they were idle, but 5 to 21 times as long when other processes used them.
    """
    pieces = [
        (to + start, source + start, min(_PIECE, length - start))
        for to, source, length in moves
        for start in range(0, length, _PIECE)
    ]
    threads = min(torch.get_num_threads(), _MOST_THREADS, sum(length for _, _, length in moves) // _PIECE)
    if threads <= 1:
        for piece in pieces:
            ctypes.memmove(*piece)
    else:
        with ThreadPoolExecutor(threads) as pool:
            for _ in pool.map(lambda piece: ctypes.memmove(*piece), pieces):
                pass


class _Arena:
    """Memory that is given out piece by piece, and again from the start after ``rewind``."""

    def __init__(self, *, pinned: bool) -> None:
        self._pinned = pinned
        self._blocks: list[memoryview] = []
        self._block = 0
        self._offset = 0

    @property
    def num_bytes(self) -> int:
        return sum(len(block) for block in self._blocks)

    def rewind(self) -> _Arena:
        self._block = self._offset = 0
        return self

    def reserve(self, length: int) -> None:
        """Allocate this much in one block and touch each page of it, unless there is as much already."""
        if length > self.num_bytes:
            self._blocks = [self._allocate(length)]
            ctypes.memset(torch.frombuffer(self._blocks[0], dtype=torch.uint8).data_ptr(), 0, length)
            self.rewind()

    def like(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor of this shape, type and order of dimensions, with a storage of its own."""
        length = tensor.numel() * tensor.element_size()
        if length == 0:
            return torch.empty_like(tensor, device="cpu")
        data = torch.frombuffer(self._piece(length), dtype=torch.uint8).view(tensor.dtype)
        return data.as_strided(tensor.shape, dense_stride(tensor))

    def _piece(self, length: int) -> memoryview:
        while self._block < len(self._blocks):
            block = self._blocks[self._block]
            if self._offset + length <= len(block):
                start = self._offset
                self._offset += _aligned(length)
                return block[start : start + length]
            self._block, self._offset = self._block + 1, 0
        growth = min(max(_SMALLEST_BLOCK, self.num_bytes), _LARGEST_BLOCK)  # doubles, up to a point
        self._blocks.append(self._allocate(max(length, growth)))
        return self._piece(length)

    def _allocate(self, length: int) -> memoryview:
        return torch.empty(length, dtype=torch.uint8, pin_memory=self._pinned).numpy().data


def _aligned(length: int) -> int:
    return -(-length // _ALIGNMENT) * _ALIGNMENT
