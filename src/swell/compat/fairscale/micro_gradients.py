"""Squared norms of every gradient that backward() brings, before it is averaged over replicas."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from swell.compat.fairscale.announced_step import AnnouncedStep
from swell.compat.fairscale.micro_batch_sizes import MicroBatchSizes
from swell.gradients.norms import WIDE, GroupNorms
from swell.gradients.preconditioner import Preconditioner

_queue_callback = torch.autograd.Variable._execution_engine.queue_callback  # DDP and FSDP2 use it: there is no other


class MicroGradients:
    """Measures each parameter's micro-gradients between two optimizer steps, and reports the end of each backward.

    A parameter's i-th gradient since the last step belongs to the i-th micro-batch. backward() calls are not counted,
    so neither ``torch.autograd.grad`` nor the inner backward() of reentrant checkpointing counts as a micro-batch, and
    losses of different parameters may have their backward() one after the other.

    Each gradient is measured as it comes, in one kernel, without a copy and without waiting for the device.
    ``at_end`` is called after DDP's own averaging. With nested backward() calls it is called more than once for a
    micro-batch, the last time when all gradients are there. Hooks refer to this object weakly: dropped, it leaves no
    hook behind.

    With ``metric`` the gradients are also measured in that metric, as soon as it is warm. With ``sizes`` each gradient
    is multiplied by its micro-batch's weight on its way into ``.grad``.
    """

    def __init__(
        self,
        groups: Sequence[Sequence[Tensor]],
        at_end: Callable[[], None],
        *,
        announced: AnnouncedStep,
        metric: Preconditioner | None = None,
        sizes: MicroBatchSizes | None = None,
    ) -> None:
        self.parameters = [parameter for group in groups for parameter in group]
        self.norms = GroupNorms(self.parameters, [len(group) for group in groups])
        self._group_of = [number for number, group in enumerate(groups) for _ in group]
        self._num_groups = len(groups)
        self._announced = announced
        self.metric, self._sizes = metric, sizes
        self._nodes: list[object] = []  # autograd drops those that nobody refers to
        self._at_end = weakref.WeakMethod(at_end)
        self._task = -1  # the run of autograd's engine whose end is awaited; a failed run never reports its end
        self._handles: dict[int, list[RemovableHandle]] = {}
        self.attach()
        self.restart()
        weakref.finalize(self, _remove, self._handles)

    def attach(self) -> None:
        """Add hooks to every parameter that requires a gradient and has none yet."""
        for index, parameter in enumerate(self.parameters):
            if index not in self._handles and parameter.requires_grad:
                self._handles[index] = [
                    parameter.register_hook(_measuring(weakref.ref(self), index)),
                    parameter.register_post_accumulate_grad_hook(_counting(weakref.ref(self), index)),
                ]
                if self._sizes is not None:
                    # On the node, because torch.autograd.grad does not pass it and must stay unweighted.
                    with torch.enable_grad():
                        node = parameter.expand_as(parameter).grad_fn.next_functions[0][0]  # type: ignore[union-attr]
                    self._nodes.append(node)
                    self._handles[index].append(node.register_prehook(_weighing(weakref.ref(self), index)))  # type: ignore[union-attr]

    def detach(self) -> None:
        """Remove every hook."""
        _remove(self._handles)

    def restart(self) -> None:
        """Forget the micro-batches so far: the optimizer stepped, or the gradients were thrown away."""
        self._counts = [0] * len(self.parameters)
        self.micro_batches = 0  # so far: the most gradients that any parameter had
        self.too_many = False
        self._under_way: dict[int, list[Tensor]] = {}  # norms of gradients on their way into .grad
        self._arrivals: list[tuple[int, list[Tensor]]] = []
        self._squares: list[Tensor] = []  # one for each metric
        self._divisors: list[Tensor | None] | None = None
        self._started = False
        if self._sizes is not None:
            self._sizes.restart()

    def small_squares(self) -> Tensor:
        """The sum over micro-batches of ``|g_j|^2``, with their weights, by group; metric after metric."""
        self._add_up()
        return torch.cat(self._squares) if self._squares else torch.zeros(self._num_groups)

    def big_squares(self) -> Tensor:
        """``|.grad|^2`` as it is now, by group; metric after metric."""
        gradients = [parameter.grad for parameter in self.parameters]
        plain = self.norms.squares(gradients)
        if self._divisors is None:
            return plain
        metric = [
            gradient if gradient is None or divisor is None else gradient * divisor
            for gradient, divisor in zip(gradients, self._divisors, strict=True)
        ]
        return torch.cat([plain, self.norms.squares(metric).to(plain)])

    def by_group(self, indices: Sequence[int], figures: Tensor) -> Tensor:
        """Figures of single parameters, summed over each group."""
        groups = torch.tensor([self._group_of[index] for index in indices], device=figures.device)
        return figures.new_zeros(self._num_groups).index_add_(0, groups, figures)

    def measure(self, index: int, gradient: Tensor) -> None:
        """Take the norm of a gradient that is on its way into ``.grad``, or out of ``torch.autograd.grad``."""
        accumulated = self.parameters[index].grad
        if self._counts[index] and accumulated is None:
            self.restart()  # the script threw the gradients away, so their norms must go too
        if self._counts[index] == self._announced.accumulation:
            if accumulated is None or not accumulated.any():  # zeroed in place; reads the device in this rare case only
                self.restart()
            else:
                self.too_many = True
        if gradient.requires_grad:  # with create_graph
            gradient = gradient.detach()
        if not self._started and self.metric is not None and self.metric.warm:
            ones = [torch.ones_like(parameter) for parameter in self.parameters]
            self._divisors = self.metric.divide(self.parameters, ones)
        self._started = True
        divisor = None if self._divisors is None else self._divisors[index]
        if gradient.is_sparse:
            gradient, divisor = gradient.coalesce().values(), None
        norms = [torch.linalg.vector_norm(gradient, dtype=WIDE.get(gradient.dtype))]
        if self._divisors is not None:
            metric = gradient if divisor is None else gradient * divisor
            norms.append(torch.linalg.vector_norm(metric, dtype=WIDE.get(metric.dtype)).to(norms[0]))
        if (weight := self.weight(index)) != 1:
            norms = [norm * weight**0.5 for norm in norms]
        self._under_way[index] = norms

    def weight(self, index: int) -> float:
        """The factor of the next gradient of a parameter."""
        return 1.0 if self._sizes is None else self._sizes.weight(self._counts[index])

    def count(self, index: int) -> None:
        """Count the gradient that was measured last; it is in ``.grad`` now."""
        self._arrivals.append((index, self._under_way.pop(index)))
        self._counts[index] += 1
        self.micro_batches = max(self.micro_batches, self._counts[index])
        task = torch._C._current_graph_task_id()
        if task != self._task:
            self._task = task
            _queue_callback(self._requeue)

    def _add_up(self) -> None:
        if self._arrivals:
            indices, norms = zip(*self._arrivals, strict=True)
            self._arrivals = []
            squares = [self.by_group(indices, stacked(each).square_()) for each in zip(*norms, strict=True)]
            self._squares = [a + b for a, b in zip(self._squares, squares, strict=True)] if self._squares else squares

    def _requeue(self) -> None:
        """Runs when all gradients are there. DDP may have queued its averaging after us, so queue once more."""
        _queue_callback(self._end)

    def _end(self) -> None:
        at_end = self._at_end()
        if at_end is not None and self._arrivals:
            with torch.no_grad():
                at_end()


def stacked(figures: Sequence[Tensor]) -> Tensor:
    """Single numbers as one vector, on the first one's device."""
    if len({figure.device for figure in figures}) > 1:
        figures = [figure.to(figures[0].device) for figure in figures]
    return torch.stack(list(figures))


def _measuring(gradients: weakref.ref[MicroGradients], index: int) -> Callable[[Tensor], None]:
    def hook(gradient: Tensor) -> None:
        alive = gradients()
        if alive is not None:
            alive.measure(index, gradient)

    return hook


def _counting(gradients: weakref.ref[MicroGradients], index: int) -> Callable[[Tensor], None]:
    def hook(parameter: Tensor) -> None:
        alive = gradients()
        if alive is not None:
            alive.count(index)

    return hook


def _weighing(
    gradients: weakref.ref[MicroGradients], index: int
) -> Callable[[tuple[Tensor, ...]], tuple[Tensor, ...] | None]:
    def hook(inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        alive = gradients()
        weight = 1.0 if alive is None else alive.weight(index)
        return None if weight == 1 else tuple(gradient * weight for gradient in inputs)

    return hook


def _remove(handles: dict[int, list[RemovableHandle]]) -> None:
    for group in handles.values():
        for handle in group:
            handle.remove()
    handles.clear()
