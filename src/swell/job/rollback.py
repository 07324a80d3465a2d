"""Undo what a broken step changed before its commit: buffers, and what the evaluations of a closure moved."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from swell.job.learner import Learner

SMALL = 2**16  # elements; torch does not count what batch norm's kernels write to its statistics


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


class Rollback:
    """Holds the models' buffers as they were when the step began.

    A forward pass in training mode writes to buffers (batch-norm statistics); a step that is done again would count
    twice. Small buffers are copied before every step, large ones (masks, tables) once and then only where torch has
    counted a write. Weights need no copy, because they change only in an update, after the last exchange. But an
    optimizer that works by closure exchanges gradients in the middle of its update, so its whole state is copied.
    """

    def __init__(self) -> None:
        self._copies: list[_BufferCopy] = []
        self._learner: tuple[Learner, dict[str, Any]] | None = None  # with its whole state

    def begin_pass(self, learners: Sequence[Learner]) -> None:
        """Find the buffers of all models; before each pass over the data."""
        self._copies = [_copy(owner, name) for owner, name in _buffers(learner.model for learner in learners)]

    @torch.no_grad()
    def begin_step(self) -> None:
        """Copy what has changed since the last step began."""
        if not self._copies:
            return
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
    def undo(self) -> None:
        """Put everything back to where the step began."""
        held, self._learner = self._learner, None
        if held is not None:
            learner, state = held
            learner.noise.drain()  # what the broken step measured goes with it
            learner.load_state_dict(state)
        for buffer in self._copies:
            if not buffer.untouched:
                buffer.tensor.copy_(buffer.values)
                buffer.version = buffer.tensor._version
                buffer.owner[buffer.name] = buffer.tensor


def _copy(owner: dict[str, Tensor | None], name: str) -> _BufferCopy:
    tensor = owner[name]
    assert tensor is not None
    return _BufferCopy(owner, name, tensor, tensor._version, tensor.detach().clone())


def _buffers(models: Iterator[nn.Module]) -> Iterator[tuple[dict[str, Tensor | None], str]]:
    """Each buffer once, by the module that owns it and its name there."""
    known: set[int] = set()
    for model in models:
        for module in model.modules():
            for name, buffer in module._buffers.items():
                if buffer is not None and id(buffer) not in known and not nn.parameter.is_lazy(buffer):
                    known.add(id(buffer))
                    yield module._buffers, name
