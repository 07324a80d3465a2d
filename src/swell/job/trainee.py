"""One optimizer with what belongs to it: its gradients' sums, moments, factors, scaler and schedule."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from swell.core.moment_average import RECENT, MomentAverage
from swell.core.protocols import Collective, Rule
from swell.core.types import Factors, Moments, NoiseEstimate, Plan, ScaleState
from swell.errors import ConfigError, LoopError
from swell.gradients.factors import BiasClock, scaled
from swell.gradients.gradient_sum import DENSE, GradientSum
from swell.gradients.late_readings import LateReadings
from swell.gradients.pairs import GradientPairs
from swell.gradients.sharded import ShardedGradients, sharded_modules
from swell.job.given import as_given
from swell.loop.lr_schedule import LRSchedule
from swell.rules.metric import needs_preconditioned

Clip = float | Callable[[list[Tensor]], Any]


@dataclass(frozen=True)
class Measured:
    """What the figures of one step belong to."""

    num_micro_batches: int
    batch: int
    samples_between: int
    preconditioned: bool
    num_groups: int
    report: Callable[[float | None], None]


class Trainee:
    """An optimizer and the model parts it trains; the job may hold several."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        rule: Rule,
        scaler: Any | None,
        schedule: LRSchedule | None,
        base_batch: int,
        exact: bool,
        half: Callable[[int], int] | None = None,
    ) -> None:
        self.model, self.optimizer, self.rule = model, optimizer, rule
        self.scaler, self.schedule = scaler, schedule
        self.given = as_given(optimizer, schedule)  # as the run was begun
        self.accumulator = GradientSum(optimizer)
        modules = sharded_modules(model)
        if modules:
            self.accumulator.shards = ShardedGradients(modules, optimizer, self.accumulator.preconditioner)
        if modules and half is not None:
            raise ConfigError(
                'swell.Statistics(alone="differences") keeps a whole gradient, and an FSDP2 model has only pieces of '
                'it. Leave alone="split", which keeps none.'
            )
        self.pairs = None if half is None else GradientPairs(self.accumulator, half)
        self._big: Tensor | None = None  # squared norms of sharded gradients, summed over replicas
        self.noise = MomentAverage(base_batch=base_batch, share=RECENT)
        self.preconditioned_noise = MomentAverage(base_batch=base_batch, share=RECENT)
        self.clock = BiasClock()
        self._metric_rule = needs_preconditioned(rule)
        self._watch = _StepWatch(optimizer)
        self._base_batch = base_batch
        self._readings: LateReadings[Measured] = LateReadings(exact=exact)
        self.last_clip: Clip | None = None
        self.tells_loss = True  # whether the loop hands over its losses, for the log
        self._loss: Tensor | None = None
        self.steps_now = False  # whether it is the job that steps the optimizer
        self.guard: Any | None = None  # the hook that keeps others from stepping it

    @property
    def sharded(self) -> bool:
        """Whether replicas hold pieces of the model (FSDP2)."""
        return self.accumulator.shards is not None

    def small_batches(self, plan: Plan) -> int:
        """How many gradients are compared in a measured step of this plan."""
        shards = self.accumulator.shards
        count = plan.accumulation if shards is not None and shards.by_rounds else plan.num_micro_batches
        return count if count > 1 else 0

    def expect(self, multiplier: float, *, measured: bool, again: bool) -> None:
        """A backward pass of a loss with this weight is next; ``again`` if the same micro-batch had one before."""
        if self.accumulator.shards is not None:
            self.accumulator.shards.expect(multiplier, measure=measured, preconditioned=self.wants_preconditioned)
            if again:  # each pass is summed by itself, and squares of parts are not the square of a sum
                self.accumulator.shards.squares_valid = False

    @property
    def wants_preconditioned(self) -> bool:
        """Whether the rule looks at moments in Adam's metric and there is one."""
        return self._metric_rule and self.accumulator.preconditioner.warm

    def follow_groups(self) -> None:
        """Before a step: take in parameters that were added since the last one; figures of other groups are dropped."""
        if self.accumulator.outdated:
            self.drain()
            self.accumulator.clear()
            if self.pairs is not None:
                self.pairs.clear()
            self.noise.reset()
            self.preconditioned_noise.reset()

    def add_loss(self, loss: Tensor, multiplier: float) -> None:
        """Count a micro-batch's loss towards the step's mean."""
        part = loss.detach().double().reshape(1) * multiplier
        self._loss = part if self._loss is None else self._loss + part.to(self._loss.device)

    def exchange(
        self, collective: Collective, codes: str, *, share: float, measured: bool, extras: Sequence[Tensor]
    ) -> Tensor:
        """Sum gradients over replicas into ``.grad``; returns the figures: loss, A by group, preconditioned A by group.

        ``share`` divides what explicit weights left to divide.
        """
        sums = self.accumulator.tensors_to_sum(codes)
        device = next((p.device for p in self.accumulator.parameters), torch.device("cpu"))
        figures = self._figures(measured, device)
        big = self._sharded_squares(device) if measured and self.sharded else figures[:0]
        told = torch.cat([figures, big])
        collective.sum_tensors([*sums, told, *extras])
        figures, self._big = told[: len(figures)], told[len(figures) :]
        if share != 1:
            torch._foreach_mul_([*sums, *self.accumulator.sharded_sums()], share)
            figures, self._big = figures * share, self._big * share**2
        self.accumulator.release(codes)
        return figures

    def _figures(self, measured: bool, device: torch.device) -> Tensor:
        groups = len(self.optimizer.param_groups)
        loss = torch.zeros(1, dtype=torch.float64, device=device) if self._loss is None else self._loss.to(device)
        parts = [loss]
        if measured:
            wanted = [self.accumulator.small_squares()]
            if self.wants_preconditioned:
                wanted.append(self.accumulator.small_squares(preconditioned=True))
            parts += [torch.zeros(groups, device=device) if part is None else part.to(device) for part in wanted]
            if self.accumulator.shards is not None and not self.accumulator.shards.squares_valid:
                parts[1:] = [part * torch.nan for part in parts[1:]]  # dropped, and counted, by all replicas
        return torch.cat([part.double() for part in parts])

    def _sharded_squares(self, device: torch.device) -> Tensor:
        """This replica's part of the squared norms of the summed gradient, plain and in Adam's metric."""
        parts = [self.accumulator.sharded_squares()]
        if self.wants_preconditioned:
            parts.append(self.accumulator.sharded_squares(preconditioned=True))
        return torch.cat([part.to(device).double() for part in parts])

    def codes(self) -> str:
        """Which gradients this replica has."""
        return self.accumulator.codes()

    def unscale(self) -> Tensor | None:
        """Divide the gradients by the scaler's scale; returns that scale."""
        if self.scaler is None or not self.scaler.is_enabled():
            return None
        device = next((p.device for p in self.accumulator.parameters), torch.device("cpu"))
        scale = self.scaler.scale(torch.ones((), device=device))
        self.scaler.unscale_(self._watch)
        return scale

    def read(
        self, figures: Tensor, scale: Tensor | None, measured: bool, belongs: Measured, pair: Tensor | None = None
    ) -> None:
        """Measure the summed gradient and hand the step's figures on to the moments, now or one step late.

        ``pair`` has the figures instead where they are of two steps compared.
        """
        if pair is not None:
            figures = torch.cat([figures[:1], pair.to(figures.device)])
        elif measured:
            squares = [self.accumulator.whole_squares()]
            if belongs.preconditioned:
                squares.append(self.accumulator.whole_squares(preconditioned=True))
            unscaled = 1.0 if scale is None else scale.double().to(figures.device) ** 2
            big = torch.cat([s.double().to(figures.device) for s in squares])
            if self._big is not None and self._big.numel():
                big = big + self._big / unscaled
            figures = torch.cat([figures[:1], figures[1:] / unscaled, big])
        for values, payload in self._readings.push(figures, belongs):
            self._learn(values, payload)

    def drain(self) -> None:
        """Wait for figures that are still on their way from the device."""
        for values, payload in self._readings.drain():
            self._learn(values, payload)

    def _learn(self, values: list[float], belongs: Measured) -> None:
        loss, rest, groups = values[0], values[1:], belongs.num_groups
        channels = len(rest) // (2 * groups) if groups else 0
        if belongs.num_micro_batches > 1:
            for channel, noise in zip(range(channels), (self.noise, self.preconditioned_noise), strict=False):
                small = rest[channel * groups : (channel + 1) * groups]
                big = rest[(channels + channel) * groups : (channels + channel + 1) * groups]
                noise.update(
                    list(zip(small, big, strict=True)),
                    count=belongs.num_micro_batches,
                    batch=belongs.batch,
                    samples_between=belongs.samples_between,
                )
        belongs.report(loss if self.tells_loss else None)

    def chosen_estimate(self) -> NoiseEstimate | None:
        """What is known of this optimizer's gradient noise, in the metric its rule looks at."""
        plain = self.noise.estimate()
        metric = self.preconditioned_noise.estimate() if self._metric_rule else None
        if plain is None or metric is None:
            return metric or plain
        return min(plain, metric, key=lambda estimate: estimate.total.noise_scale)  # as the rule does: the cautious one

    def states(self, *, scale: float, progress: float, samples: int) -> tuple[list[ScaleState], ScaleState]:
        """What the rule sees of each parameter group, and of all of them together."""
        plain, metric = self.noise.estimate(), self.preconditioned_noise.estimate()

        def state(group: int | None) -> ScaleState:
            return ScaleState(
                scale=scale,
                base_batch=self._base_batch,
                moments=_of(plain, group),
                preconditioned=_of(metric, group),
                progress=progress,
                samples=samples,
            )

        return [state(group) for group in range(len(self.optimizer.param_groups))], state(None)

    def update(self, factors: Sequence[Factors], clip: Clip | None, closure: Callable[[], Any] | None) -> bool:
        """Clip, then step with the factors; False if the scaler found an overflow and skipped."""
        if clip is not None:
            parameters = [p for p in self.accumulator.parameters if p.grad is not None]
            clip(parameters) if callable(clip) else nn.utils.clip_grad_norm_(parameters, clip)
        with scaled(self.optimizer, factors, self.clock), self._by_the_job():
            if self.scaler is None or not self.scaler.is_enabled():
                self.optimizer.step(closure)  # type: ignore[arg-type]
                self.accumulator.preconditioner.stepped()
                return True
            self._watch.stepped = False
            self.scaler.step(self._watch)
            self.scaler.update()
            if self._watch.stepped:
                self.accumulator.preconditioner.stepped()
            return self._watch.stepped

    @contextmanager
    def _by_the_job(self) -> Iterator[None]:
        self.steps_now = True
        try:
            yield
        finally:
            self.steps_now = False

    def clip_as(self, said: float) -> Clip | None:
        """What other replicas clip by, for one whose loop had nothing to do in this step."""
        if said >= 0:
            return said or None
        if callable(self.last_clip):
            return self.last_clip
        raise LoopError(
            "this replica has no sample in its first step, and cannot know the function that the others clip gradients "
            "with. Pass a number as clip=, or use fewer replicas than the data set has samples."
        )

    def give_back(self) -> None:
        """The job is over: the optimizer is the user's again."""
        if self.guard is not None:
            self.guard.remove()

    def clear(self) -> None:
        """Forget the step's gradients and loss."""
        self.accumulator.clear()
        self._loss = None

    def merge_codes(self, all_codes: Sequence[str]) -> str:
        """Per parameter the widest kind any replica has."""
        return "".join(max(kinds) for kinds in zip(*all_codes, strict=True))

    def regular(self, codes: str) -> bool:
        """Whether every gradient is there and dense."""
        return codes.strip(DENSE) == ""


class _StepWatch:
    """Stands for the optimizer in a ``GradScaler`` and notes whether it was really stepped."""

    _step_supports_amp_scaling = False  # a fused optimizer would skip on the device, where nobody sees it

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self.stepped = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._optimizer, name)

    def step(self, *args: Any, **kwargs: Any) -> Any:
        self.stepped = True
        return self._optimizer.step(*args, **kwargs)


def _of(estimate: NoiseEstimate | None, group: int | None) -> Moments | None:
    if estimate is None:
        return None
    return estimate.total if group is None else estimate.groups[group]
