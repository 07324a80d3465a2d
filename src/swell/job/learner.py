"""One optimizer with all that belongs to it: its gradients, their noise, its rule, scaler and schedule."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from swell.core.protocols import Collective, Rule
from swell.core.types import Factors, NoiseEstimate, ScaleState
from swell.errors import ConfigError, LoopError
from swell.gradients.dual_pair import DualPair
from swell.gradients.factors import BiasClock, scaled
from swell.gradients.gradient_sum import DENSE, GradientSum
from swell.gradients.host_figures import HostFigures
from swell.gradients.norms import squares_of
from swell.gradients.optimizer_step import OptimizerStep
from swell.gradients.overlap import Pass
from swell.gradients.pairs import GradientPairs
from swell.gradients.second_moment import SecondMoment
from swell.gradients.sharded import ShardedGradients, sharded_modules
from swell.job.backward_thread import has_one_gpu
from swell.job.early_exchange import EarlyExchange
from swell.job.gradient_noise import GradientNoise, Reading
from swell.job.gradient_watch import GradientWatch
from swell.job.model_buffers import ModelBuffers
from swell.job.peers import ALONE
from swell.job.script_settings import settings_of, take_settings
from swell.job.sending import Sending
from swell.job.step_loss import StepLoss
from swell.loop.lr_schedule import LRSchedule
from swell.rules.auto import dual_norm
from swell.rules.metric import (
    carries_second_moment,
    may_use_moments_at_base,
    needs_dual,
    needs_preconditioned,
    unchanged_at_base,
)
from swell.rules.worth import worth_power

Clip = float | Callable[[list[Tensor]], Any]
_UNCHANGED = Factors()
HYPER_PARAMETERS = (int, float, bool, str, type(None), tuple, list)


class _LatestFactors(NamedTuple):
    """What a rule made of the step before, and all that it looked at."""

    scale: float = 0.0
    plain: NoiseEstimate | None = None
    metric: NoiseEstimate | None = None
    factors: tuple[Factors, ...] = ()
    gain: float = 1.0


class Learner:
    """An optimizer and the model parts it trains; a job may hold several."""

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
        self.settings = settings_of(optimizer, schedule)  # as they were when the run started
        self.gradients = GradientSum(optimizer)
        self.on_one_gpu = has_one_gpu(model, self.gradients.parameters)
        modules = sharded_modules(model)
        self._by_metric, self.by_dual_norm = needs_preconditioned(rule), needs_dual(rule)
        if self.by_dual_norm:
            _check_dual(sharded=bool(modules), differences=half is not None)
            self.gradients.pair = DualPair(dual_norm(type(optimizer).__name__), optimizer.param_groups)
        if modules:
            self.gradients.shards = ShardedGradients(modules, optimizer, self.gradients.preconditioner)
        if modules and half is not None:
            raise ConfigError(
                'alone is "differences", which keeps a whole gradient; expected "split" for an FSDP2 model, which has '
                "only pieces of it. Leave out alone= in swell.Statistics."
            )
        self.pairs = None if half is None else GradientPairs(self.gradients, half)
        self._by_noise_alone = unchanged_at_base(rule)  # such a rule looks at the scale and the noise, at nothing else
        self._latest = _LatestFactors()
        self.second_moment = SecondMoment(optimizer, carried=carries_second_moment(rule))
        self.worth_power = worth_power(rule)  # these two are asked once, because the checks are slow
        self.may_use_moments_at_base = may_use_moments_at_base(rule)
        self._base_batch = base_batch
        metric = "dual" if self.by_dual_norm else "preconditioned" if self._by_metric else "plain"
        self.noise = GradientNoise(base_batch=base_batch, metric=metric, exact=exact)
        self._sharded_squares: Tensor | None = None  # squared norms of sharded gradients, summed over replicas
        self.early, self.buffers = EarlyExchange(self.gradients), ModelBuffers(model)
        self.loss = StepLoss()
        self._clock = BiasClock()
        self.make_step = OptimizerStep(optimizer)
        self._watch = _StepWatch(optimizer)
        self.touched = GradientWatch()
        self.last_clip: Clip | None = None
        self.steps_now = False  # whether the job is stepping the optimizer
        self.takes_script_settings = False  # on a resume: the script's learning rate and so on, not the saved ones

    @property
    def sharded(self) -> bool:
        """Whether replicas hold pieces of the model (FSDP2)."""
        return self.gradients.shards is not None

    @property
    def communicates(self) -> bool:
        """Whether its gradients are exchanged in the backward pass itself."""
        return self.early.overlap is not None or self.gradients.shards is not None

    @property
    def wants_preconditioned(self) -> bool:
        """Whether the rule needs moments in Adam's metric and the optimizer has that metric by now."""
        return self._by_metric and self.gradients.preconditioner.warm

    @property
    def description(self) -> str:
        """The model and its optimizer in lines that two replicas can compare."""
        lines = [f"{name} {tuple(p.shape)} {p.dtype} {p.requires_grad}" for name, p in self.model.named_parameters()]
        lines += [f"{name} {tuple(b.shape)} {b.dtype}" for name, b in self.model.named_buffers()]
        groups = [len(group["params"]) for group in self.optimizer.param_groups]
        return "\n".join([*lines, f"{type(self.optimizer).__name__} with groups of {groups}"])

    # Before and during the backward passes

    def follow_groups(self) -> None:
        """Before the first backward pass of a step: take in parameters that were added.

        Figures of other groups are dropped, and gradients that passes before have left in those parameters.
        """
        self.early.end()
        self.buffers.look_again()
        self.noise.drain()
        self.gradients.clear()
        self.on_one_gpu = has_one_gpu(self.model, self.gradients.parameters)
        if self.pairs is not None:
            self.pairs.clear()
        self.noise.reset()

    def expect(self, multiplier: float, *, measured: bool, samples: int, passes: int, last: bool) -> None:
        """A backward pass of a loss with this weight is next; the micro-batch, of ``samples``, had ``passes`` before.

        ``last`` for this replica's last micro-batch: its gradients are sent while they are computed, unless the user's
        loop is known to run more passes over it.
        """
        again, shards = passes > 0, self.gradients.shards
        if last and self.early.overlap is not None:
            preconditioned = measured and self.wants_preconditioned
            self.early.expect(Pass(multiplier, measured, preconditioned, samples), passes=passes)
        if shards is not None:
            shards.expect(multiplier, measure=measured, preconditioned=self.wants_preconditioned)
            if again:  # each pass is summed by itself, and squares of parts are not the square of a sum
                shards.squares_valid = False

    def clear(self) -> None:
        """Forget the step's gradients and loss."""
        self.touched.forget()
        self.gradients.forget()
        self.loss.clear()

    # The update

    def settle_alone(self, *, share: float, measured: bool) -> Tensor | float | HostFigures:
        """In a world of one: leave the step's gradient in ``.grad``; returns the figures, or the loss alone.

        As ``exchange`` without anybody to exchange with: where nothing was measured, nothing is moved either.
        """
        has_scaler = self.scaler is not None and self.scaler.is_enabled()
        if share != 1 or self.sharded or (measured and (self.by_dual_norm or has_scaler)):
            return self.exchange(ALONE, self.gradients.codes(), share=share, measured=measured, extras=())
        if not self.gradients.in_place:
            self.gradients.release(self.gradients.codes())
        if not measured and (self.loss.on_host or self.loss.is_one):
            return self.loss.mean()
        figures = HostFigures()
        figures.add(self.loss.parts)
        if not measured:
            return figures
        of_metrics = [self.gradients.micro_norms]
        if self.wants_preconditioned:
            of_metrics.append(self.gradients.metric_norms)
        for norms in of_metrics:
            for terms in norms.terms(self.gradients.num_groups):
                figures.add(terms, squared=True)
        return figures

    def send(self, *, measured: bool) -> Sending | None:
        """Send what is left of the step; None where gradients are not summed while they are computed."""
        overlap = self.early.overlap
        if overlap is None:
            return None
        buffers = self.buffers.find(overlap.collective)
        self.early.send_rest()  # before the figures, which the squares of all gradients are part of
        if self.early.votes_carry_loss and not measured:
            return Sending(overlap, None, buffers)
        figures = self._figures(measured, self._device())
        if measured and overlap.extra:  # squares of parts are not the square of a sum
            figures = torch.cat([figures[:1], figures[1:] * torch.nan])
        return Sending(overlap, figures, buffers)

    def exchange(
        self, collective: Collective, codes: str, *, share: float, measured: bool, extras: Sequence[Tensor]
    ) -> Tensor:
        """Sum gradients over replicas into ``.grad``; returns the figures: loss, A by group, then those of the metric.

        The latter are A again, in Adam's metric, or those of a ``DualPair``.
        ``share`` divides what explicit weights left to divide.
        """
        sums = self.gradients.tensors_to_sum(codes)
        device = self._device()
        figures = self._figures(measured, device)
        squares = self._own_sharded_squares(device) if measured and self.sharded else figures[:0]
        numbers = torch.cat([figures, squares])
        collective.sum_tensors([*sums, numbers, *extras])
        figures, self._sharded_squares = numbers[: len(figures)], numbers[len(figures) :]
        if share != 1:
            torch._foreach_mul_([*sums, *self.gradients.sharded_sums()], share)
            figures, self._sharded_squares = figures * share, self._sharded_squares * share**2
        self.gradients.release(codes)
        return figures

    def _figures(self, measured: bool, device: torch.device) -> Tensor:
        mean = self.loss.mean()
        if isinstance(mean, Tensor):
            loss = mean.to(device, torch.float64).reshape(1)
        else:
            loss = torch.tensor([mean], dtype=torch.float64, device=device)
        if not measured:
            return loss
        squares = [self.gradients.small_squares()]
        if self.wants_preconditioned:
            squares.append(self.gradients.small_squares(preconditioned=True))
        groups = self.gradients.num_groups
        parts = [torch.zeros(groups, device=device) if part is None else part.to(device) for part in squares]
        if self.gradients.shards is not None and not self.gradients.shards.squares_valid:
            parts = [part * torch.nan for part in parts]  # dropped, and counted, by all replicas
        if self.gradients.pair is not None:
            parts.append(self.gradients.pair.figures(device))
        return torch.cat([loss, *(part.double() for part in parts)])

    def _own_sharded_squares(self, device: torch.device) -> Tensor:
        """This replica's part of the squared norms of the summed gradient, plain and in Adam's metric."""
        parts = [self.gradients.sharded_squares()]
        if self.wants_preconditioned:
            parts.append(self.gradients.sharded_squares(preconditioned=True))
        return torch.cat([part.to(device).double() for part in parts])

    def unscale(self) -> Tensor | None:
        """Divide the gradients by the scaler's scale; returns that scale."""
        if self.scaler is None or not self.scaler.is_enabled():
            return None
        scale = self.scaler.scale(torch.ones((), device=self._device()))
        self.scaler.unscale_(self._watch)
        return scale

    def read(
        self,
        figures: Tensor | float | HostFigures,
        scale: Tensor | None,
        *,
        preconditioned: bool,
        reading: Reading,
        pair: Tensor | None,
    ) -> None:
        """Measure the summed gradient and pass the step's figures on to the moments, now or late.

        ``figures`` begin with the loss. ``pair`` has the other figures where two steps were compared.
        """
        if isinstance(figures, HostFigures):
            for metric in (False, True) if preconditioned else (False,):
                for norms in self.gradients.whole_norms(preconditioned=metric):
                    figures.add([(norm, 1.0) for norm in norms], squared=True)
            self.noise.push(figures.numbers(), reading._replace(work_out=figures.work_out))
            return
        if not isinstance(figures, Tensor):
            assert pair is not None, "a loss alone is passed on as it is"
            figures = pair.new_tensor([figures])
        if pair is not None:
            figures = torch.cat([figures.reshape(-1)[:1].double(), pair.to(figures.device)])
        elif figures.numel() > 1:
            groups = self.gradients.num_groups if self.by_dual_norm else 0
            figures, dual = _without_dual(figures, groups, scale)
            squares = [squares_of(self.gradients.whole_norms())]
            if preconditioned:
                squares.append(squares_of(self.gradients.whole_norms(preconditioned=True)))
            unscaled = 1.0 if scale is None else scale.double().to(figures.device) ** 2
            whole = torch.cat([part.double().to(figures.device) for part in squares])
            if self._sharded_squares is not None and self._sharded_squares.numel():
                whole = whole + self._sharded_squares / unscaled
            figures = torch.cat([figures[:1], figures[1:] / unscaled, whole, dual])
        self.noise.push(figures, reading)

    def states(self, *, scale: float, progress: float, samples: int) -> tuple[list[ScaleState], ScaleState]:
        """What the rule sees of each parameter group, and of all of them together."""
        plain, metric = self.noise.plain.estimate(), self.noise.metric.estimate()
        if len(self.optimizer.param_groups) != self.gradients.num_groups:  # some were added within the step
            plain = metric = None
        position = {"scale": scale, "base_batch": self._base_batch, "progress": progress, "samples": samples}
        name = "dual" if self.by_dual_norm else "preconditioned"
        states = []
        for group in range(len(self.optimizer.param_groups)):
            moments = None if plain is None else plain.groups[group]
            in_metric = {name: None if metric is None else metric.groups[group]}
            states.append(ScaleState(moments=moments, **in_metric, **position))
        moments = None if plain is None else plain.total
        return states, ScaleState(moments=moments, **{name: metric and metric.total}, **position)

    def factors(self, *, scale: float, progress: float, samples: int) -> tuple[tuple[Factors, ...], float]:
        """What the rule makes of a step: the factors of each parameter group, and the step's worth."""
        if scale == 1 and self._by_noise_alone:
            return (_UNCHANGED,) * len(self.optimizer.param_groups), 1.0
        plain, metric, latest = self.noise.plain.estimate(), self.noise.metric.estimate(), self._latest
        same = scale == latest.scale and plain is latest.plain and metric is latest.metric
        if same and self._by_noise_alone and len(latest.factors) == len(self.optimizer.param_groups):
            return latest.factors, latest.gain
        groups, total = self.states(scale=scale, progress=progress, samples=samples)
        factors, gain = tuple([self.rule.factors(state) for state in groups]), self.rule.gain(total)
        self._latest = _LatestFactors(scale, plain, metric, factors, gain)
        return factors, gain

    def update(self, factors: Sequence[Factors], clip: Clip | None, closure: Callable[[], Any] | None) -> bool:
        """Clip, then step with the factors; False if the scaler found an overflow and skipped."""
        if clip is not None:
            parameters = [p for p in self.gradients.parameters if p.grad is not None]
            clip(parameters) if callable(clip) else nn.utils.clip_grad_norm_(parameters, clip)
        self.steps_now = True
        try:
            if self._clock.idle and factors.count(_UNCHANGED) == len(factors):
                return self._step(closure)
            with scaled(self.optimizer, factors, self._clock):
                return self._step(closure)
        finally:
            self.steps_now = False

    def _step(self, closure: Callable[[], Any] | None) -> bool:
        if self.scaler is None or not self.scaler.is_enabled():
            self.make_step(closure)
            self.gradients.preconditioner.stepped()
            return True
        self._watch.stepped = False
        self.scaler.step(self._watch)
        self.scaler.update()
        if self._watch.stepped:
            self.gradients.preconditioner.stepped()
        return self._watch.stepped

    def clip_of_others(self, clip: float) -> Clip | None:
        """What other replicas clip by, for one whose loop had nothing to do in this step."""
        if clip >= 0:
            return clip or None
        if callable(self.last_clip):
            return self.last_clip
        raise LoopError(
            "this replica has no sample in its first step, and cannot know the function that the others clip gradients "
            "with. Pass a number as clip=, or use fewer replicas than the data set has samples."
        )

    def _device(self) -> torch.device:
        parameters = self.gradients.parameters
        return parameters[0].device if parameters else torch.device("cpu")

    def release(self) -> None:
        """The job is over: the optimizer is the user's again."""
        self.noise.drain()
        self.early.end()
        if self.make_step.guard is not None:
            self.make_step.guard.remove()

    # What is saved; the keys are those of the checkpoints' format

    def state_dict(self) -> dict[str, Any]:
        """The optimizer with all that belongs to it."""
        return {
            "kind": type(self.optimizer).__name__,
            "given": self.settings,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            # Kept apart as well: sharded checkpoints are known to lose scalars such as initial_lr.
            "groups": [
                {key: value for key, value in group.items() if key != "params" and isinstance(value, HYPER_PARAMETERS)}
                for group in self.optimizer.param_groups
            ],
            "schedule": None if self.schedule is None else self.schedule.state_dict(),
            "scaler": None if self.scaler is None else self.scaler.state_dict(),
            **self.noise.state_dict(),
            "clock": self._clock.state_dict(self.gradients.parameters),
            "batch": self.second_moment.batch,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state."""
        self.clear()
        kind = type(self.optimizer).__name__
        if state.get("kind", kind) != kind:
            raise ValueError(f"its optimizer is {state['kind']}, and this one is {kind}")
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.gradients.preconditioner.reset()
        for group, values in zip(self.optimizer.param_groups, state["groups"], strict=True):
            group.update(values)
        if self.schedule is not None and state["schedule"] is not None:
            self.schedule.load_state_dict(state["schedule"])
        if self.scaler is not None and state["scaler"]:
            self.scaler.load_state_dict(state["scaler"])
        self.noise.load_state_dict(state)
        self._clock.load_state_dict(state["clock"], self.gradients.parameters)
        self.second_moment.batch = state.get("batch")
        given = state.get("given", self.settings)
        if self.takes_script_settings:
            take_settings(self.optimizer, self.schedule, now=self.settings, before=given)
        else:
            self.settings = given


def _check_dual(*, sharded: bool, differences: bool) -> None:
    """Refuse a rule by the dual norm where two whole gradients of one step are not to be had."""
    if sharded:
        raise ConfigError(
            "the rule measures by a dual norm and the model is an FSDP2 model, which has pieces of gradients only; "
            "expected whole ones. Use AdamScale(metric='plain'), or train without fully_shard."
        )
    if differences:
        raise ConfigError(
            'the rule measures by a dual norm and alone is "differences"; expected "split", because two halves of one '
            "step are compared. Leave out alone= in swell.Statistics."
        )


def _without_dual(figures: Tensor, groups: int, scale: Tensor | None) -> tuple[Tensor, Tensor]:
    """The figures without those of a ``DualPair`` of that many groups, and these unscaled: they are of no squares."""
    if groups == 0:
        return figures, figures[:0]
    rest, dual, sizes = figures.split([len(figures) - 2 * groups - 2, 2 * groups, 2])
    if scale is not None:
        dual = dual / scale.double().to(dual.device)
    return rest, torch.cat([dual, sizes])


class _StepWatch:
    """Stands for the optimizer in a ``GradScaler`` and records whether it was really stepped."""

    _step_supports_amp_scaling = False  # a fused optimizer would skip on the device, where nobody sees it

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self.stepped = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._optimizer, name)

    def step(self, *args: Any, **kwargs: Any) -> Any:
        self.stepped = True
        return self._optimizer.step(*args, **kwargs)


def merged_codes(all_codes: Sequence[str]) -> str:
    """Per parameter the widest kind of gradient that any replica has."""
    return "".join(max(kinds) for kinds in zip(*all_codes, strict=True))


def is_regular(codes: str) -> bool:
    """Whether every gradient is there and dense."""
    return codes.strip(DENSE) == ""
