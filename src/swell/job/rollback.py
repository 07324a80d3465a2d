"""Undo what a broken step has changed before it was committed: buffers, and what a closure's evaluations moved."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from swell.job.state import capture_trainee, restore_trainee
from swell.job.trainee import Trainee

SMALL = 2**16  # elements; batch norm's own kernels write to its statistics without torch counting that


@dataclass
class _Kept:
    """One buffer as it was: where it lives, which tensor it was at which version, and its values."""

    owner: dict[str, Tensor | None]
    name: str
    tensor: Tensor
    version: int
    values: Tensor

    @property
    def untouched(self) -> bool:
        """Whether it is certain that nobody has written to it since."""
        same = self.owner.get(self.name) is self.tensor and self.tensor._version == self.version
        return same and self.tensor.numel() > SMALL


class Rollback:
    """Holds the models' buffers as they were when the step began.

    A forward pass in training mode writes to buffers (batch-norm statistics); done again, it would count twice. Small
    ones are copied before every step, large ones (masks, tables) once, then again only where torch has counted a write.
    Weights change only in an update, after the last exchange, and need no copy; but an optimizer that works by
    closure exchanges gradients in the middle of its update, and is held whole for that time.
    """

    def __init__(self) -> None:
        self._kept: list[_Kept] | None = None
        self._held: tuple[Trainee, dict[str, Any]] | None = None

    def look(self, trainees: Sequence[Trainee]) -> None:
        """See which buffers there are; before each pass over the data."""
        self._kept = [_keep(owner, name) for owner, name in _buffers(trainee.model for trainee in trainees)]

    @torch.no_grad()
    def begin(self) -> None:
        """A step begins: keep what has changed since the last one began."""
        written: dict[tuple[torch.dtype, torch.device], list[_Kept]] = {}  # those of one kind are copied at one go
        for kept in self._kept or ():
            now = kept.owner.get(kept.name)
            if now is not None and (now is not kept.tensor or now.shape != kept.values.shape):
                kept.tensor, kept.version, kept.values = now, now._version, now.detach().clone()
            elif now is not None and not kept.untouched:
                kept.version = now._version
                written.setdefault((now.dtype, now.device), []).append(kept)
        for alike in written.values():
            torch._foreach_copy_([kept.values for kept in alike], [kept.tensor for kept in alike])

    def hold(self, trainee: Trainee) -> None:
        """A closure is about to be evaluated in the middle of an update: keep all that may move meanwhile."""
        trainee.drain()
        self._held = trainee, copy.deepcopy(capture_trainee(trainee))

    def release(self) -> None:
        """The update went through."""
        self._held = None

    @torch.no_grad()
    def undo(self) -> None:
        """Put everything back to where the step began."""
        held, self._held = self._held, None
        if held is not None:
            held[0].drain()  # what the broken step measured goes with it
            restore_trainee(*held)
        for kept in self._kept or ():
            if not kept.untouched:
                kept.tensor.copy_(kept.values)
                kept.version = kept.tensor._version
                kept.owner[kept.name] = kept.tensor


def _keep(owner: dict[str, Tensor | None], name: str) -> _Kept:
    tensor = owner[name]
    assert tensor is not None
    return _Kept(owner, name, tensor, tensor._version, tensor.detach().clone())


def _buffers(models: Iterator[nn.Module]) -> Iterator[tuple[dict[str, Tensor | None], str]]:
    """Each buffer once, by the module that owns it and its name there."""
    seen: set[int] = set()
    for model in models:
        for module in model.modules():
            for name, buffer in module._buffers.items():
                if buffer is not None and id(buffer) not in seen and not nn.parameter.is_lazy(buffer):
                    seen.add(id(buffer))
                    yield module._buffers, name
