"""Laws of worth and ways to choose the batch that are compared on the tasks, beside what swell does by itself."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from tasks import Task
from torch.optim import Optimizer

import swell
from swell.core.moments import gain
from swell.core.protocols import Rule
from swell.core.types import Factors, Layout, Moments, NoiseEstimate, Observation, ScaleState
from swell.rules import AdamMeanGain, KeepDecayTime, choice


@dataclass(frozen=True)
class Law:
    """A factor on the learning rate and a worth of the step, by the scale and a measured gain between 1 and the scale.

    ``weight`` 0 is AdaScale's gain, 1 the linear (root) rule that counts samples, 0.5 the geometric mean of the two:
    an adaptive optimizer that takes the root of the scale as its factor moves by the root of scale times gain.
    ``noise`` multiplies the measured noise. ``betas`` lets an adaptive optimizer's own averages forget at the pace of
    the base run.
    """

    adaptive: bool
    weight: float
    noise: float = 1.0
    betas: bool = False

    @property
    def metric(self) -> str:
        return "preconditioned" if self.adaptive else "plain"

    def gain(self, state: ScaleState) -> float:
        gains = [
            gain(state.scale, Moments(moments.signal, self.noise * moments.noise), base_batch=state.base_batch)
            for moments in (state.moments, state.preconditioned)
            if moments is not None
        ]
        measured = min(gains, default=1.0)
        return state.scale**self.weight * measured ** (1 - self.weight)

    def factors(self, state: ScaleState) -> Factors:
        worth = self.gain(state)
        if not self.adaptive:
            return Factors(lr=worth, ema_power=state.scale)
        # sqrt(v) falls by the root of the gain, so the factor that moves by ``worth`` is worth / sqrt(gain).
        measured = worth if self.weight == 1 else (worth / state.scale**self.weight) ** (1 / (1 - self.weight))
        lr = min(worth / math.sqrt(measured), math.sqrt(state.scale))
        power = worth if self.betas else 1.0
        return Factors(lr=lr, beta_power=power, ema_power=state.scale, weight_decay=state.scale / lr)

    @property
    def worth_power(self) -> float:
        return 1 - self.weight


@dataclass(frozen=True)
class RootCountedByGain:
    """The root of the scale on the learning rate, and a worth by the plain gain alone: for optimizers without √v."""

    worth_power: float = 1.0
    metric: ClassVar[str] = "plain"

    def gain(self, state: ScaleState) -> float:
        return gain(state.scale, state.moments, base_batch=state.base_batch)

    def factors(self, state: ScaleState) -> Factors:
        lr = math.sqrt(state.scale)
        return Factors(lr=lr, ema_power=state.scale, weight_decay=lr)


@dataclass(frozen=True)
class CountedInMetric:
    """Adam's default rule, with a worth by the gain in Adam's metric to this power, and by the plain one for the rest.

    The default takes the smaller of the two.
    """

    power: float
    worth_power: ClassVar[float] = 0.5
    metric: ClassVar[str] = "preconditioned"
    second_moment: ClassVar[str] = "follow"

    def gain(self, state: ScaleState) -> float:
        plain, own = (
            gain(state.scale, moments, base_batch=state.base_batch) for moments in (state.moments, state.preconditioned)
        )
        both = own if own < plain else own**self.power * plain ** (1 - self.power)
        return math.sqrt(state.scale * both)

    def factors(self, state: ScaleState) -> Factors:
        return Factors(lr=math.sqrt(state.scale), ema_power=state.scale)


def _in_metric(task: Task, power: float) -> dict[str, Any]:
    rule: Any = CountedInMetric(power)
    return {"batch": _goodput(task), "rule": KeepDecayTime(rule) if "AdamW" in task.kind else rule}


@dataclass(frozen=True)
class Follow:
    """The largest power of two of base batches within ``factor`` noise scales; grows step by step, never shrinks."""

    follows_noise: ClassVar[bool] = True
    base: int
    largest: int
    factor: float = 1.0

    def batch(self, seen: Observation) -> int:
        noise = seen.noise
        if noise is None or seen.samples - seen.batch_since < 16 * seen.batch:
            return seen.batch
        scale = noise.total.noise_scale if noise.sure else noise.at_least
        if self.factor * scale >= 2 * seen.batch and 2 * seen.batch <= seen.within_epoch(self.largest * self.base):
            return 2 * seen.batch
        return seen.batch


@dataclass(frozen=True)
class Grow:
    """Doubles at fixed parts of the run, whatever is measured."""

    base: int
    largest: int
    over: float = 0.2

    def batch(self, seen: Observation) -> int:
        doublings = math.log2(self.largest)
        done = (seen.done or 0.0) / self.over
        return self.base * 2 ** int(min(doublings, done * (doublings + 1)))


@dataclass(frozen=True)
class Louder:
    """A goodput policy that sees ``factor`` times the measured noise."""

    follows_noise: ClassVar[bool] = True
    inner: swell.Goodput
    factor: float

    @property
    def base(self) -> int:
        return self.inner.base

    def _heard(self, seen: Observation) -> Observation:
        noise = seen.noise
        if noise is None:
            return seen
        louder = NoiseEstimate(
            total=Moments(noise.total.signal, self.factor * noise.total.noise),
            groups=noise.groups,
            interval=(self.factor * noise.interval[0], self.factor * noise.interval[1]),
            observations=noise.observations,
        )
        return dataclasses.replace(seen, noise=louder)

    def batch(self, seen: Observation) -> int:
        return self.inner.batch(self._heard(seen))

    def layout(self, seen: Observation) -> Layout:
        return self.inner.layout(self._heard(seen))


def _settings(
    task: Task, policy: Any, weight: float | None, noise: float = 1.0, *, betas: bool = False
) -> dict[str, Any]:
    settings: dict[str, Any] = {"batch": policy}
    if isinstance(policy, int):
        settings["base"] = task.base
    if not isinstance(policy, (swell.Goodput, Louder)):
        settings["micro"] = task.base * task.largest
    if weight is not None:
        settings["rule"] = Law(task.adaptive, weight, noise, betas)
    return settings


def _by_samples(task: Task, policy: Any) -> dict[str, Any]:
    """A policy that reads the schedule or the place in the run, with the rule that counts samples."""
    return {"batch": policy, "rule": "root" if task.adaptive else "linear", "micro": task.base * task.largest}


def _goodput(task: Task, **settings: Any) -> swell.Goodput:
    return swell.Goodput(task.base, **{"max": task.largest * task.base, **settings})


def _by_dual_norm(optimizer: Optimizer) -> Rule | None:
    """The rule by the dual norm for steps by signs and by orthogonal matrices; None, which is the job's, for others."""
    known = choice(type(optimizer).__name__)
    if known.dual_norm is None:
        return None
    rule = swell.AdamScale(metric="dual")
    return swell.KeepDecayTime(rule) if isinstance(known.rule, swell.KeepDecayTime) else rule


def _in_dual_norm(task: Task, policy: Any) -> dict[str, Any]:
    return {**_settings(task, policy, None), "rule_of": _by_dual_norm}


WAYS: dict[str, Callable[[Task], dict[str, Any]]] = {
    "goodput": lambda t: _settings(t, _goodput(t), None),
    "goodput before": lambda t: _settings(t, _goodput(t, slack=0.08, prefer="steps", price=None), 0.0),
    "goodput, gain": lambda t: _settings(t, _goodput(t), 0.0),
    "goodput, betas kept": lambda t: _settings(t, _goodput(t), 0.5),
    "goodput, 5 % measured": lambda t: {"batch": _goodput(t), "statistics": swell.Statistics(budget=0.05)},
    "goodput, metric": lambda t: _in_metric(t, 1.0),
    "goodput, half metric": lambda t: _in_metric(t, 0.5),
    "goodput, mean gain": lambda t: {"batch": _goodput(t), "rule": KeepDecayTime(AdamMeanGain(metric="plain"))},
    "norm test": lambda t: _settings(t, swell.NormTest(t.base, max=t.largest * t.base), None),
    "dual norm, norm test": lambda t: _in_dual_norm(t, swell.NormTest(t.base, max=t.largest * t.base)),
    "dual norm, goodput": lambda t: _in_dual_norm(t, _goodput(t)),
    "goodput 1.25": lambda t: _settings(t, _goodput(t, price=1.25), None),
    "goodput 2": lambda t: _settings(t, _goodput(t, price=2.0), None),
    "goodput, root, gain": lambda t: {"batch": _goodput(t), "rule": RootCountedByGain()},
    "goodput, root, gain, as large": lambda t: {"batch": _goodput(t), "rule": RootCountedByGain(0.5)},
    "goodput, 10 x": lambda t: _settings(t, _goodput(t, max=10 * t.base), None),
    "louder 4, gain": lambda t: _settings(t, Louder(_goodput(t), 4.0), 0.0, 4.0),
    "fixed 8, gain": lambda t: _settings(t, 8 * t.base, 0.0),
    "fixed 8, mean": lambda t: _settings(t, 8 * t.base, 0.5),
    "follow 1, samples": lambda t: _settings(t, Follow(t.base, t.largest, 1.0), 1.0),
    "follow 3, samples": lambda t: _settings(t, Follow(t.base, t.largest, 3.0), 1.0),
    "seesaw": lambda t: _by_samples(t, swell.Seesaw(t.base, max=t.largest * t.base)),
    "late switch": lambda t: _by_samples(t, swell.LateSwitch(t.base, to=8 * t.base)),
    "grow to 8, samples": lambda t: _settings(t, Grow(t.base, 8), 1.0),
    "grow to 16, samples": lambda t: _settings(t, Grow(t.base, 16), 1.0),
}
