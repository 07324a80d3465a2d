"""What the gradients at hand say, and the mean of them: AdaScale between a backward() and its step()."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from swell.compat.fairscale.averages import Averages
from swell.compat.fairscale.exchange import Exchange
from swell.compat.fairscale.observation import Observation, PairObservation, Pairs
from swell.compat.fairscale.sizes import Sizes
from swell.compat.fairscale.watch import GradientWatch


class Measuring:
    """The part of AdaScale that reads gradients; averages are those of the steps before until a step is taken."""

    param_groups: list[dict[str, Any]]
    _accumulation: int
    _averages: list[Averages]
    _channels: int
    _dropped: int
    _exchange: Exchange
    _grad_scaler: Any
    _is_scaled_loss: bool
    _over_all: bool
    _pairs: Pairs | None
    _scale: float
    _sizes: Sizes | None
    _smoothing: float
    _watch: GradientWatch | None

    def _watched(self) -> GradientWatch:
        assert self._watch is not None
        return self._watch

    def _start_over(self) -> None:
        self._divided = False  # whether the script has divided the gradients of this step
        self._observation: Observation | PairObservation | None = None
        self._seen: list[Averages] | None = None  # the averages with the observation in them
        self._part = 1.0  # of the gradients in .grad in their mean, where micro-batches have weights
        self._step_scale = getattr(self, "_scale", 1.0)
        if self._watch is not None:
            self._watch.restart()

    def _at_end(self) -> None:
        """A backward has ended and its gradients are averaged over replicas."""
        watch = self._watched()
        if watch.micro_batches == self._accumulation:
            self._observe(watch.micro_batches)

    def _observe(self, count: int) -> None:
        watch, size = self._watched(), self._exchange.size
        self._seen = self._observation = None
        whole = 1 if self._sizes is None else self._sizes.whole
        small, present, samples = self._summed(count)
        micro_batches = int(present) * count  # over all replicas that have not left
        self._step_scale = self._scale * samples / (whole * size * self._accumulation)
        # Hooks saw gradients divided by the announced count, or not divided; .grad is their sum over a rank, and the
        # mean over replicas, those that left included where DDP is told so.
        seen_over = self._accumulation if self._is_scaled_loss else 1
        held_over = (count if self._divided else seen_over) * (size if self._over_all else present)
        self._part = whole * held_over / samples
        if micro_batches > 1:
            self._observation = Observation(
                small=small,
                big=watch.big_squares(),
                count=micro_batches,
                small_factor=float(seen_over) ** 2 * whole * micro_batches / samples,
                big_factor=self._part**2,
                scale=self._step_scale,
            )
        elif self._pairs is not None and size == 1:
            self._observation = self._pairs.observe(watch, scale=self._step_scale)
            self._rescale(samples / whole)

    def _summed(self, count: int) -> tuple[Tensor, float, float]:
        """Squared norms over all replicas, how many replicas are there, and how many samples they computed."""
        small, groups = self._watched().small_squares(), len(self.param_groups)
        figures = torch.cat([small, small.new_zeros(self._channels * groups - len(small))])  # as long on every replica
        if self._sizes is not None:
            figures = torch.cat([figures, figures.new_tensor([float(self._sizes.total(count))])])
        figures, present = self._exchange.sum(figures)
        samples = present * count if self._sizes is None else float(figures[-1])
        return figures[: len(small)], present, samples

    def _make_mean(self, count: int) -> None:
        """Make the gradients the mean over what there is: fewer micro-batches than announced, or uneven ones."""
        if count < self._accumulation:
            self._observe(count)
        part = 1.0
        if self._sizes is not None:
            part = self._part * (count if self._divided and count == self._accumulation else 1)  # divided since
        elif count < self._accumulation and self._is_scaled_loss:
            part = self._accumulation / count
        if part != 1 and (gradients := self._gradients()):
            torch._foreach_mul_(gradients, part)

    def _gradients(self) -> list[Tensor]:
        return [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]

    def _current(self) -> list[Averages]:
        """The averages, plain and in the optimizer's metric, with what the gradients at hand add to them."""
        if self._observation is None:
            return self._averages
        if self._seen is None:
            moments, groups = self._observation.moments(), len(self.param_groups)
            if not all(math.isfinite(m.signal) and math.isfinite(m.noise) for m in moments):
                self._dropped += 1
                self._observation = None
                return self._averages
            seen = list(self._averages)  # the second stays as it is where its metric is not warm yet
            for number in range(len(moments) // groups):
                part = moments[number * groups : (number + 1) * groups]
                seen[number] = seen[number].updated(part, smoothing=self._smoothing)
            self._seen = seen
        return self._seen

    def _unscale(self) -> None:
        """Take GradScaler's scale out of the gradients, if that is left to us, and out of what was measured."""
        by_us = getattr(self, "grad_scale", None)
        if by_us is not None:
            scale = float(by_us)
            if gradients := self._gradients():
                torch._foreach_mul_(gradients, 1 / scale)
        elif self._grad_scaler is not None and self._grad_scaler.is_enabled():
            scale = float(self._grad_scaler.get_scale())
        else:
            return
        self._rescale(scale)

    def _rescale(self, scale: float) -> None:
        """Take a factor that gradients had out of what was measured of them."""
        if self._pairs is not None:
            self._pairs.unscale(scale)
        if self._observation is not None:
            self._observation.unscale(scale)
            self._seen = None
