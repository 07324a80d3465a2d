"""Undo what a broken step changed before its commit: buffers, random numbers, what evaluations of a closure moved."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from swell.job.joined_copy import JoinedCopy
from swell.job.learner import Learner
from swell.job.random_streams import RandomStreams

_address = Tensor.data_ptr
SMALL = 2**16  # elements; torch does not count what batch norm's kernels write to its statistics
THOROUGH = 64  # steps at the start in which all small buffers are looked at, and the interval after them

_Found = tuple[dict[str, Tensor | None], str, Tensor]  # the dictionary that holds a buffer, its name there, the buffer


@dataclass
class _BufferCopy:
    """One buffer as it was: where it lives, which tensor it was at which version, and its values."""

    owner: dict[str, Tensor | None]
    name: str
    tensor: Tensor
    version: int
    values: Tensor

    @property
    def untouched(self) -> bool:
        """Whether certainly nobody has written to it since."""
        same = self.owner.get(self.name) is self.tensor and self.tensor._version == self.version
        return same and self.tensor.numel() > SMALL


class _SmallBuffers:
    """Many small buffers as they were, copied together: mostly one call for all of a device.

    Finding out whether a buffer was replaced by another tensor takes as long as copying it. So all are looked at in the
    first steps and now and then, and otherwise only those that were replaced before.
    """

    def __init__(self, slots: list[tuple[dict[str, Tensor | None], str]]) -> None:
        self._slots = slots
        self._copies_made = 0
        self._replaced: set[int] = set()  # slots in which another tensor was found
        self._read()

    def _read(self) -> None:
        self._tensors = [owner.get(name) for owner, name in self._slots]
        self._viewed: list[Tensor] = []  # those that are copied by a view of the memory that they had here
        self._others = [(t, t.detach().clone()) for t in self._tensors if t is not None and not _is_small(t)]
        kinds: defaultdict[tuple[torch.dtype, torch.device], list[Tensor]] = defaultdict(list)
        for tensor in self._tensors:
            if tensor is not None and _is_small(tensor):
                words = tensor if _is_flat(tensor) else _words(tensor.detach())
                kinds[words.dtype, words.device].append(words)
                if words is not tensor:
                    self._viewed.append(tensor)
        self._addresses = list(map(_address, self._viewed))
        self._kinds = [JoinedCopy(words) for words in kinds.values()]  # of flat tensors, or flat views of tensors

    def copy(self) -> None:
        """Copy them all, whether or not they were written to: torch does not count what kernels write."""
        self._copies_made += 1
        if self.moved(thorough=self._copies_made <= THOROUGH or self._copies_made % THOROUGH == 0):
            self._read()
            return
        for kind in self._kinds:
            kind.renew()
        for tensor, values in self._others:
            values.copy_(tensor.detach())

    def moved(self, *, thorough: bool) -> bool:
        """Whether some slot holds another tensor than it did, or a tensor other memory."""
        if not thorough and not self._replaced:
            return False
        slots, tensors = self._slots, self._tensors
        places = range(len(slots)) if thorough else self._replaced
        moved = [place for place in places if slots[place][0].get(slots[place][1]) is not tensors[place]]
        self._replaced.update(moved)
        if moved or not thorough:
            return bool(moved)
        return list(map(_address, self._viewed)) != self._addresses or not all([kind.follows for kind in self._kinds])

    def undo(self) -> None:
        """Put them back; what was replaced for the first time, and perhaps some steps ago, stays as it is."""
        for kind in self._kinds:
            kind.put_back()
        for tensor, values in self._others:
            tensor.copy_(values)
        certain = self._copies_made <= THOROUGH
        for place, ((owner, name), tensor) in enumerate(zip(self._slots, self._tensors, strict=True)):
            if tensor is not None and (certain or place in self._replaced):
                owner[name] = tensor


class Rollback:
    """Holds the models' buffers as they were when the step began.

    A forward pass in training mode writes to buffers (batch-norm statistics); a step that is done again would count
    twice. Small buffers are copied before every step, large ones (masks, tables) once and then only where torch has
    counted a write. Weights need no copy, because they change only in an update, after the last exchange. But an
    optimizer that works by closure exchanges gradients in the middle of its update, so its whole state is copied.
    """

    def __init__(self, random: RandomStreams | None = None) -> None:
        self._random = random
        self._copies: list[_BufferCopy] = []
        self._small: _SmallBuffers | None = None
        self._found: list[_Found] = []  # in the pass before
        self._learner: tuple[Learner, dict[str, Any]] | None = None  # with its whole state

    def begin_pass(self, learners: Sequence[Learner]) -> None:
        """Find the buffers of all models; before each pass over the data."""
        found = _buffers([learner.model for learner in learners])
        same = len(found) == len(self._found) and all(map(_is_same, found, self._found))
        if same and (self._small is None or not self._small.moved(thorough=True)):
            return
        self._found = found
        small = [(owner, name) for owner, name, tensor in found if _is_small(tensor)]
        self._small = _SmallBuffers(small) if small else None
        self._copies = [_copy(owner, name, tensor) for owner, name, tensor in found if not _is_small(tensor)]

    def begin_random(self, samples: int) -> None:
        """A step begins at this position: if it is done again, it draws the same random numbers."""
        if self._random is not None:
            self._random.begin_step(samples)

    def begin_step(self) -> None:
        """Copy what has changed since the last step began."""
        if self._small is not None:
            self._small.copy()
        if self._copies:
            self._copy_written()

    @torch.no_grad()
    def _copy_written(self) -> None:
        written: dict[tuple[torch.dtype, torch.device], list[_BufferCopy]] = {}  # one kind is copied in one call
        for buffer in self._copies:
            now = buffer.owner.get(buffer.name)
            if now is not None and (now is not buffer.tensor or now.shape != buffer.values.shape):
                buffer.tensor, buffer.version, buffer.values = now, now._version, now.detach().clone()
            elif now is not None and not buffer.untouched:
                buffer.version = now._version
                written.setdefault((now.dtype, now.device), []).append(buffer)
        for buffers in written.values():
            torch._foreach_copy_([buffer.values for buffer in buffers], [buffer.tensor for buffer in buffers])

    def hold(self, learner: Learner) -> None:
        """A closure is about to be evaluated in the middle of an update: copy everything that may move meanwhile."""
        learner.noise.drain()
        self._learner = learner, copy.deepcopy(learner.state_dict())

    def release(self) -> None:
        """The update succeeded."""
        self._learner = None

    @torch.no_grad()
    def undo(self, *, again: bool = True) -> None:
        """Put everything back to where the step began; random numbers only where it is done ``again``."""
        if again and self._random is not None:
            self._random.undo()
        held, self._learner = self._learner, None
        if held is not None:
            learner, state = held
            learner.noise.drain()  # what the broken step measured goes with it
            learner.load_state_dict(state)
        if self._small is not None:
            self._small.undo()
        for buffer in self._copies:
            if not buffer.untouched:
                buffer.tensor.copy_(buffer.values)
                buffer.version = buffer.tensor._version
                buffer.owner[buffer.name] = buffer.tensor


def _is_small(tensor: Tensor) -> bool:
    """Whether it is copied with others: small, in one piece of plain memory."""
    plain = type(tensor) is Tensor and not tensor.is_sparse and not tensor.is_quantized
    return plain and tensor.numel() <= SMALL and tensor.is_contiguous()


def _is_flat(tensor: Tensor) -> bool:
    """Whether it can be joined with the words of others as it is, wherever its memory lies then."""
    return tensor.dim() == 1 and tensor.dtype == torch.float32 and not tensor.requires_grad


def _words(tensor: Tensor) -> Tensor:
    """Its memory as a flat list of words of one type, whatever it holds, so that different tensors can be joined."""
    flat = tensor.view(-1)
    return flat.view(torch.float32) if flat.element_size() % 4 == 0 else flat


def _copy(owner: dict[str, Tensor | None], name: str, tensor: Tensor) -> _BufferCopy:
    return _BufferCopy(owner, name, tensor, tensor._version, tensor.detach().clone())


def _buffers(models: Sequence[nn.Module]) -> list[_Found]:
    """Each buffer once, with the module's dictionary that holds it and its name there."""
    modules = list(models)  # grows below; ``modules()`` takes several times as long, and this is asked in each epoch
    known, found = set(map(id, modules)), []
    for module in modules:
        for child in module._modules.values():
            if child is not None and id(child) not in known:
                known.add(id(child))
                modules.append(child)
        for name, buffer in module._buffers.items():
            if buffer is not None and id(buffer) not in known and not nn.parameter.is_lazy(buffer):
                known.add(id(buffer))
                found.append((module._buffers, name, buffer))
    return found


def _is_same(one: _Found, other: _Found) -> bool:
    return one[0] is other[0] and one[1] == other[1] and one[2] is other[2]
