"""The batch and the micro-batch that make most progress per second on the present workers."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass
from functools import lru_cache
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from swell.core.counts import whole_number
from swell.core.goodput import Candidates, Outlook, best, candidates, goodput, layouts, outlook
from swell.core.moments import efficiency
from swell.core.throughput import Fit, Prediction, fit
from swell.core.types import Decision, Layout, NoiseEstimate, Observation, StepSummary
from swell.core.world_bounds import WorldBounds
from swell.errors import ConfigError
from swell.policies.arguments import assign, flag, number
from swell.policies.goodput_limits import Limits, Sizes, as_sizes
from swell.policies.goodput_patience import is_early, required_gain, thresholds
from swell.policies.goodput_reasons import ChosenBy, GoodputChoice, to_decision
from swell.policies.goodput_trials import (
    SETTLED,
    larger_batch,
    largest_settled,
    other_size,
    spent_on_trials,
    steps_measured,
    trial_budget,
    trial_thresholds,
    were_measured,
)

_HOPE = 0.25  # the most by which a layout that was never measured may be assumed better than predicted
_ENTERED = 0.8  # the part of the slack that a choice uses, so that it is not left again at once
_FAR = 5  # base batches; a noise scale beyond promises worth that no training showed
_APART = 1.25  # by which factor a batch must differ to be chosen for its fewer samples or steps, or left for its price


@dataclass(frozen=True, slots=True)
class Goodput:
    r"""The batch, and its layout, with the highest goodput between ``base`` and ``max``.

    .. math:: \mathrm{goodput}(B) = \frac{B}{T} \cdot \frac{\varphi + B_0}{\varphi + B}

    The first factor is samples per second, by a law fitted to the steps measured so far (:mod:`swell.core.throughput`).
    The second is the worth of a sample at that batch, by the gradient noise scale :math:`\varphi`. That is
    the cautious law, whatever the rule counts, because a batch that is too large costs more than one that is too small.
    A larger batch uses
    the machine better and each sample worse. The noise grows while the loss falls, and so does the batch.

    **Bounds.** ``base`` is the batch the learning rate was tuned for. ``max`` is a hard limit, and so are an epoch's
    samples. ``micro`` bounds what one replica computes at once: ``"auto"`` tries larger ones step by step until memory
    runs out; ``(low, high)`` are bounds; a number is one size (compiled models, batch norm); None is no bound. Without
    ``max`` such sizes bound the batch too: ``high`` samples per replica, or ``base`` if that is more. ``worlds`` lists
    what the bounds allow on other numbers of replicas. The batch does not go below ``base`` unless ``shrink``, and it
    never shrinks if ``monotone``.

    **Noise.** It acts on a sure noise scale (``NoiseEstimate.sure``). Until then the batch grows by the lower bound of
    the noise scale, and shrinks only from a trial, or if it is too dear even by the upper bound.

    **Patience.** A change must promise ``hysteresis`` more goodput: half of that after a long time, a quarter while a
    layout is on trial. ``dwell`` samples must have passed since the last change, by default 24 steps, or 8 while a
    layout is on trial. A change of the world is answered at once.

    **Trials.** ``explore`` is the part of the run, in samples, that may go into trials: the same batch in other
    micro-batches, to learn what a sample costs, and layouts that may be better than predicted.

    **Ties.** Goodput is flat near its maximum. Of all layouts within ``slack`` of the best goodput, the smallest batch
    is chosen: it takes fewer samples, and the less the batch differs from the base batch, the surer the result.
    ``prefer="steps"`` chooses the largest instead, for fewer optimizer steps. With a slack of 0 goodput alone decides.

    **Price.** A larger batch may save time and still waste samples. ``price`` is the most samples that a step may take
    for one sample of the base run; no batch is chosen at which a sample is worth less, by the law of the rule, than
    ``1 / price`` of one in the base batch. Far from the batch that was tuned for, no law was right in real trainings,
    so a noise scale above 5 base batches counts as 5: with the default price and ``rule="auto"`` that is 13 times the
    base batch at most, or 5.5 times where a step counts by the gain alone (Muon). None for no limit: time alone counts.

    The choice is a function of the observation alone, so a log can be replayed; ``explain`` gives its reasons.
    Reference: Qiao et al., Pollux, OSDI 2021, section 4, https://arxiv.org/abs/2008.12260

    >>> from swell.policies import Goodput
    >>> Goodput(128, max=4096).micro
    'auto'
    """

    follows_noise: ClassVar[bool] = True
    base: int
    _: KW_ONLY
    max: int | None = None
    micro: tuple[int, int] | int | Literal["auto"] | None = "auto"
    hysteresis: float = 0.03
    dwell: int | None = None
    explore: float = 0.05
    slack: float = 0.05
    prefer: Literal["samples", "steps"] = "samples"
    price: float | None = 1.75
    shrink: bool = False
    monotone: bool = False

    def __post_init__(self) -> None:
        assign(self, base=whole_number(self.base, name="base"), micro=as_sizes(self.micro))
        if self.max is not None:
            assign(self, max=whole_number(self.max, name="max", example=16 * self.base))
        for name, example in (("hysteresis", 0.03), ("explore", 0.05), ("slack", 0.05)):
            assign(self, **{name: number(getattr(self, name), name=name, at_least=0, example=example)})
        assign(self, shrink=flag(self.shrink, name="shrink"), monotone=flag(self.monotone, name="monotone"))
        if self.dwell is not None:
            assign(self, dwell=whole_number(self.dwell, name="dwell", at_least=0))
        self._limits.require_some()
        if self.explore > 1:
            raise ConfigError(f"explore is {self.explore}; expected a part of the run, 0 to 1. Give 0.05 for 5 %.")
        if self.slack >= 1:
            raise ConfigError(f"slack is {self.slack}; expected a part of the goodput below 1. Give 0.05 for 5 %.")
        if self.prefer not in ("samples", "steps"):
            raise ConfigError(
                f"prefer is {self.prefer!r}; expected 'samples' or 'steps'. Leave it out for fewer samples."
            )
        if self.price is not None:
            assign(self, price=number(self.price, name="price", at_least=1, example=1.75))

    def worlds(self, among: Iterable[int]) -> list[WorldBounds]:
        """For each number of replicas the smallest and the largest batch there, or the bounds that rule it out.

        >>> for world in Goodput(128, max=1000, micro=(100, 500)).worlds([4, 10, 11]):
        ...     print(world.replicas, world.batches)
        4 (400, 1000)
        10 (1000, 1000)
        11 None
        """
        return self._limits.worlds(among)

    def batch(self, seen: Observation) -> int:
        return self._choose(seen).layout.global_batch

    def layout(self, seen: Observation) -> Layout:
        """The global batch of the next step with its largest micro-batch."""
        return self._choose(seen).layout

    def explain(self, seen: Observation) -> Decision:
        """The same choice with its reasons and its predicted goodput."""
        return to_decision(self._choose(seen), seen, base=self.base)

    def awaits(self, noise: NoiseEstimate | None) -> bool:
        """Whether a surer noise scale may change the choice: not above the one that counts at most, given a price.

        >>> from swell.core.types import Moments
        >>> far = Moments(signal=1.0, noise=4000.0)
        >>> noise = NoiseEstimate(total=far, groups=(far,), interval=(1500.0, math.inf), observations=40)
        >>> noise.sure, Goodput(128, max=4096).awaits(noise), Goodput(512, max=4096).awaits(noise)
        (False, False, True)
        """
        if noise is None or noise.sure:
            return noise is None
        return self.price is None or noise.at_least < _FAR * self.base

    def speedup(self, seen: Observation, replicas: Iterable[int]) -> dict[int, float]:
        """Goodput on other numbers of replicas relative to now, each at its best; 0 if no batch fits."""
        return {count: world.speedup for count, world in self.outlook(seen, replicas).items()}

    def outlook(self, seen: Observation, replicas: Iterable[int]) -> dict[int, Outlook]:
        """The speedup on other numbers of replicas, with its error. Empty before a step was measured.

        While the noise scale is not sure, the batch is assumed to stay if it can.
        """
        if not seen.profile:
            return {}
        noise_scale = None if seen.noise is None else seen.noise.trusted
        limits, sizes = self._limits, self._limits.sizes_now(seen)

        def max_batch(count: int) -> int:
            if noise_scale is None:
                return limits.nearest(seen.batch, count, sizes)
            return limits.largest(count, sizes, seen)

        return outlook(
            _fit(seen.profile),
            replicas=replicas,
            now=(seen.replicas, seen.nodes),
            base=self.base,
            max_batch=max_batch,
            noise_scale=math.inf if noise_scale is None else noise_scale,
            micro=sizes,
            shrink=self.shrink,
        )

    @property
    def _limits(self) -> Limits:
        return Limits(self.base, self.max, self.micro, self.shrink)  # pyright: ignore[reportArgumentType]

    def _choose(self, seen: Observation) -> GoodputChoice:
        """The choice; that of the step before where nothing has changed that it depends on."""
        latest, inputs = _latest(self), _inputs(seen)
        if not (latest.first <= seen.samples < latest.end and inputs == latest.inputs):
            latest.choice = self._choose_now(seen)
            passed = [
                0.0,
                *thresholds(seen, dwell=self.dwell),
                *trial_thresholds(seen, explore=self.explore, base=self.base),
            ]
            latest.first = max(bound for bound in passed if bound <= seen.samples)
            latest.end = min((bound for bound in passed if bound > seen.samples), default=math.inf)
            latest.inputs = inputs
        return latest.choice

    def _choose_now(self, seen: Observation) -> GoodputChoice:
        present = self._present(seen)
        if not seen.profile:
            return GoodputChoice(rule="start", layout=present.layout)
        budget = trial_budget(seen, explore=self.explore, base=self.base)
        probe = other_size(seen, present.layouts) if seen.samples < budget else None
        if probe is not None:
            return GoodputChoice(rule="probe", layout=present.layouts.layout(probe))
        return self._weigh(seen, present, may_try=not present.forced and spent_on_trials(seen) < budget)

    def _weigh(self, seen: Observation, present: _Present, *, may_try: bool) -> GoodputChoice:
        """A larger batch to try, or the best layout, or the present one if that is nearly as good."""
        noise = _noise(seen)
        rule, options = self._options(seen, present, noise)
        if rule == "weigh" and may_try and (noise.sure or noise.assumed >= present.batch):
            larger = larger_batch(seen, options, present.batch)
            if larger is not None and options.global_batch[larger] <= self._dearest(seen, noise.assumed):
                return GoodputChoice("reach", options.layout(larger), noise_scale=noise.scale, sure=noise.sure)
        if len(options) == 1 and present.index is not None:
            return GoodputChoice(rule=rule, layout=present.layout)
        choice = self._best(seen, rule, options, noise, may_try=may_try)
        return choice if present.index is None else self._unless_close(seen, choice, present)

    def _present(self, seen: Observation) -> _Present:
        sizes = self._limits.sizes_now(seen)
        batch = self._limits.nearest(seen.batch, seen.replicas, sizes)
        ways = layouts(batch, replicas=seen.replicas, micro=sizes, capacity=seen.capacity)
        forced = seen.resized or batch != seen.batch or (seen.micro_batch or 0) > sizes[1]
        same_size = np.flatnonzero(ways.micro_batch == (seen.micro_batch or 0))
        index = int(same_size[0]) if len(same_size) else None
        if index is None and not forced:
            index = 0  # the first step of a process, or one after a step that was cut short
        return _Present(sizes, batch, ways, index, forced)

    def _options(self, seen: Observation, present: _Present, noise: _Noise) -> tuple[ChosenBy, Candidates]:
        """The layouts to compare, and why these."""
        if noise.scale is None:
            return "unsure", present.layouts
        if not present.forced and is_early(seen, dwell=self.dwell):
            return "dwell", present.layouts
        lowest = self._lowest(seen, present, noise)
        return "weigh", candidates(
            replicas=seen.replicas,
            base=self.base if lowest is None else lowest,
            max_batch=max(present.batch, self._limits.largest(seen.replicas, present.sizes, seen)),
            micro=present.sizes,
            shrink=self.shrink and lowest is None,
            capacity=seen.capacity,
        )

    def _lowest(self, seen: Observation, present: _Present, noise: _Noise) -> int | None:
        """The smallest batch that may be chosen; None for the smallest within the bounds.

        While the noise is not sure, two things are taken back: a batch that is too dear whatever the noise may be, and
        a trial, to the largest batch that was no trial.
        """
        if self.monotone:
            return present.batch
        if noise.sure:
            return None
        dearest = self._dearest(seen, noise.at_most)
        if present.batch > _APART * dearest:
            return self.base * max(1, math.floor(dearest / self.base))
        if present.forced or steps_measured(seen) >= SETTLED:
            return present.batch
        return min(present.batch, max(self.base, largest_settled(seen, at_most=present.batch)))

    def _best(
        self, seen: Observation, rule: ChosenBy, options: Candidates, noise: _Noise, *, may_try: bool
    ) -> GoodputChoice:
        """The best option by its predicted goodput or, if it may be tried, by what it may reach."""
        times = _times(seen.profile, seen.replicas, seen.nodes, options)
        value = goodput(options.global_batch, times.step_s, self.base, noise.assumed)
        # In doubt even the smallest option may be too dear by the lower bound; a larger one is dearer still.
        dearest = max(self._dearest(seen, noise.assumed), float(options.global_batch[0]))
        value = np.where(options.global_batch <= dearest, value, 0.0)
        hope = np.where(were_measured(seen, options), 0.0, np.minimum(times.error, _HOPE)) if may_try else 0 * value
        hope = hope * (1 - _part(seen.done))  # a discovery pays only for the rest of the run
        top, hopeful = best(value), best(value * (1 + hope))
        highest = float(value[top])
        if value[hopeful] * (1 + hope[hopeful]) > highest * (1 + self.hysteresis / 4):
            top = hopeful
        else:
            top, hope = self._near_best(options, value), 0 * value
        return GoodputChoice(
            rule=rule,
            layout=options.layout(top),
            noise_scale=noise.scale,
            sure=noise.sure,
            step_s=float(times.step_s[top]),
            error=float(times.error[top]),
            goodput=float(value[top]),
            best_goodput=highest,
            hope=float(hope[top]),
        )

    def _near_best(self, options: Candidates, value: np.ndarray) -> int:
        """The smallest or the largest batch whose goodput is well within the slack, in its best layout."""
        near = value >= value.max() * (1 - _ENTERED * self.slack) * (1 - 1e-9)
        end = np.min if self.prefer == "samples" else np.max
        batch = end(options.global_batch[near]) if self.slack else options.global_batch[best(value)]
        return best(np.where(options.global_batch == batch, value, 0.0))

    def _dearest(self, seen: Observation, noise_scale: float) -> float:
        """The largest batch that is worth its price: efficiency(batch) >= 1 / price."""
        if self.price is None or seen.worth_power <= 0:
            return math.inf
        noise_scale = min(noise_scale, _FAR * self.base)
        return self.price ** (1 / seen.worth_power) * (noise_scale + self.base) - noise_scale

    def _unless_close(self, seen: Observation, choice: GoodputChoice, present: _Present) -> GoodputChoice:
        """The choice, or the present layout if that is nearly as good."""
        stay, predicted = present.layout, choice.goodput
        assert present.index is not None and predicted is not None
        step_s = float(_times(seen.profile, seen.replicas, seen.nodes, present.layouts).step_s[present.index])
        noise_scale = math.inf if choice.noise_scale is None else choice.noise_scale
        worth = efficiency(stay.global_batch, base_batch=self.base, noise_scale=noise_scale)
        current = worth * stay.global_batch / step_s
        needed = 0.0 if present.forced else required_gain(seen, hysteresis=self.hysteresis, dwell=self.dwell)
        choice = choice._replace(current_step_s=step_s, current_goodput=current, needed=needed)
        better = predicted > current * (1 + needed)
        worth_a_try = predicted * (1 + choice.hope) > current * (1 + needed)
        # Within the slack, a batch that differs enough is worth the change for its fewer samples, or steps.
        near = self.slack > 0 and predicted >= current * (1 - self.slack)
        growth = choice.layout.global_batch / stay.global_batch
        cheaper = near and (1 / growth if self.prefer == "samples" else growth) >= _APART
        too_dear = choice.rule == "weigh" and stay.global_batch > _APART * self._dearest(seen, noise_scale)
        if choice.layout == stay or not (better or worth_a_try or cheaper or (too_dear and growth < 1)):
            return choice._replace(layout=stay, rejected=choice.layout)
        return choice if worth_a_try and not better else choice._replace(hope=0.0)


class _Present(NamedTuple):
    """The layout of the step before, if it can stay."""

    sizes: Sizes  # bounds on the micro-batch in this step
    batch: int  # the batch of the step before, or the nearest to it that fits now
    layouts: Candidates  # the ways to lay that batch out
    index: int | None  # which of them is the present one; None if it is gone
    forced: bool  # whether the world or memory forces a new choice

    @property
    def layout(self) -> Layout:
        """The present layout, or the one with the least accumulation."""
        return self.layouts.layout(self.index or 0)


class _Noise(NamedTuple):
    """The noise scale to choose by."""

    scale: float | None  # None if nothing is known
    sure: bool  # otherwise it is a lower bound
    at_most: float = math.inf  # the upper bound, if it is not sure

    @property
    def assumed(self) -> float:
        """Infinite if nothing is known: layouts of one batch differ only in their time."""
        return math.inf if self.scale is None else self.scale


def _noise(seen: Observation) -> _Noise:
    if seen.noise is None:
        return _Noise(None, False)
    trusted = seen.noise.trusted
    if trusted is not None:
        return _Noise(trusted, True)
    at_least, at_most = seen.noise.at_least, seen.noise.at_most
    # A lower bound of 0 says that no larger batch is worth anything, if there is an upper one.
    return _Noise(at_least if at_least or at_most < math.inf else None, False, at_most)


class _Latest:
    """The latest choice of a policy, and for which observations it is the same."""

    def __init__(self) -> None:
        self.inputs: tuple[object, ...] = ()  # all that it depends on, besides the samples so far
        self.first, self.end = math.inf, math.inf  # between which numbers of samples it holds
        self.choice: GoodputChoice


@lru_cache(maxsize=64)
def _latest(policy: Goodput) -> _Latest:
    return _Latest()


def _inputs(seen: Observation) -> tuple[object, ...]:
    return (
        seen.profile, seen.noise, seen.batch, seen.batch_since, seen.micro_batch, seen.max_micro, seen.replicas,
        seen.nodes, seen.capacity, seen.resized, seen.epoch_size, seen.total_samples, seen.worth_power,
        _part(seen.done),
    )  # fmt: skip


def _part(done: float | None) -> float:
    """The part of the run that is done, in steps of a 16th; 0 if its length is not known."""
    return 0.0 if done is None else math.floor(16 * done) / 16


# Measured times change seldom, so nearly every step finds both in the cache.
@lru_cache(maxsize=16)
def _fit(profile: tuple[StepSummary, ...]) -> Fit:
    return fit(profile)


@lru_cache(maxsize=64)
def _times(profile: tuple[StepSummary, ...], replicas: int, nodes: int, options: Candidates) -> Prediction:
    return _fit(profile).predict(
        replicas=replicas, nodes=nodes, micro_batch=options.micro_batch, accumulation=options.accumulation
    )
