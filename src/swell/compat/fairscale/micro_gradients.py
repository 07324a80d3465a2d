"""Squared norms of every gradient that backward() brings, before anybody averages it over replicas."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from swell.compat.fairscale.sizes import Sizes
from swell.gradients.norms import WIDE, GroupNorms
from swell.gradients.preconditioner import Preconditioner

_queue_callback = torch.autograd.Variable._execution_engine.queue_callback  # as DDP and FSDP2 do: there is no other


class GradientWatch:
    """Measures each parameter's micro-gradients between two optimizer steps, and says when a backward has ended.

    A parameter's i-th gradient since the last step belongs to the i-th micro-batch. So backward() calls are not
    counted: neither ``torch.autograd.grad`` nor the inner backward() of reentrant checkpointing is taken for a
    micro-batch, and losses that reach different parameters may be sent back one after the other.

    Each gradient is measured as it comes, in one kernel, without a copy and without waiting for the device.
    ``at_end`` is called after DDP's own averaging; more than once a micro-batch where backward() calls are nested, the
    last time with everything there. Hooks hold this object weakly: dropped, it leaves no hook behind.

    With ``metric`` the gradients are measured in that metric too, as soon as it is warm. With ``sizes`` each gradient
    is multiplied by its micro-batch's weight on its way into ``.grad``.
    """

    def __init__(
        self,
        groups: Sequence[Sequence[Tensor]],
        at_end: Callable[[], None],
        *,
        at_most: int,
        metric: Preconditioner | None = None,
        sizes: Sizes | None = None,
    ) -> None:
        self.parameters = [parameter for group in groups for parameter in group]
        self.norms = GroupNorms(self.parameters, [len(group) for group in groups])
        self._group_of = [number for number, group in enumerate(groups) for _ in group]
        self._num_groups = len(groups)
        self.at_most = at_most
        self.metric, self._sizes = metric, sizes
        self._nodes: list[object] = []  # autograd keeps only those alive that somebody holds
        self._at_end = weakref.WeakMethod(at_end)
        self._task = -1  # the run of autograd's engine that will tell us when it ends; a failed one never does
        self._handles: dict[int, list[RemovableHandle]] = {}
        self.watch()
        self.restart()
        weakref.finalize(self, _remove, self._handles)

    def watch(self) -> None:
        """Watch every parameter that requires a gradient by now."""
        for index, parameter in enumerate(self.parameters):
            if index not in self._handles and parameter.requires_grad:
                self._handles[index] = [
                    parameter.register_hook(_measuring(weakref.ref(self), index)),
                    parameter.register_post_accumulate_grad_hook(_arriving(weakref.ref(self), index)),
                ]
                if (
                    self._sizes is not None
                ):  # on the node: torch.autograd.grad, which does not pass it, stays unweighted
                    with torch.enable_grad():
                        node = parameter.expand_as(parameter).grad_fn.next_functions[0][0]  # type: ignore[union-attr]
                    self._nodes.append(node)
                    self._handles[index].append(node.register_prehook(_weighing(weakref.ref(self), index)))  # type: ignore[union-attr]

    def unwatch(self) -> None:
        """Remove every hook."""
        _remove(self._handles)

    @property
    def watching(self) -> bool:
        """Whether there are hooks."""
        return bool(self._handles)

    def restart(self) -> None:
        """Forget the micro-batches so far: the optimizer stepped, or the gradients were thrown away."""
        self.counts = [0] * len(self.parameters)
        self.micro_batches = 0  # how many came so far; the most gradients any parameter had
        self.too_many = False
        self._measured: dict[int, list[Tensor]] = {}  # norms of gradients on their way into .grad
        self._arrived: list[tuple[int, list[Tensor]]] = []
        self._squares: list[Tensor] = []  # one for each metric
        self._divisors: list[Tensor | None] | None = None
        self._fresh = True
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

    def _add_up(self) -> None:
        if self._arrived:
            indices, each = zip(*self._arrived, strict=True)
            self._arrived = []
            squares = [self.by_group(indices, stacked(norms).square_()) for norms in zip(*each, strict=True)]
            self._squares = [a + b for a, b in zip(self._squares, squares, strict=True)] if self._squares else squares

    def measure(self, index: int, gradient: Tensor) -> None:
        """Take the norm of a gradient that is on its way into ``.grad``, or out of ``torch.autograd.grad``."""
        held = self.parameters[index].grad
        if self.counts[index] and held is None:
            self.restart()  # somebody threw the gradients away; so must we
        if self.counts[index] == self.at_most:
            if held is None or not held.any():  # zeroed in place; one look at the device, in this rare case only
                self.restart()
            else:
                self.too_many = True
        if gradient.requires_grad:  # with create_graph
            gradient = gradient.detach()
        if self._fresh and self.metric is not None and self.metric.warm:
            ones = [torch.ones_like(parameter) for parameter in self.parameters]
            self._divisors = self.metric.divide(self.parameters, ones)
        self._fresh = False
        divisor = None if self._divisors is None else self._divisors[index]
        if gradient.is_sparse:
            gradient, divisor = gradient.coalesce().values(), None
        norms = [torch.linalg.vector_norm(gradient, dtype=WIDE.get(gradient.dtype))]
        if self._divisors is not None:
            metric = gradient if divisor is None else gradient * divisor
            norms.append(torch.linalg.vector_norm(metric, dtype=WIDE.get(metric.dtype)).to(norms[0]))
        if (weight := self.weight(index)) != 1:
            norms = [norm * weight**0.5 for norm in norms]
        self._measured[index] = norms

    def weight(self, index: int) -> float:
        """What the gradient that comes to a parameter next is multiplied by."""
        return 1.0 if self._sizes is None else self._sizes.weight(self.counts[index])

    def arrive(self, index: int) -> None:
        """Count the gradient that was just measured; it is in ``.grad`` now."""
        self._arrived.append((index, self._measured.pop(index)))
        self.counts[index] += 1
        self.micro_batches = max(self.micro_batches, self.counts[index])
        task = torch._C._current_graph_task_id()
        if task != self._task:
            self._task = task
            _queue_callback(self._last_but_one)

    def _last_but_one(self) -> None:
        """Runs when all gradients are there. DDP may have queued its averaging after us: queue once more."""
        _queue_callback(self._end)

    def _end(self) -> None:
        at_end = self._at_end()
        if at_end is not None and self._arrived:
            with torch.no_grad():
                at_end()


def stacked(figures: Sequence[Tensor]) -> Tensor:
    """Single numbers as one vector, on the first one's device."""
    if len({figure.device for figure in figures}) > 1:
        figures = [figure.to(figures[0].device) for figure in figures]
    return torch.stack(list(figures))


def _measuring(watch: weakref.ref[GradientWatch], index: int) -> Callable[[Tensor], None]:
    def hook(gradient: Tensor) -> None:
        alive = watch()
        if alive is not None:
            alive.measure(index, gradient)

    return hook


def _arriving(watch: weakref.ref[GradientWatch], index: int) -> Callable[[Tensor], None]:
    def hook(parameter: Tensor) -> None:
        alive = watch()
        if alive is not None:
            alive.arrive(index)

    return hook


def _weighing(
    watch: weakref.ref[GradientWatch], index: int
) -> Callable[[tuple[Tensor, ...]], tuple[Tensor, ...] | None]:
    def hook(gradients: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        alive = watch()
        weight = 1.0 if alive is None else alive.weight(index)
        return None if weight == 1 else tuple(gradient * weight for gradient in gradients)

    return hook


def _remove(handles: dict[int, list[RemovableHandle]]) -> None:
    for pair in handles.values():
        for handle in pair:
            handle.remove()
    handles.clear()
