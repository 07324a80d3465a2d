"""The running sum of one step's weighted micro-gradients, and their norms."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter, itemgetter

import torch
from torch import Tensor
from torch.optim import Optimizer

from swell.gradients.dual_pair import DualPair
from swell.gradients.kept import KeptGradients
from swell.gradients.micro_norms import MicroNorms
from swell.gradients.norms import WIDE, GroupNorms, Norms
from swell.gradients.placement import copies, is_sharded, local
from swell.gradients.preconditioner import Preconditioner
from swell.gradients.sharded import ShardedGradients

ABSENT, DENSE, SPARSE = "0", "1", "2"  # which gradient a parameter has; replicas agree on the largest code
_grad, _params = attrgetter("grad"), itemgetter("params")


class GradientSum:
    """Adds up the micro-gradients of one step, in ``.grad`` or, where each is to be measured, outside of it.

    ``leave`` lets autograd add the next micro-gradient to what is in ``.grad``: nothing is read, copied or moved. A
    ``zero_grad()`` left in the user's loop is noticed by ``follow``, before the next backward pass.

    ``take`` moves each micro-gradient out of ``.grad`` and measures it. Autograd leaves it whole, so measuring reads it
    once and copies nothing; with a single micro-batch the sum *is* that gradient. A ``zero_grad()`` does no harm, and
    half-precision gradients are added up in float32.

    What depends on the parameters alone is worked out once, and again in ``clear`` when some were added.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self.preconditioner = Preconditioner(optimizer)
        self.shards: ShardedGradients | None = None  # of a model that sums its gradients over replicas itself
        self.pair: DualPair | None = None  # where the first two micro-gradients are compared in a dual norm
        self.parameters: list[Tensor] = []
        self.norms = GroupNorms([], [])
        self._sizes: list[int] = []  # parameters of each group
        self._sharded: list[bool] = []  # for each parameter, whether replicas hold pieces of it
        self._copies = 1  # replicas that hold the same piece
        self._narrow = False  # whether some gradients are too narrow to be added up in their own type
        self._kept = KeptGradients()
        self._hand_over = False  # whether the user's loop changes gradients between micro-batches
        self._measured = False  # whether anything of the step was
        self._sums: list[Tensor | None] = []
        self.micro_norms, self.metric_norms = MicroNorms(), MicroNorms()  # of the gradient, and in Adam's metric
        self._read_groups()
        self.forget()

    def clear(self) -> None:
        """Forget the step, and take in parameters that were added since."""
        if self.outdated:
            self._read_groups()
        self.forget()

    def forget(self) -> None:
        """Forget the step: its sums, its norms and what is left in ``.grad``."""
        if self._sums:
            self._sums = []
        self._codes: str | None = None
        self.in_place = False  # whether the step's sum is what lies in ``.grad``
        self._kept.clear()
        if self._measured:
            self._measured = False
            self.preconditioner.refresh()
            self.micro_norms, self.metric_norms = MicroNorms(), MicroNorms()
        if self.shards is not None:
            self.shards.clear()
        if self.pair is not None:
            self.pair.clear()
        for parameter in self.parameters:
            parameter.grad = None

    def _read_groups(self) -> None:
        groups = [group["params"] for group in self._optimizer.param_groups]
        self._sizes = [len(group) for group in groups]
        self.num_groups = len(groups)  # that gradients are measured by
        self.parameters = [parameter for group in groups for parameter in group]
        self.norms = GroupNorms(self.parameters, self._sizes)
        self._sharded = [is_sharded(parameter) for parameter in self.parameters]
        self._copies = max((copies(parameter) for parameter in self.parameters), default=1)
        self._any_sharded = any(self._sharded)
        self._narrow = any(parameter.dtype in WIDE for parameter in self.parameters)
        if self.pair is not None:
            self.pair.follow(self._optimizer.param_groups)

    @property
    def empty(self) -> bool:
        """Whether no backward pass of the step has left a gradient yet, taken or still in ``.grad``."""
        for parameter in self.parameters:  # mostly the first has one
            if parameter.grad is not None:
                return False
        return self.codes().strip(ABSENT) == ""

    @property
    def has_sums(self) -> bool:
        """Whether gradients of the step were taken out of ``.grad``."""
        return bool(self._sums)

    @property
    def outdated(self) -> bool:
        """Whether parameters were added to the optimizer that are not taken in yet."""
        return list(map(len, map(_params, self._optimizer.param_groups))) != self._sizes

    def weigh(self, multiplier: float) -> None:
        """Multiply what a backward pass left in ``.grad``, where its loss was not weighted before it."""
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        dense = [gradient for gradient in gradients if not gradient.is_sparse]
        if dense and multiplier != 1:
            torch._foreach_mul_(dense, multiplier)
        for gradient in gradients:
            if gradient.is_sparse:
                gradient.mul_(multiplier)

    def leave(self, *, last: bool) -> bool:
        """Let a micro-batch's gradients stay in ``.grad``, where the next backward pass adds to them.

        False where they must be taken instead, because they are too narrow to be added up where they are, or because
        the user's loop changes them there. ``last`` if no other micro-batch follows.
        """
        if self._sums or (not last and (self._narrow or self._hand_over)):
            return False
        self.in_place, self._codes = True, None
        if not last:
            self._kept.keep(self.parameters)
        return True

    def follow(self) -> bool:
        """Before another micro-batch's backward pass: put back gradients that somebody took away since ``leave``.

        False where their values were changed instead, so that the sum is lost; from then on none is left there.
        """
        intact = self._kept.restore(self.parameters)
        self._hand_over = self._hand_over or not intact
        return intact

    def take(
        self,
        *,
        multiplier: float,
        measure: bool,
        preconditioned: bool,
        round_weight: float = 0.0,
        samples: int = 0,
    ) -> None:
        """Move the gradients that one micro-batch left in ``.grad`` into the sum; its loss had this ``multiplier``.

        ``round_weight`` is the sum of all replicas' multipliers in this round, for gradients that arrive summed.
        ``samples`` of the micro-batch are needed for figures in a dual norm alone.
        """
        gradients = list(map(_grad, self.parameters))
        weight = round_weight if self.shards is not None and self.shards.by_rounds else multiplier
        if measure and weight > 0:
            self._measure(gradients, weight, preconditioned=preconditioned)
        if self.pair is not None:
            if measure:
                self.pair.compare(self._sums, gradients, multiplier, samples)
            self.pair.added(multiplier, samples, measured=measure)
        for parameter in self.parameters:
            parameter.grad = None
        if self._sums:
            self._add(gradients)
        else:
            self._sums = gradients
        self._codes = None

    def _measure(self, gradients: list[Tensor | None], weight: float, *, preconditioned: bool) -> None:
        self._measured = True
        own = self._own(gradients)
        self.micro_norms.add(self.norms.norms(own), weight)
        if preconditioned:
            proxies = self.preconditioner.norm_proxies(self.parameters, own)
            self.metric_norms.add(self.norms.norms(proxies), weight)

    def pack(
        self,
        indices: Sequence[int],
        views: Sequence[Tensor],
        *,
        weight: float,
        measure: bool,
        preconditioned: bool,
        samples: int = 0,
    ) -> list[str]:
        """Copy the sums of some parameters into ``views`` and measure the latest micro-gradients, as ``take`` does.

        ``.grad`` is then the view, if that has the parameter's type. Returns the codes; what is absent becomes zero.
        """
        gradients = [self.parameters[index].grad for index in indices]
        if measure and weight > 0:
            of_all = _spread_out(gradients, indices, len(self.parameters))
            self._measure(of_all, weight, preconditioned=preconditioned)
            if self.pair is not None and self._sums:
                sums = _spread_out([self._sums[index] for index in indices], indices, len(self.parameters))
                self.pair.compare(sums, of_all, weight, samples)
        dense = [gradient for gradient in gradients if gradient is not None and not gradient.is_sparse]
        if not self._sums and len(dense) == len(gradients):
            moved = [(view, gradient) for view, gradient in zip(views, dense, strict=True) if view is not gradient]
            if moved:  # the others were moved there before the bucket was full
                torch._foreach_copy_([view for view, _ in moved], [gradient for _, gradient in moved])
            for index, view in zip(indices, views, strict=True):
                if view.dtype == self.parameters[index].dtype:
                    self.parameters[index].grad = view
            return [DENSE] * len(views)
        codes, targets, sources = [], [], []
        for index, view, gradient in zip(indices, views, gradients, strict=True):
            total, parameter = self._sums[index] if self._sums else None, self.parameters[index]
            parts = [part for part in (total, gradient) if part is not None]
            codes.append(ABSENT if not parts else SPARSE if all(part.is_sparse for part in parts) else DENSE)
            if len(parts) == 1 and gradient is view:  # moved there before the bucket was full
                continue
            if len(parts) == 1 and not parts[0].is_sparse:
                targets.append(view)
                sources.append(parts[0])
            else:
                view.zero_()
                for part in parts:
                    view.add_(part)
            if parts and view.dtype == parameter.dtype:
                parameter.grad = view
        if targets:
            torch._foreach_copy_(targets, sources)
        return codes

    def gather(self) -> None:
        """Move what ``leave`` left in ``.grad`` out of it, as ``take`` would have."""
        if self.in_place:
            self.in_place, self._codes = False, None
            self._sums = list(map(_grad, self.parameters))
            for parameter in self.parameters:
                parameter.grad = None

    def _own(self, gradients: list[Tensor | None]) -> list[Tensor | None]:
        """What this replica can measure now; a sharded model's gradients were measured before they were summed."""
        if self.shards is None:
            return gradients
        if self.shards.alone:
            return [None if gradient is None else local(gradient) for gradient in gradients]
        return [
            None if gradient is None or sharded != self.shards.by_rounds else local(gradient)
            for gradient, sharded in zip(gradients, self._sharded, strict=True)
        ]

    def _add(self, gradients: list[Tensor | None]) -> None:
        sums: list[Tensor] = []
        summands: list[Tensor] = []
        for index, gradient in enumerate(gradients):
            if gradient is None:
                continue
            total = self._sums[index]
            if total is None:
                self._sums[index] = gradient
            elif total.is_sparse or gradient.is_sparse:
                # torch adds a sparse tensor to a dense one, and not the other way round.
                self._sums[index] = gradient + total if total.is_sparse else total + gradient
            else:
                if total.dtype in WIDE:
                    total = self._sums[index] = total.to(WIDE[total.dtype])
                if self._sharded[index]:
                    total, gradient = local(total), local(gradient)
                sums.append(total)
                summands.append(gradient if gradient.dtype == total.dtype else gradient.to(total.dtype))
        if sums:
            torch._foreach_add_(sums, summands)

    def small_squares(self, *, preconditioned: bool = False) -> Tensor | None:
        """The sum over micro-batches of ``|m_j g_j|^2 / m_j`` by group, ``m_j`` the loss multiplier.

        Of pieces that several replicas hold, this replica's part.
        """
        own = (self.metric_norms if preconditioned else self.micro_norms).squares()
        if self.shards is None:
            return own
        sharded = self.shards.small_squares(preconditioned=preconditioned)
        if own is not None and self.shards.by_rounds:
            own = own / self._copies
        if own is None or sharded is None:
            return sharded if own is None else own
        return own.to(sharded.device) + sharded

    def sharded_squares(self, *, preconditioned: bool = False) -> Tensor:
        """This replica's part of the squared norms of sharded gradients, by group, once they are summed."""
        pieces = [
            local(total) if sharded and total is not None else None
            for total, sharded in zip(self._present(), self._sharded, strict=True)
        ]
        if preconditioned:
            pieces = self.preconditioner.norm_proxies(self.parameters, pieces)
        return self.norms.squares(pieces) / self._copies

    def whole_norms(self, *, preconditioned: bool = False) -> Norms:
        """Norms, by group, of gradients in ``.grad`` that every replica holds whole; their squares add up."""
        gradients: list[Tensor | None] = list(map(_grad, self.parameters))
        if self.shards is not None and self.shards.by_rounds:  # then only sharded gradients were compared
            gradients = [None] * len(self.parameters)
        elif self._any_sharded:
            gradients = [None if own else each for each, own in zip(gradients, self._sharded, strict=True)]
        if preconditioned:
            gradients = self.preconditioner.norm_proxies(self.parameters, gradients)
        return self.norms.norms(gradients)

    def sharded_sums(self) -> list[Tensor]:
        """This replica's pieces of the sharded sums, in their place."""
        pairs = zip(self._present(), self._sharded, strict=True)
        return [local(total) for total, sharded in pairs if sharded and total is not None]

    def codes(self) -> str:
        """One character per parameter: this replica has no gradient of it, a dense one or a sparse one."""
        if self._codes is None:
            self._codes = "".join(
                [ABSENT if total is None else SPARSE if total.is_sparse else DENSE for total in self._present()]
            )
        return self._codes

    def _present(self) -> list[Tensor | None]:
        """The sums so far, wherever they are."""
        if self.in_place:
            return list(map(_grad, self.parameters))
        return self._sums or [None] * len(self.parameters)

    def tensors_to_sum(self, codes: Sequence[str]) -> list[Tensor]:
        """The sums that replicas add up, the same list on each: zeros where only other replicas have a gradient.

        Sharded ones are left out, because the model has added them up.
        """
        self.gather()
        if not self._sums:
            self._sums = [None] * len(self.parameters)
        tensors: list[Tensor] = []
        for index, code in enumerate(codes):
            if code == ABSENT or self._sharded[index]:
                continue
            total = self._sums[index]
            if total is None:
                total = torch.zeros_like(self.parameters[index], memory_format=torch.preserve_format)
            elif total.is_sparse:
                total = total.to_dense()
            if total.dtype in WIDE:
                total = total.to(WIDE[total.dtype])
            self._sums[index] = total
            tensors.append(total)
        self._codes = None
        return tensors

    def release(self, codes: Sequence[str]) -> None:
        """Put the sums into ``.grad`` for the optimizer; a parameter that no replica used gets none."""
        for parameter, total, code in zip(self.parameters, self._present(), codes, strict=True):
            if total is None or code == ABSENT:
                parameter.grad = None
            elif code == SPARSE and not total.is_sparse:
                parameter.grad = total.to(parameter.dtype).to_sparse(1)
            else:
                parameter.grad = total if total.dtype == parameter.dtype else total.to(parameter.dtype)
        self._sums, self._codes = [], None


def _spread_out(gradients: Sequence[Tensor | None], indices: Sequence[int], count: int) -> list[Tensor | None]:
    """Gradients of some parameters in a list for all of them."""
    of_all: list[Tensor | None] = [None] * count
    for index, gradient in zip(indices, gradients, strict=True):
        of_all[index] = gradient
    return of_all
