"""A copy of a state in host memory, taken while training waits and written while it goes on."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from swell.checkpoint.encoding import Leaf, encode, host_tensor, plain_tensor
from swell.checkpoint.fingerprint import fingerprint

MODEL = "model"  # the part whose tensors say which model a checkpoint is of

_SMALLEST_BLOCK = 2 << 20
_LARGEST_BLOCK = 256 << 20
_ALIGNMENT = 64
_PIECE = 4 << 20  # bytes that one thread moves at a time
_MOST_MOVERS = 4  # threads; a few are enough to be far quicker than a disk

Move = tuple[int, int, int]  # to this address, from that one, so many bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Parts as they are written, free of the objects they were taken from."""

    parts: Mapping[str, Any]  # encoded
    model: Mapping[str, str]  # fingerprint
    settle: Callable[[], None]  # returns once every copy has arrived; to be called before the tensors are read


Aside = Callable[[str, torch.Tensor], Any]  # what stands for a tensor that is kept elsewhere; None for one that is not


def none_aside(where: str, tensor: torch.Tensor) -> Any:
    """Keep every tensor in the snapshot."""
    return None


def take(state: Mapping[str, Any], *, aside: Aside = none_aside) -> Snapshot:
    """A snapshot to be written at once: tensors that are in host memory already are not copied."""
    return Snapshot(parts=_encoded(state, host_tensor, aside), model=_model(state), settle=lambda: None)


class HostBuffers:
    """Host memory that snapshots are taken into, kept from one to the next: the next one overwrites the last.

    A copy into fresh memory is many times slower than one into memory that was touched before, so the memory is kept,
    and is asked for in huge pages. For tensors of a CUDA device it is page-locked: their copies are queued on the
    device's current stream, ahead of whatever training queues next, and training does not wait for them.

    >>> weight = torch.ones(2)
    >>> snapshot = HostBuffers().take({"model": {"weight": weight}})
    >>> _ = weight.zero_()
    >>> snapshot.parts["model"]["weight"]
    tensor([1., 1.])
    """

    def __init__(self) -> None:
        self._pageable = _Arena(_huge_pages)
        self._pinned = _Arena(_page_locked)

    def take(self, state: Mapping[str, Any], *, aside: Aside = none_aside) -> Snapshot:
        """Copy the state; the snapshot before must not be needed any more."""
        copier = _Copier(self._pageable.rewind(), self._pinned.rewind())
        parts = _encoded(state, copier.leaf, aside)
        _carry_out(copier.moves)
        return Snapshot(parts=parts, model=_model(state), settle=copier.arrival())

    def room_for(self, state: Mapping[str, Any]) -> Callable[[], None]:
        """What to call, on any thread, to have the memory for such a state at hand and touched."""
        lengths = {True: 0, False: 0}  # of tensors on a device, and of others

        def measure(where: str, tensor: torch.Tensor) -> None:
            tensor = plain_tensor(where, tensor)
            lengths[tensor.is_cuda] += _aligned(tensor.numel() * tensor.element_size())

        _encoded(state, measure, none_aside)

        def reserve() -> None:
            self._pageable.reserve(lengths[False])
            self._pinned.reserve(lengths[True])

        return reserve

    @property
    def num_bytes(self) -> int:
        """Host memory held."""
        return self._pageable.num_bytes + self._pinned.num_bytes


def _encoded(state: Mapping[str, Any], leaf: Leaf, aside: Aside) -> dict[str, Any]:
    def kept(where: str, tensor: torch.Tensor) -> Any:
        standing = aside(where, tensor)
        return leaf(where, tensor) if standing is None else standing

    return {name: encode(value, leaf=kept, where=name) for name, value in state.items()}


def _model(state: Mapping[str, Any]) -> dict[str, str]:
    return fingerprint(state.get(MODEL, {}))


class _Copier:
    """Copies each tensor once, however often the state names it."""

    def __init__(self, pageable: _Arena, pinned: _Arena) -> None:
        self._pageable = pageable
        self._pinned = pinned
        # Each original with its copy; holds the originals, so that an address cannot come again.
        self._seen: dict[Any, tuple[torch.Tensor, torch.Tensor]] = {}
        self._devices: set[torch.device] = set()
        self.moves: list[Move] = []  # still to be carried out

    def leaf(self, where: str, tensor: torch.Tensor) -> torch.Tensor:
        tensor = plain_tensor(where, tensor)
        same = (tensor.data_ptr(), tensor.device, tensor.dtype, tensor.shape, tensor.stride())
        if tensor.numel() and same in self._seen:
            return self._seen[same][1]
        on_device = tensor.is_cuda
        copy = (self._pinned if on_device else self._pageable).like(tensor)
        if on_device:
            copy.copy_(tensor, non_blocking=True)
            self._devices.add(tensor.device)
        elif tensor.is_cpu and tensor.stride() == copy.stride():
            if tensor.numel():
                self.moves.append((copy.data_ptr(), tensor.data_ptr(), tensor.numel() * tensor.element_size()))
        else:
            copy.copy_(tensor)
        self._seen[same] = (tensor, copy)
        return copy

    def arrival(self) -> Callable[[], None]:
        """What to call to wait for every copy made so far."""
        events = [torch.cuda.current_stream(device).record_event() for device in self._devices]

        def settle() -> None:
            for event in events:
                event.synchronize()

        return settle


def _carry_out(moves: list[Move]) -> None:
    """Copy memory, on as many threads as torch would use; they end here, for threads do not mix with forks.

    Not by copy_: its threads wait for one another at every tensor, ten times as long where the cores are busy.
    """
    pieces = [
        (to + start, source + start, min(_PIECE, length - start))
        for to, source, length in moves
        for start in range(0, length, _PIECE)
    ]
    threads = min(torch.get_num_threads(), _MOST_MOVERS, sum(length for _, _, length in moves) // _PIECE)
    if threads <= 1:
        for piece in pieces:
            ctypes.memmove(*piece)
    else:
        with ThreadPoolExecutor(threads) as movers:
            for _ in movers.map(lambda piece: ctypes.memmove(*piece), pieces):
                pass


class _Arena:
    """Memory handed out piece by piece, and all of it again after ``rewind``."""

    def __init__(self, allocate: Callable[[int], memoryview]) -> None:
        self._allocate = allocate
        self._blocks: list[memoryview] = []
        self._block = 0
        self._used = 0

    @property
    def num_bytes(self) -> int:
        return sum(len(block) for block in self._blocks)

    def rewind(self) -> _Arena:
        self._block = self._used = 0
        return self

    def reserve(self, length: int) -> None:
        """Have this much in one block, each page of it touched, unless as much is held already."""
        if length > self.num_bytes:
            self._blocks = [self._allocate(length)]
            ctypes.memset(torch.frombuffer(self._blocks[0], dtype=torch.uint8).data_ptr(), 0, length)
            self.rewind()

    def like(self, tensor: torch.Tensor) -> torch.Tensor:
        """Room for a tensor of this shape, type and order of dimensions, with a storage of its own."""
        length = tensor.numel() * tensor.element_size()
        if length == 0:
            return torch.empty_like(tensor, device="cpu")
        piece = torch.frombuffer(self._piece(length), dtype=torch.uint8).view(tensor.dtype)
        stride = tensor.stride() if tensor.is_contiguous() else torch.empty_like(tensor, device="meta").stride()
        return piece.as_strided(tensor.shape, stride)

    def _piece(self, length: int) -> memoryview:
        while self._block < len(self._blocks):
            block = self._blocks[self._block]
            if self._used + length <= len(block):
                start = self._used
                self._used += _aligned(length)
                return block[start : start + length]
            self._block, self._used = self._block + 1, 0
        growth = min(max(_SMALLEST_BLOCK, self.num_bytes), _LARGEST_BLOCK)  # doubles, up to a point
        self._blocks.append(self._allocate(max(length, growth)))
        return self._piece(length)


def _aligned(length: int) -> int:
    return -(-length // _ALIGNMENT) * _ALIGNMENT


def _huge_pages(length: int) -> memoryview:
    memory = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(AttributeError, OSError):  # macOS, or a kernel built without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(memory)


def _page_locked(length: int) -> memoryview:
    return torch.empty(length, dtype=torch.uint8, pin_memory=True).numpy().data
