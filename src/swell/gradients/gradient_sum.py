"""The running sum of one step's weighted micro-gradients, and the norms of each on the way."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from swell.gradients.norms import WIDE, GroupNorms
from swell.gradients.placement import copies, is_sharded, local
from swell.gradients.preconditioner import Preconditioner
from swell.gradients.sharded import ShardedGradients

ABSENT, DENSE, SPARSE = "0", "1", "2"


class GradientSum:
    """Takes each micro-gradient out of ``.grad``, measures it, and adds it up.

    Autograd hands every micro-gradient over whole, so measuring reads it once and copies nothing; with a single
    micro-batch the sum *is* that gradient. A ``zero_grad()`` left in the user's loop can do no harm, because between
    micro-batches nothing is kept in ``.grad``. Half-precision gradients are added up in float32.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self.metric = Preconditioner(optimizer)
        self.shards: ShardedGradients | None = None  # where the model adds its gradients up itself
        self._sizes: list[int] = []
        self.parameters: list[Tensor] = []
        self.norms = GroupNorms([], [])
        self.clear()

    def clear(self) -> None:
        """Forget the step: its sums, its norms and whatever is left in ``.grad``; see parameters added since."""
        groups = [group["params"] for group in self._optimizer.param_groups]
        sizes = [len(group) for group in groups]
        if sizes != self._sizes:
            self._sizes = sizes
            self.parameters = [p for group in groups for p in group]
            self.norms = GroupNorms(self.parameters, sizes)
        self._sums: list[Tensor | None] = [None] * len(self.parameters)
        self._squares: list[tuple[Tensor, float]] = []
        self._preconditioned: list[tuple[Tensor, float]] = []
        if self.shards is not None:
            self.shards.clear()
        for parameter in self.parameters:
            parameter.grad = None

    @property
    def empty(self) -> bool:
        """Whether no backward pass of the step has left a gradient yet, taken or still in ``.grad``."""
        return all(held is None for held in self._sums) and all(p.grad is None for p in self.parameters)

    @property
    def outdated(self) -> bool:
        """Whether parameters were added to the optimizer since ``clear``."""
        return self._sizes != [len(group["params"]) for group in self._optimizer.param_groups]

    def weigh(self, multiplier: float) -> None:
        """Multiply what a backward pass left in ``.grad``, where its loss was not weighted before it."""
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        dense = [gradient for gradient in gradients if not gradient.is_sparse]
        if dense and multiplier != 1:
            torch._foreach_mul_(dense, multiplier)
        for gradient in gradients:
            if gradient.is_sparse:
                gradient.mul_(multiplier)

    def take(self, *, multiplier: float, measure: bool, preconditioned: bool, round_weight: float = 0.0) -> None:
        """Move the gradients that one micro-batch left in ``.grad`` into the sum; ``multiplier`` weighed its loss.

        ``round_weight`` is the sum of the multipliers of all replicas in this round, for gradients that come summed.
        """
        gradients = [p.grad for p in self.parameters]
        weight = round_weight if self.shards is not None and self.shards.by_rounds else multiplier
        if measure and weight > 0:
            own = self._measurable(gradients)
            self._squares.append((self._norms(own), weight))
            if preconditioned:
                self._preconditioned.append((self._norms(self.metric.measurable(self.parameters, own)), weight))
        for parameter in self.parameters:
            parameter.grad = None
        if all(held is None for held in self._sums):
            self._sums = gradients
        else:
            self._add(gradients)

    def _measurable(self, gradients: list[Tensor | None]) -> list[Tensor | None]:
        """The gradients as this replica may measure them now: those of sharded models were, before they were summed."""
        if self.shards is None:
            return gradients
        if self.shards.alone:
            return [None if g is None else local(g) for g in gradients]
        wanted = self.shards.by_rounds
        return [None if g is None or is_sharded(g) != wanted else local(g) for g in gradients]

    def _norms(self, gradients: list[Tensor | None]) -> Tensor:
        """Squared norms by group; of pieces that several replicas hold, this replica's part."""
        squares = self.norms.squares(gradients)
        return squares / self._copies if self.shards is not None and self.shards.by_rounds else squares

    @property
    def _copies(self) -> int:
        return max((copies(p) for p in self.parameters), default=1)

    def sharded_squares(self, *, preconditioned: bool = False) -> Tensor:
        """This replica's part of the squared norms of sharded gradients, by group, once they are summed."""
        pieces = [None if held is None or not is_sharded(held) else local(held) for held in self._sums]
        if preconditioned:
            pieces = self.metric.measurable(self.parameters, pieces)
        return self.norms.squares(pieces) / self._copies

    def sharded_sums(self) -> list[Tensor]:
        """This replica's pieces of the sharded sums, in their place."""
        return [local(held) for held in self._sums if held is not None and is_sharded(held)]

    def whole_squares(self, *, preconditioned: bool = False) -> Tensor:
        """The squared norms, by group, of gradients in ``.grad`` that every replica holds whole."""
        held = [None if p.grad is None or is_sharded(p.grad) else p.grad for p in self.parameters]
        if self.shards is not None and self.shards.by_rounds:
            held = [None] * len(held)  # what was compared with were sharded ones alone
        return self.norms.squares(self.metric.measurable(self.parameters, held) if preconditioned else held)

    def _add(self, gradients: list[Tensor | None]) -> None:
        sums: list[Tensor] = []
        fresh: list[Tensor] = []
        for index, (held, gradient) in enumerate(zip(self._sums, gradients, strict=True)):
            if gradient is None:
                continue
            if held is None:
                self._sums[index] = gradient
            elif held.is_sparse or gradient.is_sparse:
                # torch adds a sparse tensor to a dense one, and not the other way round.
                self._sums[index] = gradient + held if held.is_sparse else held + gradient
            else:
                if held.dtype in WIDE:
                    held = self._sums[index] = held.to(WIDE[held.dtype])
                held, gradient = local(held), local(gradient)
                sums.append(held)
                fresh.append(gradient if gradient.dtype == held.dtype else gradient.to(held.dtype))
        if sums:
            torch._foreach_add_(sums, fresh)

    def small_squares(self, *, preconditioned: bool = False) -> Tensor | None:
        """The sum over micro-batches of ``|m_j g_j|^2 / m_j`` by group, ``m_j`` the loss multiplier."""
        taken = self._preconditioned if preconditioned else self._squares
        inside = None if self.shards is None else self.shards.small_squares(preconditioned=preconditioned)
        if not taken:
            return inside
        parts = torch._foreach_mul([squares for squares, _ in taken], [1 / multiplier for _, multiplier in taken])
        own = torch.stack(parts).sum(0)
        return own if inside is None else own.to(inside.device) + inside

    def codes(self) -> str:
        """One character a parameter: whether it has no gradient here, a dense one or a sparse one."""
        return "".join(ABSENT if held is None else SPARSE if held.is_sparse else DENSE for held in self._sums)

    def exchanged(self, codes: Sequence[str]) -> list[Tensor]:
        """The sums that replicas add up, the same list on each: zeros where only other replicas have a gradient.

        Sharded ones are left out: the model has added them up.
        """
        tensors: list[Tensor] = []
        for index, code in enumerate(codes):
            if code == ABSENT or is_sharded(self.parameters[index]):
                continue
            held = self._sums[index]
            if held is None:
                held = torch.zeros_like(self.parameters[index], memory_format=torch.preserve_format)
            elif held.is_sparse:
                held = held.to_dense()
            if held.dtype in WIDE:
                held = held.to(WIDE[held.dtype])
            self._sums[index] = held
            tensors.append(held)
        return tensors

    def release(self, codes: Sequence[str]) -> None:
        """Put the sums into ``.grad`` for the optimizer; a parameter that nobody used keeps none."""
        for parameter, held, code in zip(self.parameters, self._sums, codes, strict=True):
            if held is None or code == ABSENT:
                parameter.grad = None
            elif code == SPARSE and not held.is_sparse:
                parameter.grad = held.to(parameter.dtype).to_sparse(1)
            else:
                parameter.grad = held if held.dtype == parameter.dtype else held.to(parameter.dtype)
        self._sums = [None] * len(self.parameters)
